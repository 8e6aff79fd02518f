"""The labeled accuracy of every cut of a tree (section 4.3 of the CMS paper).

For every K the clusters are matched to the classes of the labeled images. One sweep goes
through the merges: each adds one row of the contingency table to another and updates the matching,
so nothing is recomputed from scratch.

Shapes: N leaves, L of them labeled, with C known classes; M cuts, K clusters in a cut.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Floats, Ints, as_count, as_labels
from shoal.clustering.class_pairs import PairTerms, pair_terms
from shoal.clustering.tree import Tree
from shoal.errors import DataError, UsageError, count

# Smallest number of labeled images of a class that is included in `fit`. For a class with fewer
# labeled images, `fit` is highest if each of these images is a cluster of its own.
MIN_FIT_LABELS = 5


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
