"""How many classes, from pairs of labeled images: how often two of one class, and two of different
ones, meet.

Cut a tree into about as many clusters as there may be classes, and count the other images in an
image's cluster. They are of its own class, of n images, or of others:

    mates = (n - 1) · same + (N - n) · different

`mates` is read off the cut, over all images. `same` and `different`, the chances that two images of
one class and two of different classes share a cluster, are read off the labeled images. So n
follows, and K = N / n. Clusters need not be classes: a cut that is too fine lowers `mates` and
`same` alike, classes that are not told apart raise `mates` and `different` alike. What must hold is
that known classes are like novel ones.

An image counts as 1 / the size of its cluster, so that no few large classes decide. N images, L of
them labeled with C known classes. Arrays of C + 1 hold a value from all known classes, then one
with each of them left out.
"""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.tree import Tree

STEP = 2**0.25
"""From one cut to the next."""

N_CUTS = 15
"""Cuts, from the K found so far to about 12 times as many."""

N_ROUNDS = 3
"""How often cuts are laid around the K found so far."""

MIN_CLASSES = 3
"""Known classes from which on one can be left out."""

MIN_SPREAD = 0.25
"""Variance of the labels per class over their mean, below which they were counted out class by
class and say nothing about class sizes. Where images are labeled regardless of class it is the
unlabeled share or more."""

MIN_ERROR = 0.01
"""Standard error of log K that is believed at least, however alike known classes are."""

SIZES_TRUSTED = 0.5
"""How much of the spread in class sizes is believed where labels were counted out class by class,
and the sizes of clusters stand in for it."""


@dataclass(frozen=True, eq=False, slots=True)
class PairTerms:
    """K · below = above, but for chance."""

    above: Floats
    """(C + 1,)"""
    below: Floats
    """(C + 1,)"""
    labels_per_class: float
    """L / C."""

    def log_likelihood(self, n_clusters: Ints) -> Floats:
        """(M,) log of the chance to see these terms, for each K and any `below`: Student's t of
        above - K · below.

        The standard error is the jackknife's, which is for classes drawn from endlessly many. Of K
        classes C are known, so the part of its square that is between classes is smaller; the other
        is chance in which images are labeled.
        """
        k = n_clusters.astype(np.float64)
        n = len(self.above) - 1
        off = self.above[0] - k * self.below[0]
        covariance = (n - 1) * np.cov(self.above[1:], self.below[1:], bias=True)
        square = covariance[0, 0] - 2 * k * covariance[0, 1] + k**2 * covariance[1, 1]
        between = 1 - 1 / self.labels_per_class
        square = square * (1 - between * n / k) + (MIN_ERROR * self.above[0]) ** 2
        logs: Floats = -np.log(square) / 2 - n / 2 * np.log1p(off**2 / square / (n - 1))
        return logs


def pair_terms(tree: Tree, known: Ints) -> PairTerms | None:
    """What pairs say, by labels (N,) 0 … C-1, -1 for unlabeled; None where there are too few of
    them, or of images, or where pairs of one class meet no more often than others.

    Cost: some 20 cuts, and a few sums over the labeled images for each.
    """
    labels: Floats = np.bincount(known[known != UNLABELED]).astype(np.float64)  # (C,)
    n_classes = len(labels)
    if n_classes < MIN_CLASSES or (labels > 1).sum() < 2 or tree.n_distinct < 2 * n_classes:
        return None
    is_drawn = bool(labels.var(ddof=1) >= MIN_SPREAD * labels.mean())
    made: dict[int, _Cut] = {}
    k = 2.0 * n_classes
    for _ in range(N_ROUNDS):
        cuts = _cuts(k, n_classes, tree.n_distinct)
        made |= {n: _Cut.of(tree.cut(n), known, n_classes) for n in cuts if n not in made}
        sizes: Floats = labels  # (C,) up to a factor
        if not is_drawn:
            nearest = made[min(cuts, key=lambda n: abs(n - k))]
            sizes = _class_sizes(nearest, labels, tree.n_leaves)
        # (2, C + 1) each
        terms = [_terms(made[n], labels, sizes, is_drawn, tree.n_leaves) for n in cuts]
        above, below = np.sum(terms, axis=0)  # (C + 1,) each
        if below[0] > 0:
            k = float(np.clip(above[0] / below[0], n_classes, tree.n_distinct))
        else:
            k = float(tree.n_distinct if above[0] > 0 else n_classes)
    if above[0] <= 0:
        return None
    return PairTerms(above, below, float(labels.mean()))


