"""From embeddings to clusters: shift, grow the tree, cut at K, until labeled accuracy stops rising
(Algorithm 1).

Iterate t holds the embeddings after t shifts. Its tree is cut at K and matched to the labels, on
labeled images only. When neither of the next two iterates is better than one, that one is the
answer. The labels passed in are those a user has; hidden ones have no way in.

N images, D columns, K clusters.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from shoal.arrays import UNLABELED, Ints, as_count, as_labels
from shoal.clustering.average import LinkageMethod, choose_linkage, join_small
from shoal.clustering.curve import known_classes
from shoal.clustering.hidden_categories import find_mixtures, split_mixtures
from shoal.clustering.iterates import Iterate, check_distinct, iterates
from shoal.clustering.links import linked_clusters
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.mean_shift import NeighborAttention, ShiftSettings
from shoal.clustering.n_clusters import (
    DEFAULT_RULE,
    NClustersEstimate,
    check_n_clusters,
    check_rule,
    estimate_n_clusters,
)
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.errors import TooFewDistinct, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceSettings:
    """How Algorithm 1 moves and when it gives up."""

    shift: ShiftSettings = field(default_factory=ShiftSettings)
    """The mean-shift step."""
    max_shifts: int = 20
    """T_max: the most shifts tried."""
    unlabeled_shifts: int = 1
    """Shifts made when no image is labeled, at most `max_shifts`: nothing says when to stop;
    training makes one."""
    rule: str = DEFAULT_RULE
    """How the number of clusters is estimated where it is not given; "paper" with no shifts is
    section 4.3."""
    estimate_shifts: int = 1
    """Shifts before that estimate: the tree that is cut in the end is one of shifted embeddings
    too."""
    min_clusters: int | None = None
    """Smallest number of clusters tried by the estimate; none: the known classes."""
    max_clusters: int | None = None
    """Largest number of clusters tried by the estimate; none: 1,000 or ten times the known
    classes."""
    must_link: bool = False
    """Whether the labeled images of a class begin as one cluster, and no cluster holds two classes.
    The numbers of clusters and of shifts are chosen before, on trees that know no label: with links
    the labels would agree whatever is chosen."""
    try_average: bool = False
    """Whether Ward's small clusters are joined by average linkage where `choose_linkage` says so:
    Ward's tree cuts large classes to pieces."""
    split_mixtures: bool = False
    """Whether a cluster of labeled images that likely holds a novel category is split, where K is
    estimated."""

    def __post_init__(self) -> None:
        for name in ("max_shifts", "unlabeled_shifts", "estimate_shifts"):
            as_count(getattr(self, name), name=name, least=0)
        for name in ("min_clusters", "max_clusters"):
            if getattr(self, name) is not None:
                as_count(getattr(self, name), name=name, least=1)
        if self.max_clusters is not None and (self.min_clusters or 1) > self.max_clusters:
            raise UsageError(
                f"min_clusters: found {self.min_clusters}, expected at most max_clusters, "
                f"{self.max_clusters}"
            )
        check_rule(self.rule)  # a wrong name is one even where K is given

    def estimate(self, tree: Tree, labels: ArrayLike) -> NClustersEstimate:
        """The number of clusters of a tree by the labels (N,) a user has, -1 for unlabeled."""
        return estimate_n_clusters(
            tree,
            labels,
            rule=self.rule,
            min_clusters=self.min_clusters,
            max_clusters=self.max_clusters,
        )


@dataclass(frozen=True, eq=False, slots=True)
class Inference:
    """The iterate that Algorithm 1 returns."""

    labels: Ints  # (N,) cluster of each image, numbered by each cluster's first image
    n_clusters: int
    n_shifts: int  # t of the iterate returned
    # Labeled accuracy of every iterate that was looked at; NaN without labels.
    accuracies: tuple[float, ...]
    tree: Tree  # of the iterate returned, with must-links where they were asked for
    embeddings: Tensor  # (N, D) after n_shifts shifts
    estimate: NClustersEstimate | None  # where n_clusters was not given
    first: Iterate  # before any shift
    linkage_method: LinkageMethod = "ward"  # how its tree joins small clusters
    unlinked: Ints | None = None  # (N,) the clusters without must-links, where there are any
    # (M,) each: clusters of what judged every iterate, without must-links
    cuts: tuple[Ints, ...] = ()


