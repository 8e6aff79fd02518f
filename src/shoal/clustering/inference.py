"""Algorithm 1 of the CMS paper: shift, build the tree, cut it at K, until labeled accuracy stops
rising. Labels may also be constraints, and choose average linkage.

Iterate t holds the embeddings after t shifts. Its tree is cut at K and the clusters are matched to
the classes of the labeled images. The result is the first iterate that is at least as accurate as
each of the next two. Only labels that the user gave are passed in, never the hidden labels that a
result is evaluated on.

Less variance within classes: images of a class are made more alike, also those of novel classes.
The labeled images of a class differ in pose, light or background, and so do those of other classes.
The directions of these differences are scaled down for all images, by λ / (v + λ) where the
variance within the known classes is v. Only embeddings that were not trained with the labels show
how the images of novel classes differ.

Must-links: the labeled images of a class start as one cluster, and no cluster holds two classes.
Each labeled row is replaced by the mean of its class. Ward joins equal rows first, into a cluster
of the right center and size, which is all that its distances depend on: so the tree starts from the
classes. A cluster of the cut that holds several classes is split again, each row going to the
nearest of their means.

Average linkage: Ward's distance between two clusters grows with their sizes, so the clusters of a
cut are of similar size: a class with a tenth of the images is split, and small classes are merged
instead. The mean distance between the images of two clusters does not depend on their sizes, but
with average linkage alone, outliers would become separate clusters. Therefore Ward's tree is used
down to a few small clusters per cluster, and these are merged by their mean squared distance.

Shapes: N images, L of them labeled, D columns, C classes, K clusters, M small clusters,
R = min(L, D).
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints, as_count, as_labels
from shoal.clustering.categories import category_centers, find_mixtures, split_mixtures
from shoal.clustering.curve import renumber_classes
from shoal.clustering.matching import correct_images, is_worse, matched_accuracy
from shoal.clustering.mean_shift import (
    Iterate,
    NeighborAttention,
    ShiftSettings,
    check_distinct,
    iterates,
    onto_sphere,
    unit_tree,
)
from shoal.clustering.n_clusters import (
    DEFAULT_RULE,
    NClustersEstimate,
    check_n_clusters,
    check_rule,
    estimate_n_clusters,
)
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.sums import BLOCK_ROWS, equal_rows, grouped_means, unit_points
from shoal.clustering.tree import Tree, number_by_first
from shoal.errors import UsageError

# How the small clusters of Ward's tree are merged into K
LinkageMethod = Literal["ward", "average"]

# Small clusters per cluster; 3 and 12 gave the same accuracy
SMALL_PER_CLUSTER = 6

# Largest number of small clusters; the distances of all their pairs take 1.2 GB
MAX_SMALL = 12_000

# Smallest and largest number of labeled images that choose the linkage
MIN_LABELED = 200
MAX_LABELED = 10_000


# λ, as a share of the mean of v, weighted by v. On CUB-200 and Caltech-101, 1 was as accurate, and
# 3 less (benchmarks/results/2026-11-18_2-core-arm_within_class.md).
RIDGE = 0.3

# Numbers are rounded to multiples of 1 / GRID, far more than the rounding errors of matrix
# products, so that threads and devices rarely give different bits
GRID = 2.0**18

# Mean squared distance from the class mean that may be due to rounding
NO_VARIANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class InferenceSettings:
    """Settings of Algorithm 1."""

    shift: ShiftSettings = field(default_factory=ShiftSettings)
    """The mean-shift step."""
    max_shifts: int = 20
    """T_max: the largest number of shifts tried."""
    rule: str = DEFAULT_RULE
    """Rule that estimates the number of clusters if it is not given. "paper", with
    `estimate_shifts` 0, follows section 4.3 of the CMS paper."""
    estimate_shifts: int = 1
    """Number of shifts before the estimate; 1, because the final cut is also made in a tree of
    shifted embeddings."""
    min_clusters: int | None = None
    """Smallest K that the estimate considers; None: the number of known classes."""
    max_clusters: int | None = None
    """Largest K that the estimate considers; None: the larger of 1,000 and ten times the number of
    known classes."""
    must_link: bool = False
    """Whether variance within the known classes is reduced, the labeled images of a class start as
    one cluster, and no cluster contains two classes. The numbers of clusters and shifts are chosen
    beforehand on trees without this, because with it the labeled accuracy would be 1 for every
    choice."""
    try_average: bool = False
    """Whether to replace the upper merges of Ward's tree, which tends to split large classes, by
    average linkage if `choose_linkage` finds that more accurate."""
    split_mixtures: bool = False
    """Whether to split a cluster with labeled images that probably contains a novel category too;
    only if K is estimated."""

    def __post_init__(self) -> None:
        for name in ("max_shifts", "estimate_shifts"):
            as_count(getattr(self, name), name=name, least=0)
        for name in ("min_clusters", "max_clusters"):
            if getattr(self, name) is not None:
                as_count(getattr(self, name), name=name, least=1)
        if self.max_clusters is not None and (self.min_clusters or 1) > self.max_clusters:
            raise UsageError(
                f"min_clusters: found {self.min_clusters}, expected at most max_clusters, "
                f"{self.max_clusters}"
            )
        check_rule(self.rule)  # an unknown name is an error even if K is given

    def estimate(self, tree: Tree, labels: ArrayLike) -> NClustersEstimate:
        """Estimate K from a tree and labels (N,), -1 for unlabeled."""
        return estimate_n_clusters(
            tree,
            labels,
            rule=self.rule,
            min_clusters=self.min_clusters,
            max_clusters=self.max_clusters,
        )


@dataclass(frozen=True)
class Inference:
    """The result of Algorithm 1."""

    labels: Ints  # (N,) cluster of each image, in order of first appearance
    n_clusters: int
    n_shifts: int  # number of shifts of the returned iterate
    accuracies: tuple[float, ...]  # labeled accuracy of every iterate tried; NaN if not evaluated
    tree: Tree  # of `embeddings`, with must-links if they are set
    embeddings: Tensor  # (N, D) after n_shifts shifts
    estimate: NClustersEstimate | None  # None if n_clusters was given
    first: Iterate  # before any shift
    linkage_method: LinkageMethod = "ward"  # how small clusters were merged
    unlinked: Ints | None = None  # (N,) clusters without must-links; None if there are no links


def infer(
    embeddings: Tensor | ArrayLike,
    labels: ArrayLike,
    n_clusters: int | None = None,
    settings: InferenceSettings | None = None,
    *,
    attention: NeighborAttention | None = None,
    generator: torch.Generator | None = None,
    n_shifts: int | None = None,
    linkage_method: LinkageMethod | None = None,
    n_frozen: int | None = None,
    is_unit: bool = False,
) -> Inference:
    """Cluster a partly labeled collection (transductive): `embeddings` (N, D), `labels` (N,) with
    -1 for unlabeled.

    If `n_clusters` is None, K is estimated on the tree after `estimate_shifts` shifts. Without
    labels K must be given, and the number of shifts is 1. `n_shifts` and `linkage_method`, if
    given, are used instead of those with the highest labeled accuracy; pass them for embeddings
    that were trained with labels. `n_shifts` is ignored if K is estimated. Variance within the
    classes is reduced in the first `n_frozen` columns, which were not trained with labels; None:
    in all. Shifting stops as soon as one more shift would leave fewer than K distinct rows, up to
    rounding, because a cut at K would then split identical rows by their position. Embeddings with
    fewer than K distinct rows raise an error. Rows are scaled to length 1; `is_unit` skips this for
    the output of `unit_points`.

    Ties between different rows (common in binary or quantized embeddings) go to the lower row
    number, so the order of the rows can then affect the result. Cost per iterate: one neighbor
    search, one tree built from the neighbor lists, one shift. With must-links, the
    shifts are computed again, as many as chosen, after the variance within classes is reduced.
    """
    settings = settings or InferenceSettings()
    if is_unit and isinstance(embeddings, Tensor):
        points = embeddings
    else:
        points = unit_points(embeddings)
    known = as_labels(labels, len(points), name="labels")
    check_task(known, n_clusters, settings)
    is_labeled = bool((known != UNLABELED).any())
    if n_clusters is None:
        n_shifts = None  # a number of shifts that was chosen for a given K does not apply
    elif not is_labeled and n_shifts is None:
        n_shifts = 1  # as in training
    if linkage_method is None and settings.try_average:
        linkage_method = choose_linkage(points, known, settings.shift, settings.estimate_shifts)
    steps = iterates(points, settings.shift, attention, generator)
    pairs = ((iterate, iterate) for iterate in steps)
    inference = _run(pairs, known, n_clusters, settings, n_shifts, linkage_method or "ward")
    if settings.must_link and is_labeled:
        shifted = inference.embeddings
        if n_frozen != 0:
            reduced = reduce_within_class(points, known, n_frozen)
            steps = iterates(reduced, settings.shift, attention, generator)
            shifted = next(islice(steps, inference.n_shifts, None)).points
        linked = linked_clusters(shifted, known, inference.n_clusters, inference.linkage_method)
        if linked is not None:
            tree, clusters = linked
            inference = replace(
                inference,
                tree=tree,
                labels=clusters,
                embeddings=shifted,
                unlinked=inference.labels,
            )
    if settings.split_mixtures and inference.estimate is not None:
        inference = _split_mixtures(inference, inference.estimate, known, settings.max_clusters)
    return inference


def _split_mixtures(
    inference: Inference, estimate: NClustersEstimate, known: Ints, max_clusters: int | None
) -> Inference:
    """Split clusters that probably mix a known and a novel category, up to `max_clusters`."""
    n_clusters = inference.n_clusters
    mixtures = find_mixtures(inference.first.points, inference.labels, known, n_clusters)
    max_splits = None
    if max_clusters is not None:
        max_splits = max_clusters - n_clusters
    clusters = split_mixtures(inference.labels, known, mixtures, max_splits)
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
) -> Inference:
    """Cluster unlabeled test images; labeled validation images determine the number of shifts, and
    K if it is not given.

    The two sets are shifted separately, and both trees are cut at K. A cut height could not be
    transferred, because Ward's heights grow with the number of images. `must_link`, `try_average`
    and `split_mixtures` are ignored: the test images have no labels.
    """
    settings = settings or InferenceSettings()
    points = unit_points(embeddings)
    validation_points = unit_points(validation, name="validation")
    known = as_labels(validation_labels, len(validation_points), name="validation_labels")
    assert not (known == UNLABELED).all(), "validation images need labels"
    check_task(known, n_clusters, settings, n_rows=min(len(points), len(validation_points)))
    pairs = zip(
        iterates(points, settings.shift, attention, generator),
        iterates(validation_points, settings.shift, attention, generator),
        strict=True,
    )
    return _run(pairs, known, n_clusters, settings)


# An iterate, and the one that its labeled accuracy is computed on: itself, or the validation images
# after the same number of shifts
Pair = tuple[Iterate, Iterate]


def _run(
    pairs: Iterator[Pair],
    known: Ints,
    n_clusters: int | None,
    settings: InferenceSettings,
    n_shifts: int | None = None,
    linkage_method: LinkageMethod = "ward",
) -> Inference:
    """Run Algorithm 1; `known` are the labels of each pair's second iterate.

    With `n_shifts`, return that iterate without computing accuracies.
    """
    is_labeled = known != UNLABELED
    last = settings.max_shifts
    if n_shifts is not None:
        last = min(n_shifts, last)
    estimate = None
    first_pairs: list[Pair] = []
    if n_clusters is None:
        estimate, first_pairs = _estimate(pairs, known, settings)
        n_clusters = estimate.n_clusters
        if len(first_pairs) <= settings.estimate_shifts:  # one more shift would merge known classes
            last = min(last, len(first_pairs) - 1)
    # The result is the first of the most accurate iterates, so only that one is stored.
    first: Iterate | None = None
    best: Iterate | None = None
    best_shifts = 0
    accuracies: list[float] = []
    for t, pair in enumerate(islice(chain(first_pairs, pairs), last + 1)):
        if not _is_distinct(t, pair, n_clusters, "n_clusters"):
            break
        iterate, evaluated = pair
        accuracy = float("nan")  # never stops the loop
        if n_shifts is None:
            tree = join_small(evaluated.points, evaluated.tree, n_clusters, linkage_method)
            clusters = tree.cut(n_clusters)
            accuracy = matched_accuracy(known[is_labeled], clusters[is_labeled])
        if n_shifts is not None or accuracy > max(accuracies, default=-1.0):
            first = first or iterate
            best = iterate
            best_shifts = t
        accuracies.append(accuracy)
        if has_peaked(accuracies):
            break
    assert first is not None
    assert best is not None
    tree = join_small(best.points, best.tree, n_clusters, linkage_method)
    if tree is best.tree:  # there was nothing to join
        linkage_method = "ward"
    return Inference(
        labels=tree.cut(n_clusters),
        n_clusters=n_clusters,
        n_shifts=best_shifts,
        accuracies=tuple(accuracies),
        tree=tree,
        embeddings=best.points,
        estimate=estimate,
        first=first,
        linkage_method=linkage_method,
    )


def _estimate(
    pairs: Iterator[Pair], known: Ints, settings: InferenceSettings
) -> tuple[NClustersEstimate, list[Pair]]:
    """Return an estimate of K, and the iterates computed for it.

    K is estimated after `estimate_shifts` shifts, or fewer if another one would merge known
    classes.
    """
    n_known = len(np.unique(known[known != UNLABELED]))
    first_pairs: list[Pair] = []
    for t, pair in enumerate(islice(pairs, settings.estimate_shifts + 1)):
        if not _is_distinct(t, pair, n_known, "known classes"):
            break
        first_pairs.append(pair)
    _, evaluated = first_pairs[-1]
    return settings.estimate(evaluated.tree, known), first_pairs


def _is_distinct(t: int, pair: Pair, n_clusters: int, name: str) -> bool:
    """Return whether iterate t can be cut into `n_clusters`; raise an error if iterate 0 cannot."""
    for iterate in pair:
        if not iterate.has_distinct(n_clusters):
            if t == 0:
                check_distinct(iterate.tree, n_clusters, name)
            return False
    return True


def has_peaked(accuracies: list[float]) -> bool:
    """Return whether neither of the last two accuracies exceeds the one before them."""
    return len(accuracies) > 2 and accuracies[-3] >= max(accuracies[-2:])


def check_task(
    known: Ints, n_clusters: int | None, settings: InferenceSettings, n_rows: int | None = None
) -> None:
    """Raise an error if `infer` cannot use these labels (N,) and settings for N rows, or for
    `n_rows` if given; called before any work."""
    n_rows = n_rows or len(known)
    shift = settings.shift
    if shift.kernel == "knn" and shift.n_neighbors >= n_rows:
        raise UsageError(
            f"n_neighbors: found {shift.n_neighbors} with {n_rows} images, expected fewer "
            "neighbors than images"
        )
    if n_clusters is not None:
        check_n_clusters(n_clusters, known, n_rows)
    else:
        # Raises if K cannot be estimated.
        renumber_classes(known, settings.min_clusters, settings.max_clusters)


@torch.no_grad()
def reduce_within_class(points: Tensor, labels: Ints, n_frozen: int | None = None) -> Tensor:
    """Return unit rows (N, D) with less variance within the classes of `labels` (N,), -1 for
    unlabeled.

    `points` (N, D) are unit rows. They are returned unchanged if no class has two different rows.
    Of a blend, only the first `n_frozen` columns are changed, which are not trained with labels.
    """
    if n_frozen is not None and n_frozen < points.shape[1]:
        frozen = points[:, :n_frozen]
        lengths = frozen.norm(dim=1, keepdim=True)
        reduced = reduce_within_class(frozen / lengths, labels)
        return torch.cat([reduced * lengths, points[:, n_frozen:]], dim=1)
    labeled = np.flatnonzero(labels != UNLABELED)
    classes, class_of = np.unique(labels[labeled], return_inverse=True)
    rows = points[torch.from_numpy(labeled).to(points.device)]  # (L, D)
    groups = torch.from_numpy(class_of).to(points.device)
    residuals = rows.double() - grouped_means(rows, groups, len(classes))[groups]  # (L, D)
    if not len(rows) or residuals.square().sum() <= NO_VARIANCE * len(rows):
        return points
    residuals = torch.linalg.qr(residuals, mode="r").R  # (R, D), with the same covariance
    products = residuals @ residuals.T  # (R, R)
    ridge = RIDGE * products.square().sum() / products.trace()
    products.diagonal().add_(ridge)
    weights = torch.linalg.solve(products, residuals)  # (R, D)
    mean = grouped_means(points, torch.zeros_like(points[:, 0], dtype=torch.int64), 1)  # (1, D)
    reduced = torch.empty_like(points)
    for start in range(0, len(points), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        centered = points[part].double() - mean
        moved = centered - centered @ residuals.T @ weights
        reduced[part] = onto_sphere((moved * GRID).round() / GRID, points[part])
    return reduced


def linked_clusters(
    points: Tensor, labels: Ints, n_clusters: int, method: LinkageMethod = "ward"
) -> tuple[Tree, Ints] | None:
    """Return the tree of `points` (N, D) that starts from the classes in `labels` (N,), -1 for
    unlabeled, and K clusters (N,) numbered by their first image; None if K does not allow it.

    The tree is cut higher by as many clusters as are split.
    """
    classes = _label_copies(points, labels)  # (N,)
    labeled = torch.from_numpy(np.flatnonzero(classes != UNLABELED)).to(points.device)  # (L,)
    class_of = torch.from_numpy(classes[classes != UNLABELED]).to(points.device)  # (L,)
    n_classes = int(classes.max()) + 1
    means = grouped_means(points[labeled], class_of, n_classes).to(points.dtype)
    rows = points.clone()
    rows[labeled] = means[class_of]
    tree = unit_tree(rows)
    if tree.n_distinct < n_clusters:
        return None
    tree = join_small(points, tree, n_clusters, method)
    # (C,) an image of each class
    first = np.unique(classes, return_index=True)[1][-n_classes:]

    def n_after_splitting(n_cut: int) -> int:
        return n_cut + n_classes - len(np.unique(tree.cut(n_cut)[first]))

    # The largest cut that leaves at most K clusters.
    n_cut = bisect_right(range(1, n_clusters + 1), n_clusters, key=n_after_splitting)
    clusters = tree.cut(max(n_cut, 1))
    separated = clusters.copy()
    for cluster in np.flatnonzero(np.bincount(clusters[first]) > 1):
        held_classes = np.flatnonzero(clusters[first] == cluster)
        members = np.flatnonzero(clusters == cluster)
        member_points = points[torch.from_numpy(members).to(points.device)].double()
        squares = [(member_points - means[c].double()).square().sum(dim=1) for c in held_classes]
        nearest = held_classes[torch.stack(squares).argmin(dim=0).cpu().numpy()]
        member_classes = classes[members]
        target = np.where(member_classes == UNLABELED, nearest, member_classes)
        separated[members] = len(clusters) + target
    return tree, number_by_first(separated)


def _label_copies(points: Tensor, labels: Ints) -> Ints:
    """Return labels (N,), 0 … C-1, in which copies of a labeled row share its label.

    Copies with different labels have none: a split between them would depend on the order of rows.
    """
    group = equal_rows(points)[1].cpu().numpy()  # (N,)
    labeled = np.flatnonzero(labels != UNLABELED)
    lowest = np.full(len(group), len(labels))
    highest = np.full(len(group), UNLABELED)
    np.minimum.at(lowest, group[labeled], labels[labeled])
    np.maximum.at(highest, group[labeled], labels[labeled])
    shared = np.where(lowest == highest, highest, UNLABELED)[group]
    classes = np.searchsorted(np.unique(shared[shared != UNLABELED]), shared)
    return np.where(shared == UNLABELED, UNLABELED, classes)


def join_small(points: Tensor, tree: Tree, n_clusters: int, method: LinkageMethod) -> Tree:
    """Return Ward's `tree` of unit rows (N, D) with the merges above its small clusters replaced by
    those of `method`."""
    n_small = min(SMALL_PER_CLUSTER * n_clusters, MAX_SMALL, tree.n_distinct)
    if method == "ward" or n_small <= n_clusters:
        return tree
    labels = tree.cut(n_small)  # (N,)
    sizes = np.bincount(labels)  # (M,)
    groups = torch.from_numpy(labels).to(points.device)
    centers = grouped_means(points, groups, n_small).cpu().numpy()  # (M, D)
    # Rows have length 1, so the mean squared distance between the rows of two clusters is 2 minus
    # twice their mean product.
    kept, gone, distances = average_linkage(2 - 2 * centers @ centers.T, sizes)
    n_merges = tree.n_leaves - n_small
    below = tree.heights[n_merges - 1] if n_merges else 0.0
    return tree.with_top(n_small, kept, gone, below + np.sqrt(distances.clip(min=0)))


def choose_linkage(
    points: Tensor, labels: Ints, shift: ShiftSettings, n_shifts: int
) -> LinkageMethod:
    """Return "average" if it is more accurate than Ward's linkage by over a standard error.

    Only the labeled images of `points` (N, D), unit rows, are clustered, after `n_shifts` shifts,
    into as many clusters as they have classes. With all images the comparison would be biased:
    average linkage adds more images of novel classes to known clusters, which labels do not show.
    """
    rows = sample_labeled(points, labels)
    truth = labels[rows]
    n_classes = len(np.unique(truth))
    if len(rows) < MIN_LABELED or n_classes < 2:
        return "ward"
    labeled_points = points[torch.from_numpy(rows).to(points.device)]
    iterate = next(islice(iterates(labeled_points, shift), n_shifts, None))
    by_average = join_small(iterate.points, iterate.tree, n_classes, "average").cut(n_classes)
    by_ward = iterate.tree.cut(n_classes)
    if is_worse(correct_images(truth, by_ward), correct_images(truth, by_average)):
        return "average"
    return "ward"


def sample_labeled(points: Tensor, labels: Ints) -> Ints:
    """Return a sample of the labeled rows in which each class is in proportion to its estimated
    number of images.

    People label some classes more than others. The number of images of a class is estimated by how
    many of the `points` (N, D) are nearest to its mean. The sampled share of each class is one that
    three quarters of the classes have enough labels for; rows are sampled at even intervals.
    """
    labeled = np.flatnonzero(labels != UNLABELED)
    if len(labeled) < MIN_LABELED:
        return labeled
    classes, class_of = np.unique(labels[labeled], return_inverse=True)
    n_labels = np.bincount(class_of)  # (C,)
    labeled_points = points[torch.from_numpy(labeled).to(points.device)]
    means = category_centers(labeled_points, class_of, len(classes))  # (C, D)
    nearest = k_nearest(points, means.to(points.dtype), 1).indices[:, 0]  # (N,)
    n_nearest = torch.bincount(nearest, minlength=len(classes)).cpu().numpy()
    n_images = np.maximum(n_nearest, n_labels)  # (C,)
    share = min(float(np.quantile(n_labels / n_images, 0.25)), MAX_LABELED / n_images.sum())
    n_sampled = np.maximum(1, np.rint(share * n_images).astype(np.int64))
    n_sampled = np.minimum(n_labels, n_sampled)  # (C,)
    sampled = []
    for c in range(len(classes)):
        evenly = np.linspace(0, n_labels[c] - 1, n_sampled[c]).round().astype(np.int64)
        sampled.append(labeled[class_of == c][evenly])
    return np.sort(np.concatenate(sampled))


def average_linkage(distances: Floats, sizes: Ints) -> tuple[Ints, Ints, Floats]:
    """Merge M clusters of `sizes` (M,) by average linkage of their `distances` (M, M).

    Return, for each merge, the slots `kept` and `gone`, and the distance, which never decreases. A
    union is stored in the lower of the two slots. The nearest-neighbor chain algorithm needs M²
    operations: mutual nearest neighbors can be merged at any time without changing later merges.
    """
    apart = distances.astype(np.float64)
    n_left = sizes.astype(np.float64)
    np.fill_diagonal(apart, np.inf)
    height_of = np.full(len(sizes), -np.inf)
    slots: list[tuple[int, int]] = []
    heights: list[float] = []
    chain: list[int] = []
    while len(slots) < len(sizes) - 1:
        if not chain:
            chain = [int((n_left > 0).argmax())]
        last = chain[-1]
        nearest = int(apart[last].argmin())
        if len(chain) == 1 or apart[last, nearest] < apart[last, chain[-2]]:
            chain.append(nearest)
            continue
        kept, gone = sorted(chain[-2:])
        del chain[-2:]
        # Because of rounding, a union may be lower than one of its parts.
        height_of[kept] = max(apart[kept, gone], height_of[kept], height_of[gone])
        slots.append((kept, gone))
        heights.append(height_of[kept])
        total = n_left[kept] + n_left[gone]
        row = (n_left[kept] * apart[kept] + n_left[gone] * apart[gone]) / total
        apart[kept] = row
        apart[:, kept] = row
        apart[gone] = np.inf
        apart[:, gone] = np.inf
        n_left[kept] = total
        n_left[gone] = 0
    order = np.argsort(heights, kind="stable")
    pairs = np.array(slots, dtype=np.int64).reshape(-1, 2)[order]
    return pairs[:, 0], pairs[:, 1], np.array(heights)[order]
