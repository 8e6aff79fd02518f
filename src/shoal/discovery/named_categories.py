"""Named categories: what clusters become, with a row for each image and each category, and how a
run takes them.

N images, D columns, K categories of which the first C are known.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints, nan_to_null
from shoal.clustering.calibration import Calibration, calibrate
from shoal.clustering.categories import (
    NONE,
    Membership,
    category_names,
    describe,
    number_clusters,
    other_neighbors,
    same_category_share,
)
from shoal.clustering.hidden_categories import Mixtures, find_mixtures
from shoal.clustering.neighbors import Neighbors
from shoal.clustering.never_seen import SeenProbability
from shoal.data.collection import PreviousCategories
from shoal.discovery.reviewed.category_names import name_as_before, second_but
from shoal.methods.clusters import Discovery
from shoal.runs import MIXED_FROM, Assignment, Category, Run

N_EXEMPLARS = 5
"""Images named as typical of a category."""


@dataclass(frozen=True, eq=False, kw_only=True)
class NamedCategories:
    """The categories of a collection."""

    names: Sequence[str]
    """(N,) the images."""
    given: Ints
    """(N,) the labels they came with, positions in `classes`, -1 for unlabeled."""
    categories: Ints
    """(N,) the category each was put in, positions in `classes`."""
    classes: Sequence[str]
    """(K,) names, the known categories first."""
    n_known: int
    members: Membership
    mixtures: Mixtures
    """Which categories may hold another one."""
    ids: Sequence[int]
    """(K,) the id of each category; its position, unless a review has made and ended some."""
    calibration: Calibration | None = None
    """What the confidence of the members rests on."""


def name_categories(
    discovery: Discovery,
    names: Sequence[str],
    given: Ints,
    classes: Sequence[str],
    *,
    n_neighbors: int,
    unseen: Ints | None = None,
    calibrated_on: Discovery | None = None,
    otherwise: Calibration | None = None,
    earlier: PreviousCategories | None = None,
    frozen: Tensor | None = None,
) -> NamedCategories:
    """Turn clusters into categories: known ones keep their class's place, novel ones follow by
    falling size.

    After a review of an `earlier` run, categories keep their ids and names, and images stay out of
    categories they were thrown out of, which are not their second choice either.

    Confidence is calibrated by the labels given; where something was trained, by those it has not
    seen, `unseen`. It is calibrated on clusters that no label has a part in, those without
    must-links, of this discovery or another one. Where they are too few, the calibration is that of
    another answer, `otherwise`. The part of a category that may be another one is as much less
    likely to be right. Whether it may is seen in the `frozen` encoder's unit embeddings (N, C),
    which no label has trained; those of the discovery if not given.
    """
    categories, n_novel = number_clusters(
        discovery.clusters, given, len(classes), discovery.embeddings
    )
    n_known = len(classes)
    points, lists = near = _neighbors(discovery, n_neighbors)
    everyone = category_names(classes, n_novel)
    ids = list(range(len(everyone)))
    apart = {}
    if earlier is not None:
        named = name_as_before(categories, classes, names, points, earlier)
        categories = named.categories
        everyone = named.names
        ids = named.ids
        n_novel = len(named.names) - n_known
        apart = named.apart
    members = describe(points, categories, lists, points, categories, n_known)
    second = members.second
    if apart:
        second = second_but(points, categories, len(everyone), second, apart)
    if calibrated_on is not None:
        near = _neighbors(calibrated_on, n_neighbors)
    calibration = _calibrate(calibrated_on or discovery, given, n_known, unseen, near[1])
    if (
        calibration.label_rate is None
        and otherwise is not None
        and otherwise.label_rate is not None
    ):
        calibration = replace(otherwise, is_of_first=True)
    calibration = calibration.for_novel(n_novel)
    confidence = calibration.confidence(members.confidence, categories, given != UNLABELED)
    untrained = points if frozen is None else frozen
    mixtures = find_mixtures(untrained, categories, given, len(everyone))
    is_doubted = mixtures.is_apart & (given == UNLABELED)
    confidence = confidence * np.where(is_doubted, 1 - mixtures.probability[categories], 1.0)
    return NamedCategories(
        names=names,
        given=given,
        categories=categories,
        classes=everyone,
        ids=ids,
        n_known=n_known,
        members=replace(members, confidence=confidence, second=second),
        calibration=calibration,
        mixtures=mixtures,
    )


def _calibrate(
    discovery: Discovery,
    given: Ints,
    n_known: int,
    unseen: Ints | None,
    lists: Neighbors,
) -> Calibration:
    """How sure the share of neighbors in the same cluster makes, by clusters that no label has a
    part in."""
    clusters = discovery.clusters if discovery.unlinked is None else discovery.unlinked
    categories, n_novel = number_clusters(clusters, given, n_known, discovery.embeddings)
    n_categories = n_known + n_novel
    share = same_category_share(lists, categories, categories)
    sizes = {"n_categories": n_categories, "n_known": n_known}
    near = lists.indices.cpu().numpy()
    return calibrate(categories, given, share, near, discovery.embeddings, **sizes, unseen=unseen)


def _neighbors(discovery: Discovery, n_neighbors: int) -> tuple[Tensor, Neighbors]:
    points = torch.from_numpy(np.ascontiguousarray(discovery.embeddings))
    lists = discovery.neighbors
    if lists is None:
        return points, other_neighbors(points, n_neighbors)
    return points, Neighbors(lists.indices.cpu(), lists.similarities.cpu())


def write_categories(
    run: Run,
    named: NamedCategories,
    discovery: Discovery,
    *,
    n_neighbors: int,
    alpha: float,
) -> None:
    """Write tables, arrays, the estimate of K and the shifts."""
    run.write_assignments(assignment_rows(named), len(named.names))
    run.write_categories(category_rows(named))
    run.write_array("embeddings", discovery.embeddings)
    for name, array in (("shifted", discovery.shifted), ("tree", discovery.linkage)):
        if array is not None:
            run.write_array(name, array)
    run.write_json("estimate", _estimate(discovery))
    if named.calibration is not None:
        seen = SeenProbability.fit(
            torch.from_numpy(np.ascontiguousarray(discovery.embeddings)),
            named.categories,
            named.members.outlier_score,
            n_neighbors,
        )
        calibration = named.calibration.to_dict()
        calibration["seen"] = seen and {"slope": seen.slope, "intercept": seen.intercept}
        run.write_json("calibration", calibration)
    if discovery.accuracies:
        accuracies = nan_to_null(list(discovery.accuracies))
        shifts = {
            "accuracies": accuracies,
            "chosen": discovery.n_shifts,
            "n_neighbors": n_neighbors,
            "alpha": alpha,
        }
        run.write_json("shifts", shifts | {"linkage_method": discovery.linkage_method})


def _estimate(discovery: Discovery) -> dict[str, object]:
    estimate = discovery.estimate
    if estimate is None:
        known = {"rule": discovery.counted_by or "given", "is_given": not discovery.counted_by}
        unknown = dict.fromkeys(("interval", "range", "by_labels", "curve"))
        return {"n_clusters": discovery.n_clusters, **known, **unknown}
    return {
        "n_clusters": discovery.n_clusters,
        "rule": estimate.rule,
        "is_given": False,
        "interval": estimate.interval,
        "range": estimate.range or None,
        "by_labels": estimate.by_labels or None,
        "curve": {
            "n_clusters": estimate.curve.n_clusters.tolist(),
            "accuracy": estimate.curve.accuracy.tolist(),
        },
    }


def assignment_rows(named: NamedCategories) -> Iterator[Assignment]:
    """A row per image, in their order, each made when it is asked for."""
    members = named.members
    is_marked = named.mixtures.probability >= MIXED_FROM
    is_apart = named.mixtures.is_apart & is_marked[named.categories]
    for i, name in enumerate(named.names):
        yield Assignment(
            path=name,
            label_given=_name(named, int(named.given[i])),
            category_id=named.ids[named.categories[i]],
            category=named.classes[named.categories[i]],
            is_novel=bool(named.categories[i] >= named.n_known),
            confidence=float(members.confidence[i]),
            outlier_score=float(members.outlier_score[i]),
            nearest_known=_name(named, int(members.nearest_known[i])),
            nearest_known_similarity=float(members.nearest_known_similarity[i]),
            second_category=_name(named, int(members.second[i])),
            is_apart=bool(is_apart[i]),
        )


def category_rows(named: NamedCategories) -> list[Category]:
    """A row per category, known ones first, even those that no image was put in."""
    return [_category_row(named, category) for category in range(len(named.classes))]


def _category_row(named: NamedCategories, category: int) -> Category:
    rows = np.flatnonzero(named.categories == category)
    members = named.members
    typical = sorted(rows.tolist(), key=lambda row: (-members.typicality[row], named.names[row]))
    nearest, similarity = _nearest_known(members, rows, category, named.n_known)
    return Category(
        category_id=named.ids[category],
        category=named.classes[category],
        is_novel=category >= named.n_known,
        size=len(rows),
        n_labeled=int((named.given[rows] != UNLABELED).sum()),
        confidence=_mean(members.confidence[rows]) if len(rows) else 0.0,
        nearest_known=_name(named, nearest),
        nearest_known_similarity=similarity,
        exemplars=tuple(named.names[row] for row in typical[:N_EXEMPLARS]),
        mixed_probability=float(named.mixtures.probability[category]),
    )


def _nearest_known(
    members: Membership, rows: Ints, category: int, n_known: int
) -> tuple[int, float]:
    """The known category nearest to most of a novel category's images; for a known one there is
    nothing to say."""
    near = members.nearest_known[rows]
    if category < n_known or not len(rows) or (near == NONE).all():
        return NONE, float("nan")
    chosen = int(np.bincount(near[near != NONE], minlength=1).argmax())
    return chosen, _mean(members.nearest_known_similarity[rows[near == chosen]])


def _mean(values: Floats) -> float:
    """The mean, of a sum that is rounded once: numpy's depends on the order of images in its last
    bits."""
    return math.fsum(values) / len(values)


def _name(named: NamedCategories, category: int) -> str:
    return "" if category == NONE else named.classes[category]
