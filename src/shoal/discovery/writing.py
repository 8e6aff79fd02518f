"""From clusters to a run folder: number them, describe every image, write the parts that showing needs.

N images, D columns.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.calibration import Calibration, calibrate
from shoal.clustering.categories import describe_members, number_clusters, other_neighbors
from shoal.clustering.neighbors import Neighbors
from shoal.data.earlier import Earlier
from shoal.discovery.kept import name_anew, name_as_before
from shoal.discovery.outputs import Found, assignment_rows, category_rows
from shoal.files import make_folder, write_text
from shoal.methods.clusters import Discovery
from shoal.runs import Run, locked


def name_categories(
    discovery: Discovery,
    names: Sequence[str],
    given: Ints,
    classes: Sequence[str],
    *,
    n_neighbors: int,
    unseen: Ints | None = None,
    calibrated_on: Discovery | None = None,
    earlier: Earlier | None = None,
) -> Found:
    """Turn clusters into categories: known ones keep their class's place, novel ones follow by falling size.

    After a review of an `earlier` run, categories keep their ids and names, and images stay out of categories they were
    thrown out of.

    Confidence is calibrated by the labels given; where something was trained, by those it has not seen, `unseen`. It is
    calibrated on clusters that no label has a part in, those without must-links, of this discovery or another one.
    """
    categories, n_novel = number_clusters(discovery.clusters, given, len(classes), discovery.embeddings)
    n_known = len(classes)
    points, lists = _neighbors(discovery, n_neighbors)
    named = name_anew(categories, classes, n_novel)
    if earlier is not None:
        named = name_as_before(categories, classes, names, points, earlier)
    categories, everyone, n_novel = named.categories, named.names, len(named.names) - n_known
    members = describe_members(points, categories, len(everyone), n_known, n_neighbors, lists)
    calibration = _calibrate(calibrated_on or discovery, given, n_known, n_neighbors, unseen).for_novel(n_novel)
    confidence = calibration.confidence(members.confidence, categories, given != UNLABELED)
    return Found(
        names=names,
        given=given,
        categories=categories,
        classes=everyone,
        ids=named.ids,
        n_known=n_known,
        members=replace(members, confidence=confidence),
        calibration=calibration,
    )


def _calibrate(discovery: Discovery, given: Ints, n_known: int, n_neighbors: int, unseen: Ints | None) -> Calibration:
    """How sure the share of neighbors in the same cluster makes, by clusters that no label has a part in."""
    clusters = discovery.clusters if discovery.unlinked is None else discovery.unlinked
    categories, n_novel = number_clusters(clusters, given, n_known, discovery.embeddings)
    n_categories = n_known + n_novel
    points, lists = _neighbors(discovery, n_neighbors)
    share = describe_members(points, categories, n_categories, n_known, n_neighbors, lists).confidence
    sizes = {"n_categories": n_categories, "n_known": n_known}
    near = lists.indices.cpu().numpy()
    return calibrate(categories, given, share, near, discovery.embeddings, **sizes, unseen=unseen)


def _neighbors(discovery: Discovery, n_neighbors: int) -> tuple[Tensor, Neighbors]:
    points = torch.from_numpy(np.ascontiguousarray(discovery.embeddings))
    return points, other_neighbors(points, n_neighbors)


def write_found(
    run: Run, found: Found, discovery: Discovery, *, n_neighbors: int, alpha: float, repeats: Sequence[int] = ()
) -> None:
    """Write tables, arrays, the estimate of K (with what its repetitions gave) and the shifts."""
    run.write_assignments(assignment_rows(found))
    run.write_categories(category_rows(found))
    run.write_array("embeddings", discovery.embeddings)
    for name, array in (("shifted", discovery.shifted), ("tree", discovery.linkage)):
        if array is not None:
            run.write_array(name, array)
    run.write_json("estimate", _estimate(discovery, repeats))
    if found.calibration is not None:
        run.write_json("calibration", found.calibration.to_dict())
    if discovery.accuracies:
        accuracies = [None if value != value else value for value in discovery.accuracies]
        shifts = {"accuracies": accuracies, "chosen": discovery.n_shifts, "n_neighbors": n_neighbors, "alpha": alpha}
        run.write_json("shifts", shifts)


def _estimate(discovery: Discovery, repeats: Sequence[int]) -> dict[str, object]:
    found, curve = discovery.estimate, None
    if found is not None:
        curve = {"n_clusters": found.curve.n_clusters.tolist(), "accuracy": found.curve.accuracy.tolist()}
    return {
        "n_clusters": discovery.n_clusters,
        "rule": found.rule if found is not None else discovery.counted_by or "given",
        "is_given": found is None and not discovery.counted_by,
        "interval": list(found.interval) if found is not None else None,
        "range": list(found.range) if found is not None and found.range else None,
        "curve": curve,
        "stability": {"n_clusters": list(repeats)} if repeats else None,
    }


def write_report(run: Run, file: Path | None = None, *, tsne: bool | None = None) -> Path:
    """Write a run as one HTML page, report.html in its folder if no file is given; returns its path."""
    from shoal.report.page import render_report

    target = file if file is not None else run.path / "report.html"
    make_folder(target.parent)
    with locked(run.path) if tsne or target.parent == run.path else nullcontext():
        write_text(target, render_report(run, tsne=tsne))
    return target