def _cuts(center: float, n_classes: int, n_distinct: int) -> list[int]:
    """Numbers of clusters around K, at least C, most of whose clusters are not single images."""
    wanted = center * STEP ** np.arange(N_CUTS)
    most = max(n_distinct // 3, n_classes)
    cuts: list[int] = np.unique(wanted.round().clip(n_classes, most).astype(int)).tolist()
    return cuts


@dataclass(frozen=True, eq=False, slots=True)
class _Cut:
    """A cut, and its labeled images: a row per cluster and class that has some in it."""

    sizes: Floats
    """(clusters,) images, labeled or not."""
    cluster: Ints
    """(rows,)"""
    known: Ints
    """(rows,) the class, 0 … C-1."""
    count: Floats
    """(rows,) labeled images."""

    @classmethod
    def of(cls, clusters: Ints, known: Ints, n_classes: int) -> "_Cut":
        labeled = known != UNLABELED
        cells, count = np.unique(clusters[labeled] * n_classes + known[labeled], return_counts=True)
        sizes = np.bincount(clusters).astype(np.float64)
        return cls(sizes, cells // n_classes, cells % n_classes, count.astype(np.float64))

    def by_class(self, values: Floats) -> Floats:
        """(C,) sums of (rows,) values; every class has a row."""
        sums: Floats = np.bincount(self.known, values).astype(np.float64)
        return sums

    def by_cluster(self, values: Floats) -> Floats:
        """(rows,) sums of (rows,) values over each row's cluster."""
        sums: Floats = np.bincount(self.cluster, values).astype(np.float64)
        return sums[self.cluster]


def _less_one(values: Floats) -> Floats:
    """The sum of (C,) values, and that without each of them: (C + 1,)."""
    total = values.sum()
    return np.concatenate([[total], total - values])


def _terms(cut: _Cut, labels: Floats, sizes: Floats, is_drawn: bool, n_images: int) -> Floats:
    """(2, C + 1) the terms that K is a ratio of, by one cut."""
    own, same, different = _chances(cut, labels, sizes)
    # The mean over images that count 1 / the size of their cluster.
    mates = n_images / len(cut.sizes) - 1
    surplus = mates - (n_images - 1) * different  # (n - 1) · (same - different)
    ahead = same - different
    per_class = _less_one(sizes) / _less_one(np.ones(len(sizes)))  # the mean size
    others = sizes
    below: Floats = surplus + ahead
    if is_drawn:
        # A label has share · (n - 1) others of its class in the mean, K = N · share / labels per
        # class; else n is the mean over images, K = N / n with the mean over classes.
        others = sizes - 1
        below = surplus
    above = ahead * _less_one(own * others) / _less_one(own) / per_class * n_images
    return np.stack([above, below]) / mates


def _chances(cut: _Cut, labels: Floats, sizes: Floats) -> tuple[Floats, Floats, Floats]:
    """The weight of each class (C,), and the chances (C + 1,) that images of one class, and of two,
    share a cluster."""
    # (rows,) that the labels stand for, up to a factor
    images = cut.count * (sizes / labels)[cut.known]
    weight = images / cut.sizes[cut.cluster]  # (rows,)
    own = cut.by_class(weight)  # (C,)
    judged = np.where(labels > 1, sizes, 0)  # (C,)
    pairs = cut.by_class(weight * (cut.count - 1)) / np.maximum(labels - 1, 1)  # (C,)
    same = _less_one(pairs * judged) / _less_one(own * judged)
    # (C,) pairs with other classes, by their first
    ahead = cut.by_class(weight * (cut.by_cluster(images) - images))
    # (C,) and by their second image
    behind = cut.by_class(images * (cut.by_cluster(weight) - weight))
    mixed = np.concatenate([[ahead.sum()], ahead.sum() - ahead - behind])
    return own, same, mixed / (_less_one(own) * _less_one(sizes) - _less_one(own * sizes))


def _class_sizes(cut: _Cut, labels: Floats, n_images: int) -> Floats:
    """(C,) sizes of the known classes up to a factor, by the clusters that hold their labels.

    The fewer images of a cluster are of one class, the less its size says: then sizes are drawn
    together.
    """
    count = cut.count
    pairs = labels * (labels - 1)
    mates = cut.by_class(count * (cut.sizes[cut.cluster] - 1)) / labels  # (C,)
    together = cut.by_class(count * (count - 1))  # (C,)
    others = cut.by_class(count * (cut.by_cluster(count) - count))  # (C,)
    # Mates of other classes.
    strangers = (n_images - 1) * others.sum() / (labels * (labels.sum() - labels)).sum()
    # (C,) as if two more pairs were the mean
    same = (together + 2 * together.sum() / pairs.sum()) / (pairs + 2)
    purity = np.clip(1 - strangers / mates.mean(), 0, 1)
    sizes = 1 + np.maximum(mates - strangers, 0.05 * mates) / np.maximum(
        same - strangers / n_images, 0.05
    )
    relative: Floats = np.exp(SIZES_TRUSTED * purity * (np.log(sizes) - np.log(sizes).mean()))
    return relative
