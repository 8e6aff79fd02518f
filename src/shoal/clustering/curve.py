"""The labeled accuracy of every cut of a tree (section 4.3 of the CMS paper), and what pairs of
labeled images tell about the number of classes.

For every K the clusters are matched to the classes of the labeled images. One sweep goes
through the merges: each adds one row of the contingency table to another and updates the matching,
so nothing is recomputed from scratch.

Pairs: how often do two images of the same class, and two of different classes, share a cluster? Cut
a tree into about as many clusters as there may be classes, and count the other images in an image's
cluster, its mates. They are of the image's class, which has n images, or of other classes:

    mates = (n - 1) · same + (N - n) · different

`mates` is known from the cut, over all images. `same` and `different`, the probabilities that two
images of the same class and two of different classes share a cluster, are estimated from the
labeled images. This gives n, and K = N / n. Clusters need not be classes: a cut that is too fine
lowers `mates` and `same` alike, and classes that are not separated raise `mates` and `different`
alike. The method assumes that known and novel classes are alike. An image has the weight 1 / size
of its cluster, so that a few large classes do not dominate.

Shapes: N leaves or images, L of them labeled, with C known classes; M cuts, K clusters in a cut.
Arrays of C + 1 hold a value from all known classes, then one with each of them left out, for the
jackknife.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Floats, Ints, as_count, as_labels
from shoal.clustering.tree import Tree
from shoal.errors import DataError, UsageError, count

# Ratio of successive cuts
STEP = 2**0.25

# Cuts, from the current K to about 12 times as many
N_CUTS = 15

# Iterations in which the cuts are placed around the current K
N_ROUNDS = 3

# Fewest known classes for the jackknife
MIN_CLASSES = 3

# Variance of the labels per class over their mean, below which a fixed number was labeled in each
# class, so that labels do not reflect class sizes. If images are labeled regardless of class, it is
# the unlabeled share or more.
MIN_SPREAD = 0.25

# Smallest standard error of log K, however similar the known classes are
MIN_ERROR = 0.01

# Exponent that shrinks the spread of class sizes if they are estimated from cluster sizes
SIZE_TRUST = 0.5

# Smallest number of labeled images of a class that is included in `fit`. For a class with fewer
# labeled images, `fit` is highest if each of these images is a cluster of its own.
MIN_FIT_LABELS = 5


@dataclass(frozen=True)
class PairTerms:
    """The two terms of K = above / below, (C + 1,) each, and L / C."""

    above: Floats
    below: Floats
    labels_per_class: float

    def log_likelihood(self, n_clusters: Ints) -> Floats:
        """Return the log-likelihood (M,) of each K: Student's t of above - K · below.

        The jackknife's standard error assumes classes sampled from an infinite population. Here C
        of K classes are known, so the variance between classes is smaller (finite population
        correction); the rest of the variance is from the choice of labeled images.
        """
        k = n_clusters.astype(np.float64)
        n = len(self.above) - 1
        off = self.above[0] - k * self.below[0]
        covariance = (n - 1) * np.cov(self.above[1:], self.below[1:], bias=True)
        variance = covariance[0, 0] - 2 * k * covariance[0, 1] + k**2 * covariance[1, 1]
        between = 1 - 1 / self.labels_per_class
        variance = variance * (1 - between * n / k) + (MIN_ERROR * self.above[0]) ** 2
        return -np.log(variance) / 2 - n / 2 * np.log1p(off**2 / variance / (n - 1))


@dataclass(frozen=True)
class Curve:
    """Statistics of the cuts from which K is estimated, in ascending order of K."""

    # (M,) K of each cut, from the number of known classes up, within the given range
    n_clusters: Ints
    # (M,) labeled accuracy: the share of labeled images whose cluster is matched to their class
    accuracy: Floats
    # (M,) mean, over the classes with at least `MIN_FIT_LABELS` labeled images, of √(recall ·
    # share) in the class's best cluster. Recall is the share of the class's labeled images that are
    # in the cluster; share is the share of the cluster's images, labeled or not, that have this
    # label. 0 if there is no such class. See `n_clusters.precision`.
    fit: Floats
    # (M,) log of the height of the next merge over that of the last merge below the cut
    gap: Floats
    class_sizes: Ints  # (C,) number of labeled images of each known class
    # Number of distinct images, labeled or not
    n_distinct: int
    # What pairs of labeled images say about K; None if there are too few labels
    pairs: PairTerms | None = None

    @property
    def n_labeled(self) -> int:
        return int(self.class_sizes.sum())

    @property
    def n_classes(self) -> int:
        return len(self.class_sizes)


def accuracy_curve(
    tree: Tree,
    labels: ArrayLike,
    *,
    min_clusters: int | None = None,
    max_clusters: int | None = None,
) -> Curve:
    """Return the curve of every cut from `min_clusters`, at least the number of known classes, to
    `max_clusters`.

    The largest K is by default the larger of 1,000 and ten times the number of known classes, and
    at most the number of distinct points.
    """
    labels = as_labels(labels, tree.n_leaves, name="labels")
    known = renumber_classes(labels, min_clusters, max_clusters)  # (N,) 0 … C-1, -1 for unlabeled
    class_sizes = np.bincount(known[known != UNLABELED])
    n_classes = len(class_sizes)
    if max_clusters is None:
        max_clusters = max(default_max_clusters(n_classes), min_clusters or 0)
    most = max(min(as_count(max_clusters, name="max_clusters"), tree.n_distinct), n_classes)
    least = max(as_count(min_clusters or n_classes, name="min_clusters"), n_classes)
    if least > most:
        raise UsageError(
            f"min_clusters: found {least}, expected at most {most}, the largest number of clusters "
            f"that can be tried with {count(tree.n_distinct, 'distinct image')}"
        )
    n_clusters = np.arange(least, most + 1)
    n_correct, fit = _sweep(tree, known, least, most)
    return Curve(
        n_clusters,
        n_correct / class_sizes.sum(),
        fit,
        _gaps(tree, n_clusters),
        class_sizes,
        tree.n_distinct,
        pair_terms(tree, known),
    )


def default_max_clusters(n_classes: int) -> int:
    """Return the largest K tried by default."""
    return max(1000, 10 * n_classes)


def _sweep(tree: Tree, known: Ints, least: int, most: int) -> tuple[Ints, Floats]:
    """Return the number of correct labeled images (M,) and the fit (M,) at each cut, in ascending
    order of K."""
    start, kept, gone = tree.merges(most)
    is_labeled = known != UNLABELED
    n_classes = int(known.max()) + 1
    cells = start[is_labeled] * n_classes + known[is_labeled]
    table = np.bincount(cells, minlength=most * n_classes).reshape(most, n_classes)
    matching = RunningMatching(table)
    # The fit of each class with enough labels (F of them), updated with every merge.
    counts = matching.counts  # (C, K + C), merged by the matching
    fitted = np.flatnonzero(counts.sum(axis=1) >= MIN_FIT_LABELS)  # (F,)
    n_labels = counts[fitted].sum(axis=1)  # (F,)
    sizes = np.maximum(np.bincount(start, minlength=counts.shape[1]), 1).astype(np.float64)
    products = counts[fitted] ** 2 / (n_labels[:, None] * sizes)  # (F, K + C) recall · share
    best = products.max(axis=1)  # (F,)
    totals = [matching.total]
    bests = [best]
    steps = most - least
    for into, absorbed in zip(kept[:steps].tolist(), gone[:steps].tolist(), strict=True):
        matching.merge(into, absorbed)
        sizes[into] += sizes[absorbed]
        was_best = (products[:, [into, absorbed]] == best[:, None]).any(axis=1)
        products[:, absorbed] = 0
        products[:, into] = counts[fitted, into] ** 2 / (n_labels * sizes[into])
        best = np.maximum(best, products[:, into])
        best[was_best] = products[was_best].max(axis=1)
        totals.append(matching.total)
        bests.append(best)
    return np.array(totals[::-1]), np.sqrt(bests[::-1]).sum(axis=1) / max(len(fitted), 1)


def _gaps(tree: Tree, n_clusters: Ints) -> Floats:
    """Return log(next height / last height) at each K (M,); 0 if only identical points are
    merged below the cut."""
    heights = np.concatenate([[0.0], tree.heights])
    done = tree.n_leaves - n_clusters  # (M,) merges below the cut
    is_apart = heights[done] > tree.rounding
    ones = np.ones(len(n_clusters))
    return np.log(np.divide(heights[done + 1], heights[done], out=ones, where=is_apart))


class RunningMatching:
    """The best matching of a table of counts while pairs of its clusters are merged.

    Maintains the dual solution of the assignment problem: what each class earns and what each
    cluster costs, with earning + cost >= count for every pair, equality for matched pairs and no
    cost for unmatched clusters. The earnings and costs then add up to the value of the best
    matching. A merge affects only the classes that compete for the merged cluster; these are
    matched again along shortest augmenting paths.

    Args:
        counts: (K, C) images per cluster and class; the table is copied.

    Attributes:
        counts: (C, K + C) the current table, a row per class, with C empty clusters at the end so
        that every class is matched.
    """

    def __init__(self, counts: Ints) -> None:
        n_clusters, n_classes = counts.shape
        self.counts: Ints = np.zeros((n_classes, n_clusters + n_classes), dtype=np.int64)
        self.counts[:, :n_clusters] = counts.T
        self._earning = self.counts.max(axis=1)  # (C,)
        self._cost = np.zeros(self.counts.shape[1], dtype=np.int64)  # (K + C,)
        self._class_of = np.full(self.counts.shape[1], -1)  # (K + C,)
        self._cluster_of = np.full(n_classes, -1)  # (C,)
        for free in range(n_classes):
            self._augment(free)

    def merge(self, kept: int, gone: int) -> None:
        """Add cluster `gone` to cluster `kept`; `gone` stays as an empty cluster.

        Unmatches the two clusters and every class that can now earn more, and matches the classes
        again.
        """
        if not self.counts[:, gone].any():
            return
        self.counts[:, kept] += self.counts[:, gone]
        self.counts[:, gone] = 0
        changed = [kept, gone]
        free = []
        while changed:
            cluster = changed.pop()
            self._cost[cluster] = 0
            tempted = np.flatnonzero(self.counts[:, cluster] > self._earning)
            self._earning[tempted] = self.counts[tempted, cluster]
            for leaving in {self._class_of[cluster], *tempted} - {-1}:
                left = self._cluster_of[leaving]
                if left >= 0:
                    self._cluster_of[leaving] = -1
                    self._class_of[left] = -1
                    free.append(leaving)
                    if self._cost[left] > 0:
                        changed.append(left)
        for leaving in free:
            self._augment(leaving)

    @property
    def total(self) -> int:
        """Number of correct images under the best matching."""
        return int(self._earning.sum() + self._cost.sum())

    def _augment(self, free: int) -> None:
        """Match a free class along the shortest path of reassignments to an unmatched cluster
        (Dijkstra on slack)."""
        slack = self._earning[free] + self._cost - self.counts[free]  # (K + C,) >= 0
        came_from = np.full(len(slack), free)
        # Added to the slack: infinity for visited clusters, which are never chosen again, and 0.5
        # for matched ones, so that an unmatched cluster wins a tie.
        further = (self._class_of >= 0) * 0.5
        while True:
            cluster = int((slack + further).argmin())
            owner = self._class_of[cluster]
            if owner < 0:
                break
            further[cluster] = np.inf
            through = slack[cluster] + self._earning[owner] + self._cost - self.counts[owner]
            nearer = (through < slack) & (further < np.inf)
            slack[nearer] = through[nearer]
            came_from[nearer] = owner
        visited = np.isinf(further)
        gained = slack[cluster] - slack[visited]
        self._cost[visited] += gained
        self._earning[self._class_of[visited]] -= gained
        self._earning[free] -= slack[cluster]
        while cluster >= 0:  # the free class leaves no cluster
            owner = came_from[cluster]
            self._class_of[cluster] = owner
            previous = int(self._cluster_of[owner])
            self._cluster_of[owner] = cluster
            cluster = previous


def renumber_classes(
    labels: Ints, min_clusters: int | None = None, max_clusters: int | None = None
) -> Ints:
    """Renumber the classes in `labels` (N,) as 0 … C-1; raise an error for labels, or a range, from
    which no number of clusters can be estimated."""
    classes = np.unique(labels[labels != UNLABELED])
    n_classes = len(classes)
    if n_classes == 0:
        raise UsageError(
            "n_clusters: found no number and no labels; give the number of clusters, or labels of "
            "some images to estimate it"
        )
    if n_classes == 1:
        raise DataError(
            "labels: found one class, expected at least two to estimate the number of clusters; "
            "label images of another class or give the number of clusters"
        )
    first = min_clusters or n_classes
    last = max_clusters or len(labels)
    if first > last or last < n_classes or first > len(labels):
        raise UsageError(
            f"n_clusters: found the range {first:,} to {last:,}, expected one between the "
            f"{n_classes:,} known categories and the {len(labels):,} images"
        )
    return np.where(labels == UNLABELED, UNLABELED, np.searchsorted(classes, labels))


def pair_terms(tree: Tree, known: Ints) -> PairTerms | None:
    """Return the terms by labels (N,) 0 … C-1, -1 for unlabeled; None if there are too few
    labels or images, or if pairs of one class share a cluster no more often than others.

    Cost: some 45 cuts, and a few sums over the labeled images for each.
    """
    labels: Floats = np.bincount(known[known != UNLABELED]).astype(np.float64)  # (C,) per class
    n_classes = len(labels)
    if n_classes < MIN_CLASSES or (labels > 1).sum() < 2 or tree.n_distinct < 2 * n_classes:
        return None
    shows_sizes = bool(labels.var(ddof=1) >= MIN_SPREAD * labels.mean())
    k = 2.0 * n_classes
    most = max(tree.n_distinct // 3, n_classes)  # three images per cluster or more
    for _ in range(N_ROUNDS):
        wanted = k * STEP ** np.arange(N_CUTS)
        numbers = np.unique(wanted.round().clip(n_classes, most).astype(int))
        cuts = [_Cut.of(tree.cut(number), known, n_classes) for number in numbers]
        sizes: Floats = labels  # (C,) up to a factor
        if not shows_sizes:
            sizes = _class_sizes(cuts[0], labels, tree.n_leaves)
        terms = [_terms(cut, labels, sizes, shows_sizes, tree.n_leaves) for cut in cuts]
        above, below = np.sum(terms, axis=0)  # (C + 1,) each
        if below[0] > 0:
            k = float(np.clip(above[0] / below[0], n_classes, tree.n_distinct))
        else:
            k = float(tree.n_distinct if above[0] > 0 else n_classes)
    if above[0] <= 0:
        return None
    return PairTerms(above, below, float(labels.mean()))


@dataclass(frozen=True)
class _Cut:
    """The clusters of a cut and their labeled images.

    `sizes` (clusters,) counts images, labeled or not. Each non-empty pair of a cluster and a class
    has a row: `cluster`, the class `known`, 0 … C-1, and the `count` of labeled images, (rows,)
    each.
    """

    sizes: Floats
    cluster: Ints
    known: Ints
    count: Floats

    @classmethod
    def of(cls, clusters: Ints, known: Ints, n_classes: int) -> "_Cut":
        is_labeled = known != UNLABELED
        cells = clusters[is_labeled] * n_classes + known[is_labeled]
        cells, count = np.unique(cells, return_counts=True)
        sizes = np.bincount(clusters).astype(np.float64)
        return cls(sizes, cells // n_classes, cells % n_classes, count.astype(np.float64))

    def by_class(self, values: Floats) -> Floats:
        """Return sums (C,) of values (rows,) over each class; every class has a row."""
        return np.bincount(self.known, values).astype(np.float64)

    def by_cluster(self, values: Floats) -> Floats:
        """Return sums (rows,) of values (rows,) over each row's cluster."""
        sums = np.bincount(self.cluster, values).astype(np.float64)
        return sums[self.cluster]