def infer(
    embeddings: Tensor | ArrayLike,
    labels: ArrayLike,
    n_clusters: int | None = None,
    settings: InferenceSettings | None = None,
    *,
    attention: NeighborAttention | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    n_shifts: int | None = None,
    linkage_method: LinkageMethod | None = None,
    is_unit: bool = False,
) -> Inference:
    """Cluster a partly labeled collection (transductive): `embeddings` (N, D), `labels` (N,) with
    -1 for unlabeled.

    Where `n_clusters` is None, K is estimated on the tree after `estimate_shifts` shifts. Without
    any label K must be given, and a fixed number of shifts is made; `n_shifts` fixes it where there
    are labels too, for embeddings trained with all of them, on which they no longer say when to
    stop; `linkage_method` is then given too. Shifting ends before fewer than K rows are distinct
    beyond rounding: a cut at K would part equal rows by their number. Embeddings with fewer from
    the start are refused. Rows are scaled to length 1, unless `unit_points` has done so: `is_unit`.

    Where different rows are exactly as similar (binary or quantized embeddings), the lower row
    decides, so there the order of the rows may show. Cost per iterate: one neighbor search, one
    tree that starts from its lists, one shift.
    """
    settings = settings or InferenceSettings()
    if is_unit and isinstance(embeddings, Tensor):
        points = embeddings
    else:
        points = unit_points(embeddings, device=device)
    known = as_labels(labels, len(points), name="labels")
    check_task(known, n_clusters, settings)
    is_labeled = bool((known != UNLABELED).any())
    if n_clusters is None:
        n_shifts = None
    elif not is_labeled and n_shifts is None:
        n_shifts = settings.unlabeled_shifts
    if linkage_method is None and settings.try_average:
        linkage_method = choose_linkage(points, known, settings.shift, settings.estimate_shifts)
    steps = iterates(points, settings.shift, attention, generator)
    pairs = ((one, one) for one in steps)
    inference = _run(pairs, known, n_clusters, settings, n_shifts, linkage_method or "ward")
    if settings.must_link and is_labeled:
        linked = linked_clusters(
            inference.embeddings, known, inference.n_clusters, inference.linkage_method
        )
        if linked is not None:
            tree, clusters = linked
            inference = replace(inference, tree=tree, labels=clusters, unlinked=inference.labels)
    if settings.split_mixtures and inference.estimate is not None:
        inference = _split_mixtures(inference, inference.estimate, known, settings.max_clusters)
    return inference


def _split_mixtures(
    inference: Inference, estimate: NClustersEstimate, known: Ints, max_clusters: int | None
) -> Inference:
    """Split clusters of labeled images that likely hold a novel category, as far as the range of K
    allows."""
    n_clusters = inference.n_clusters
    mixtures = find_mixtures(inference.first.points, inference.labels, known, n_clusters)
    most = None if max_clusters is None else max_clusters - n_clusters
    clusters = split_mixtures(inference.labels, known, mixtures, most)
    n_clusters = int(clusters.max()) + 1
    low, high = estimate.interval
    estimate = replace(estimate, interval=(min(low, n_clusters), max(high, n_clusters)))
    return replace(inference, labels=clusters, n_clusters=n_clusters, estimate=estimate)


