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
    check_rule,
    estimate_n_clusters,
)
from shoal.clustering.n_clusters_range import Range, check_estimable, check_n_clusters
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
    """Whether Ward's small clusters are joined by average linkage where `choose_linkage` says so: Ward's tree cuts
    large classes to pieces."""
    split_mixtures: bool = False
    """Whether a cluster of labeled images that likely holds a novel category is split, where K is estimated."""

    def __post_init__(self) -> None:
        for name in ("max_shifts", "unlabeled_shifts", "estimate_shifts"):
            as_count(getattr(self, name), name=name, least=0)
        for name in ("min_clusters", "max_clusters"):
            if getattr(self, name) is not None:
                as_count(getattr(self, name), name=name, least=1)
        if (
            self.min_clusters is not None
            and self.max_clusters is not None
            and self.min_clusters > self.max_clusters
        ):
            raise UsageError(
                f"min_clusters: found {self.min_clusters}, expected at most max_clusters, {self.max_clusters}"
            )
        check_rule(self.rule)  # a wrong name is one even where K is given

    def with_range(self, numbers: Range | None) -> "InferenceSettings":
        """The same, with an estimate that keeps to a range, where there is one."""
        if numbers is None:
            return self
        return replace(self, min_clusters=numbers[0], max_clusters=numbers[1])

    def estimate(self, tree: Tree, labels: ArrayLike) -> NClustersEstimate:
        """The number of clusters of a tree by the labels (N,) a user has, -1 for unlabeled."""
        return estimate_n_clusters(
            tree,
            labels,
            rule=self.rule,
            min_clusters=self.min_clusters,
            max_clusters=self.max_clusters,
        )


PAPER = InferenceSettings(rule="paper", estimate_shifts=0)
"""The paper's choices throughout: K by the highest labeled accuracy on unshifted embeddings."""


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
) -> Inference:
    """Cluster a partly labeled collection (transductive): `embeddings` (N, D), `labels` (N,) with
    -1 for unlabeled.

    Where `n_clusters` is None, K is estimated on the tree after `estimate_shifts` shifts. Without
    any label K must be given, and a fixed number of shifts is made; `n_shifts` fixes it where there
    are labels too, for embeddings trained with all of them, on which they no longer say when to
    stop; `linkage_method` is then given too. Shifting ends before fewer than K rows are distinct
    beyond rounding: a cut at K would part equal rows by their number. Embeddings with fewer from
    the start are refused.

    Where different rows are exactly as similar (binary or quantized embeddings), the lower row
    decides, so there the order of the rows may show. Cost per iterate: one neighbor search, one
    tree that starts from its lists, one shift.
    """
    settings = settings or InferenceSettings()
    points = unit_points(embeddings, device=device)
    known = as_labels(labels, len(points), name="labels")
    check_task(known, n_clusters, settings)
    return infer_unit_rows(
        points,
        known,
        n_clusters,
        settings,
        attention=attention,
        generator=generator,
        n_shifts=n_shifts,
        linkage_method=linkage_method,
    )


def infer_unit_rows(
    points: Tensor,
    known: Ints,
    n_clusters: int | None,
    settings: InferenceSettings,
    *,
    attention: NeighborAttention | None = None,
    generator: torch.Generator | None = None,
    n_shifts: int | None = None,
    linkage_method: LinkageMethod | None = None,
) -> Inference:
    """As `infer`, of rows that `unit_points` has scaled and a task that `check_task` has passed."""
    if n_clusters is None:
        n_shifts = None
    elif (known == UNLABELED).all():
        n_shifts = settings.unlabeled_shifts if n_shifts is None else n_shifts
    pairs = ((one, one) for one in iterates(points, settings.shift, attention, generator))
    if linkage_method is None and settings.try_average:
        linkage_method = choose_linkage(points, known, settings.shift, settings.estimate_shifts)
    inference = _run(pairs, known, n_clusters, settings, n_shifts, linkage_method or "ward")
    if settings.must_link and (known != UNLABELED).any():
        linked = linked_clusters(
            inference.embeddings, known, inference.n_clusters, inference.linkage_method
        )
        if linked is not None:
            inference = replace(
                inference, tree=linked[0], labels=linked[1], unlinked=inference.labels
            )
    if settings.split_mixtures and inference.estimate is not None:
        inference = _split_mixtures(inference, points, known, settings.max_clusters)
    return inference