def _jackknife_sums(values: Floats) -> Floats:
    """Return the sum of values (C,), and that without each of them: (C + 1,)."""
    total = values.sum()
    return np.concatenate([[total], total - values])


def _terms(cut: _Cut, labels: Floats, sizes: Floats, shows_sizes: bool, n_images: int) -> Floats:
    """Return the terms (2, C + 1), above and below, of one cut."""
    weights, same, different = _probabilities(cut, labels, sizes)
    # The mean over images with the weight 1 / size of their cluster.
    mates = n_images / len(cut.sizes) - 1
    surplus = mates - (n_images - 1) * different  # (n - 1) · (same - different)
    difference = same - different
    mean_size = _jackknife_sums(sizes) / _jackknife_sums(np.ones(len(sizes)))
    others = sizes
    below: Floats = surplus + difference
    if shows_sizes:
        # Labels per class are then proportional to n, and K = N · label rate / labels per class;
        # else n is the mean over images, and K = N / n with the mean over classes.
        others = sizes - 1
        below = surplus
    above = difference * _jackknife_sums(weights * others) / _jackknife_sums(weights)
    above = above / mean_size * n_images
    return np.stack([above, below]) / mates


def _probabilities(cut: _Cut, labels: Floats, sizes: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the weight of each class (C,), and the probabilities (C + 1,) that two images of one
    class, and two of different classes, share a cluster."""
    # (rows,) number of images that the labels represent, up to a factor
    images = cut.count * (sizes / labels)[cut.known]
    weight = images / cut.sizes[cut.cluster]  # (rows,)
    class_weight = cut.by_class(weight)  # (C,)
    pair_sizes = np.where(labels > 1, sizes, 0)  # (C,) of classes that have pairs
    pairs = cut.by_class(weight * (cut.count - 1)) / np.maximum(labels - 1, 1)  # (C,)
    same = _jackknife_sums(pairs * pair_sizes) / _jackknife_sums(class_weight * pair_sizes)
    # (C,) pairs of two classes, by the class of their first and of their second image
    by_first = cut.by_class(weight * (cut.by_cluster(images) - images))
    by_second = cut.by_class(images * (cut.by_cluster(weight) - weight))
    mixed = np.concatenate([[by_first.sum()], by_first.sum() - by_first - by_second])
    n_mixed = _jackknife_sums(class_weight) * _jackknife_sums(sizes)
    n_mixed = n_mixed - _jackknife_sums(class_weight * sizes)
    return class_weight, same, mixed / n_mixed


def _class_sizes(cut: _Cut, labels: Floats, n_images: int) -> Floats:
    """Return relative sizes (C,) of the known classes, from the clusters that hold their labels.

    They are shrunk to their mean, the more the less pure the clusters are.
    """
    count = cut.count
    pairs = labels * (labels - 1)
    mates = cut.by_class(count * (cut.sizes[cut.cluster] - 1)) / labels  # (C,)
    together = cut.by_class(count * (count - 1))  # (C,)
    others = cut.by_class(count * (cut.by_cluster(count) - count))  # (C,)
    # Mates of other classes.
    strangers = (n_images - 1) * others.sum() / (labels * (labels.sum() - labels)).sum()
    # (C,) with the mean as a prior of two pairs
    same = (together + 2 * together.sum() / pairs.sum()) / (pairs + 2)
    purity = np.clip(1 - strangers / mates.mean(), 0, 1)
    own_mates = np.maximum(mates - strangers, 0.05 * mates)
    sizes = 1 + own_mates / np.maximum(same - strangers / n_images, 0.05)
    return np.exp(SIZE_TRUST * purity * (np.log(sizes) - np.log(sizes).mean()))