def infer_inductive(
    embeddings: Tensor | ArrayLike,
    validation: Tensor | ArrayLike,
    validation_labels: ArrayLike,
    n_clusters: int | None = None,
    settings: InferenceSettings | None = None,
    *,
    attention: NeighborAttention | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Inference:
    """Cluster unseen images that carry no label; labeled validation images say when to stop (and K,
    if not given).

    Both sets are shifted, each within itself, and both trees are cut at K: a height read off one
    tree means nothing in another, since Ward heights grow with the number of images.
    """
    settings = settings or InferenceSettings()
    points = unit_points(embeddings, device=device)
    judged = unit_points(validation, device=device, name="validation")
    known = as_labels(validation_labels, len(judged), name="validation_labels")
    assert not (known == UNLABELED).all(), "nothing says when to stop"
    n_rows = min(len(points), len(judged))
    _check_neighbors(n_rows, settings.shift)
    if n_clusters is not None:
        check_n_clusters(n_clusters, known, n_rows)
    pairs = zip(
        iterates(points, settings.shift, attention, generator),
        iterates(judged, settings.shift, attention, generator),
        strict=True,
    )
    return _run(pairs, known, n_clusters, settings)


Pair = tuple[Iterate, Iterate]
"""What may be returned, and what judges it: the same, or the same number of shifts of the
validation images."""


def _run(
    pairs: Iterator[Pair],
    known: Ints,
    n_clusters: int | None,
    settings: InferenceSettings,
    n_shifts: int | None = None,
    linkage_method: LinkageMethod = "ward",
) -> Inference:
    """Algorithm 1; `known` labels the images that judge. With `n_shifts` nothing judges: the last
    iterate is returned.

    The iterate that the stopping rule returns is always the first of the best so far, so only that
    one is kept.
    """
    labeled = known != UNLABELED
    last = settings.max_shifts
    if n_shifts is not None:
        last = min(n_shifts, last)
    estimate = None
    made: list[Pair] = []
    if n_clusters is None:
        estimate, made = _estimate(pairs, known, settings)
        n_clusters = estimate.n_clusters
        if len(made) <= settings.estimate_shifts:  # after these, known classes fall together
            last = min(last, len(made) - 1)
    answers: list[Iterate] = []  # the first, and the best so far
    n_best = 0
    accuracies: list[float] = []
    cuts: list[Ints] = []
    for t, pair in enumerate(islice(chain(made, pairs), last + 1)):
        if not _is_distinct(t, pair, n_clusters, "n_clusters"):
            break
        answer, judge = pair
        accuracy = float("nan")
        if n_shifts is None:
            tree = join_small(judge.points, judge.tree, n_clusters, linkage_method)
            cuts.append(tree.cut(n_clusters))
            accuracy = matched_accuracy(known[labeled], cuts[-1][labeled])
        if n_shifts is not None or accuracy > max(accuracies, default=-1.0):
            answers = [*answers[:1], answer]
            n_best = t
        accuracies.append(accuracy)
        if stops(accuracies):
            break
    best = answers[-1]
    tree = join_small(best.points, best.tree, n_clusters, linkage_method)
    return Inference(
        labels=tree.cut(n_clusters),
        n_clusters=n_clusters,
        n_shifts=n_best,
        accuracies=tuple(accuracies),
        tree=tree,
        embeddings=best.points,
        estimate=estimate,
        first=answers[0],
        linkage_method="ward" if tree is best.tree else linkage_method,
        cuts=tuple(cuts),
    )


def _estimate(
    pairs: Iterator[Pair], known: Ints, settings: InferenceSettings
) -> tuple[NClustersEstimate, list[Pair]]:
    """K after the shifts asked for, or the last before classes fall together, and the iterates made
    for it."""
    n_known = len(np.unique(known[known != UNLABELED]))
    made: list[Pair] = []
    for t, pair in enumerate(islice(pairs, settings.estimate_shifts + 1)):
        if not _is_distinct(t, pair, n_known, "known classes"):
            break
        made.append(pair)
    answer, judge = made[-1]
    estimate = settings.estimate(judge.tree, known)
    if estimate.n_clusters > answer.tree.n_distinct:
        raise TooFewDistinct(
            f"n_clusters: estimated {estimate.n_clusters} on the validation images for "
            f"{answer.tree.n_distinct} distinct images; give the number of clusters"
        )
    return estimate, made


def _is_distinct(t: int, pair: Pair, n_clusters: int, name: str) -> bool:
    """Whether iterate t can be cut into so many clusters; an error where the first cannot."""
    for one in pair:
        if not one.has_distinct(n_clusters):
            if t == 0:
                check_distinct(one.tree, n_clusters, name)
            return False
    return True


def stops(accuracies: list[float]) -> bool:
    """Whether iterate t-2 is at least as good as both after it: then Algorithm 1 returns it."""
    return len(accuracies) > 2 and accuracies[-3] >= max(accuracies[-2:])


def check_task(known: Ints, n_clusters: int | None, settings: InferenceSettings) -> None:
    """Refuse, before any work, labels (N,) and settings that `infer` could not end with."""
    _check_neighbors(len(known), settings.shift)
    if n_clusters is not None:
        check_n_clusters(n_clusters, known, len(known))
    else:
        known_classes(known, settings.min_clusters, settings.max_clusters)


def _check_neighbors(n_rows: int, moves: ShiftSettings) -> None:
    if moves.kernel == "knn" and moves.n_neighbors >= n_rows:
        raise UsageError(
            f"n_neighbors: found {moves.n_neighbors} with {n_rows} images, expected fewer than "
            "images; lower it"
        )
