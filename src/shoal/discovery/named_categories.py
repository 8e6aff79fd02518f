"""Turn clusters into named categories with ids and confidence, and write them into a run.

Shapes: N images, D columns, K categories of which the first C are known.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints, nan_to_null
from shoal.clustering.calibration import Calibration, calibrate, fit_seen_probability
from shoal.clustering.categories import (
    Membership,
    category_names,
    describe,
    number_clusters,
    other_neighbors,
    same_category_share,
)
from shoal.clustering.category_tree import CategoryTree
from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.mixed_categories import Mixtures, find_mixtures
from shoal.clustering.neighbors import Neighbors
from shoal.data.collection import Collection
from shoal.data.readers.embeddings import Embeddings
from shoal.discovery.reviewed.previous_categories import reuse_names
from shoal.methods.method import Discovery
from shoal.runs import MIXED_FROM, Assignment, Category, Run
from shoal.settings import Plain

# Typical images listed for a category
N_EXEMPLARS = 5


@dataclass(frozen=True, kw_only=True)
class Result:
    """The clusters of a collection as named categories, found with the frozen or the trained
    encoder."""

    discovery: Discovery
    names: Sequence[str]
    """(N,) the names of the images."""
    labels: Ints
    """(N,) their given labels, positions in `classes`, -1 for unlabeled."""
    categories: Ints
    """(N,) their categories, positions in `classes`."""
    classes: Sequence[str]
    """(K,) names, the known categories first."""
    n_known: int
    members: Membership
    calibration: Calibration
    """The calibration of the confidence in `members`."""
    mixtures: Mixtures
    ids: Sequence[int]
    """(K,) the id of each category: its position, unless a review added or removed categories."""
    name: str = ""
    """'frozen' or 'trained' if images were clustered; empty if embeddings were given."""
    trained_in: Path | None = None
    """The folder with the networks and metrics of a trained result."""
    model: Plain = field(default_factory=dict)
    """The content of its model.json: the number of trained blocks (None: the number in the
    encoder's catalog entry); the weight of the frozen embeddings in the blend; the sizes that the
    networks depend on (`TaskShape`); with a classifier, the category of each of its outputs."""
    found_at: float = field(default_factory=time.monotonic)


def name_categories(
    discovery: Discovery,
    images: Collection | Embeddings,
    n_neighbors: int,
    *,
    name: str = "",
    held_out: Ints | None = None,
    fallback: Calibration | None = None,
    frozen: Tensor | None = None,
) -> Result:
    """Turn clusters into categories: the known classes in their order, then novel ones by size.

    Parameters
    ----------
    discovery
        The clusters.
    images
        The images with their labels; after a review, the names, ids and cannot-links of the
        reviewed categories are kept.
    n_neighbors
        Number of neighbors; confidence is the calibrated share of them in the same category.
    name
        The name of the result.
    held_out
        Rows whose labels were held out from training and so can calibrate confidence; all labeled
        rows if not given.
    fallback
        The calibration to use if there are too few labels.
    frozen
        Frozen unit embeddings (N, D), in which mixed categories are detected; those of `discovery`
        if not given.
    """
    labels = images.labels
    n_known = len(images.classes)
    categories, n_novel = number_clusters(discovery.clusters, labels, n_known, discovery.embeddings)
    points = torch.from_numpy(np.ascontiguousarray(discovery.embeddings))
    neighbors = discovery.neighbors or other_neighbors(points, n_neighbors)
    neighbors = neighbors.each(Tensor.cpu)
    names = category_names(images.classes, n_novel)
    ids = list(range(len(names)))
    cannot_links: dict[int, set[int]] = {}
    if isinstance(images, Collection) and images.previous is not None:
        categories, names, ids, cannot_links = reuse_names(
            categories, points, images, images.previous
        )
    n_categories = len(names)
    members = describe(points, categories, neighbors, points, categories, n_known)
    second = members.second.copy()
    for row, rejected in cannot_links.items():
        if second[row] in rejected:
            second[row] = UNLABELED
    calibration = _calibrate(discovery, labels, n_known, neighbors, held_out)
    if calibration.label_rate is None and fallback is not None and fallback.label_rate is not None:
        calibration = replace(fallback, is_from_frozen=True)
    calibration = calibration.for_novel(n_categories - n_known)
    confidence = calibration.confidence(members.confidence, categories, labels != UNLABELED)
    mixtures = find_mixtures(points if frozen is None else frozen, categories, labels, n_categories)
    # An image in a part that may be another category is less likely to be correct.
    is_doubted = mixtures.is_apart & (labels == UNLABELED)
    confidence = confidence * np.where(is_doubted, 1 - mixtures.probability[categories], 1.0)
    return Result(
        discovery=discovery,
        names=images.names,
        labels=labels,
        categories=categories,
        classes=names,
        ids=ids,
        n_known=n_known,
        members=replace(members, confidence=confidence, second=second),
        calibration=calibration,
        mixtures=mixtures,
        name=name,
    )


def _calibrate(
    discovery: Discovery, labels: Ints, n_known: int, neighbors: Neighbors, held_out: Ints | None
) -> Calibration:
    """Calibrate the share of neighbors in the same cluster, using the clusters without must-links,
    which labels have not influenced."""
    clusters = discovery.clusters if discovery.unlinked is None else discovery.unlinked
    categories, n_novel = number_clusters(clusters, labels, n_known, discovery.embeddings)
    return calibrate(
        categories,
        labels,
        same_category_share(neighbors, categories, categories),
        neighbors.indices.cpu().numpy(),
        discovery.embeddings,
        n_categories=n_known + n_novel,
        n_known=n_known,
        held_out=held_out,
    )


def write_result(run: Run, named: Result, shift: ShiftSettings) -> None:
    discovery = named.discovery
    run.write_array("embeddings", discovery.embeddings)
    for name, array in (("shifted", discovery.shifted), ("tree", discovery.linkage)):
        if array is not None:
            run.write_array(name, array)
    run.write_assignments(assignment_rows(named))
    run.write_categories(category_rows(named, run.array(run.clustered)))
    run.write_json("estimate", _estimate(discovery))
    calibration = named.calibration.to_dict()
    calibration["seen"] = fit_seen_probability(
        torch.from_numpy(np.ascontiguousarray(discovery.embeddings)),
        named.categories,
        named.members.outlier_score,
        shift.n_neighbors,
    )
    run.write_json("calibration", calibration)
    if discovery.accuracies:
        shifts = {
            "accuracies": nan_to_null(list(discovery.accuracies)),
            "chosen": discovery.n_shifts,
            "n_neighbors": shift.n_neighbors,
            "alpha": shift.alpha,
            "linkage_method": discovery.linkage_method,
        }
        run.write_json("shifts", shifts)
    if named.trained_in is not None:
        trained = Run(named.trained_in)
        trained.copy_model(run)
        run.write_json("model", named.model)
        if trained.path != run.path:
            trained.share("metrics.jsonl", run)


def _estimate(discovery: Discovery) -> Plain:
    """Return the content of estimate.json."""
    estimate = discovery.estimate
    content: Plain = {
        "n_clusters": discovery.n_clusters,
        "rule": discovery.n_clusters_source or "given",
        "is_given": not discovery.n_clusters_source,
        "interval": None,
        "range": None,
        "curve": None,
    }
    if estimate is not None:
        content |= {
            "rule": estimate.rule,
            "is_given": False,
            "interval": estimate.interval,
            "range": estimate.range or None,
            "curve": {
                "n_clusters": estimate.curve.n_clusters.tolist(),
                "accuracy": estimate.curve.accuracy.tolist(),
            },
        }
    return content


def assignment_rows(named: Result) -> Iterator[Assignment]:
    members = named.members
    is_marked = named.mixtures.probability >= MIXED_FROM
    is_apart = named.mixtures.is_apart & is_marked[named.categories]
    for i, name in enumerate(named.names):
        category = int(named.categories[i])
        yield Assignment(
            path=name,
            label_given=_name(named, int(named.labels[i])),
            category_id=named.ids[category],
            category=named.classes[category],
            is_novel=category >= named.n_known,
            confidence=float(members.confidence[i]),
            outlier_score=float(members.outlier_score[i]),
            nearest_known=_name(named, int(members.nearest_known[i])),
            nearest_known_similarity=float(members.nearest_known_similarity[i]),
            second_category=_name(named, int(members.second[i])),
            is_apart=bool(is_apart[i]),
        )


def category_rows(named: Result, clustered: Floats) -> list[Category]:
    """Return a row per category, known ones first, including those without images.

    The tree of categories is that of `clustered` (N, D), the embeddings that were clustered.
    """
    members = [np.flatnonzero(named.categories == at) for at in range(len(named.classes))]
    with_images = [at for at, rows in enumerate(members) if len(rows)]
    tree = CategoryTree.of_members(
        [named.classes[at] for at in with_images],
        [members[at] for at in with_images],
        clustered,
    )
    parents = tree.parent_names
    return [
        _category_row(named, at, rows, parents.get(named.classes[at], ""))
        for at, rows in enumerate(members)
    ]


def _category_row(named: Result, category: int, rows: Ints, parent: str) -> Category:
    members = named.members
    typical = sorted(rows.tolist(), key=lambda row: (-members.typicality[row], named.names[row]))
    # For a novel category: the known category that is most often nearest to its images.
    nearest = UNLABELED
    similarity = float("nan")
    near = members.nearest_known[rows]
    if category >= named.n_known and (near != UNLABELED).any():
        nearest = int(np.bincount(near[near != UNLABELED]).argmax())
        similarity = _mean(members.nearest_known_similarity[rows[near == nearest]])
    return Category(
        category_id=named.ids[category],
        category=named.classes[category],
        is_novel=category >= named.n_known,
        size=len(rows),
        n_labeled=int((named.labels[rows] != UNLABELED).sum()),
        confidence=_mean(members.confidence[rows]) if len(rows) else 0.0,
        nearest_known=_name(named, nearest),
        nearest_known_similarity=similarity,
        exemplars=tuple(named.names[row] for row in typical[:N_EXEMPLARS]),
        mixed_probability=float(named.mixtures.probability[category]),
        parent=parent,
    )


def _mean(values: Floats) -> float:
    """Return the mean, exactly summed: numpy's last bits depend on the order of the images."""
    return math.fsum(values) / len(values)


def _name(named: Result, category: int) -> str:
    return "" if category == UNLABELED else named.classes[category]