def _split_mixtures(
    inference: Inference, points: Tensor, known: Ints, max_clusters: int | None
) -> Inference:
    """Split clusters of labeled images that likely hold a novel category, as far as the range of K allows."""
    mixtures = find_mixtures(points, inference.labels, known, inference.n_clusters)
    most = None if max_clusters is None else max_clusters - inference.n_clusters
    clusters = split_mixtures(inference.labels, known, mixtures, most)
    n_clusters = int(clusters.max()) + 1
    estimate = inference.estimate
    assert estimate is not None
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
    _check_neighbors(min(len(points), len(judged)), settings)
    if n_clusters is not None:
        check_n_clusters(n_clusters, known, min(len(points), len(judged)))
    both = zip(
        iterates(points, settings.shift, attention, generator),
        iterates(judged, settings.shift, attention, generator),
        strict=True,
    )
    return _run(both, known, n_clusters, settings)


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
    estimate = None
    last = settings.max_shifts if n_shifts is None else min(n_shifts, settings.max_shifts)
    if n_clusters is None:
        estimate, made = _estimate(pairs, known, settings)
        n_clusters = estimate.n_clusters
        if len(made) <= settings.estimate_shifts:  # after these, known classes fall together
            last = min(last, len(made) - 1)
    else:
        made = [next(pairs)]
    first = best = made[0][0]
    best_t = 0
    accuracies = list[float]()
    cuts = list[Ints]()
    for t, (answer, judge) in enumerate(islice(chain(made, pairs), last + 1)):
        if not _is_distinct(t, (answer, judge), n_clusters, "n_clusters"):
            break
        right = float("nan")
        if n_shifts is None:
            tree = join_small(judge.points, judge.tree, n_clusters, linkage_method)
            cuts.append(tree.cut(n_clusters))
            right = matched_accuracy(known[labeled], cuts[-1][labeled])
        if n_shifts is not None or right > max(accuracies, default=-1.0):
            best = answer
            best_t = t
        accuracies.append(right)
        if stops(accuracies):
            break
    tree = join_small(best.points, best.tree, n_clusters, linkage_method)
    return Inference(
        labels=tree.cut(n_clusters),
        n_clusters=n_clusters,
        n_shifts=best_t,
        accuracies=tuple(accuracies),
        tree=tree,
        embeddings=best.points,
        estimate=estimate,
        first=first,
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
    for t in range(settings.estimate_shifts + 1):
        pair = next(pairs)
        if not _is_distinct(t, pair, n_known, "known classes"):
            break
        made.append(pair)
    answer, judge = made[-1]
    estimate = settings.estimate(judge.tree, known)
    if estimate.n_clusters > answer.tree.n_distinct:
        raise TooFewDistinct(
            f"n_clusters: estimated {estimate.n_clusters} on the validation images for {answer.tree.n_distinct} "
            "distinct images; give the number of clusters"
        )
    return estimate, made


def _is_distinct(t: int, pair: Pair, n_clusters: int, name: str) -> bool:
    """Whether iterate t can be cut into so many clusters; an error where the first cannot."""
    if all(one.has_distinct(n_clusters) for one in pair):
        return True
    if t == 0:
        check_distinct(
            min((one.tree for one in pair), key=lambda tree: tree.n_distinct), n_clusters, name
        )
    return False


def stops(accuracies: list[float]) -> bool:
    """Whether iterate t-2 is at least as good as both after it: then Algorithm 1 returns it."""
    return len(accuracies) > 2 and accuracies[-3] >= max(accuracies[-2:])


def check_task(known: Ints, n_clusters: int | None, settings: InferenceSettings) -> None:
    """Refuse, before any work, labels (N,) and settings that `infer` could not end with."""
    _check_neighbors(len(known), settings)
    if n_clusters is not None:
        check_n_clusters(n_clusters, known, len(known))
    else:
        check_estimable(settings.min_clusters, settings.max_clusters, known)
        known_classes(known)


def _check_neighbors(n_rows: int, settings: InferenceSettings) -> None:
    moves = settings.shift
    if moves.kernel == "knn" and moves.n_neighbors >= n_rows:
        raise UsageError(
            f"n_neighbors: found {moves.n_neighbors} with {n_rows} images, expected fewer than images; lower it"
        )
