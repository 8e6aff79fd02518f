"""Estimate the number of classes from pairs of labeled images: how often two of the same class, and
two of different classes, share a cluster.

Cut a tree into about as many clusters as there may be classes, and count the other images in an
image's cluster, its mates. They are of the image's class, which has n images, or of other classes:

    mates = (n - 1) · same + (N - n) · different

`mates` is known from the cut, over all images. `same` and `different`, the probabilities that two
images of the same class and two of different classes share a cluster, are estimated from the
labeled images. This gives n, and K = N / n. Clusters need not be classes: a cut that is too fine
lowers `mates` and `same` alike, and classes that are not separated raise `mates` and `different`
alike. The method assumes that known and novel classes are alike.

An image has the weight 1 / size of its cluster, so that a few large classes do not dominate. N
images, L of them labeled with C known classes. Arrays of C + 1 hold a value from all known classes,
then one with each of them left out, for the jackknife.
"""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.tree import Tree

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
