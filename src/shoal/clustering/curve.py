"""What labeled images say about each number of clusters: one sweep over every cut of a tree (paper,
section 4.3).

For every K the clusters of the cut are matched to the classes on the labeled images, and only on
these. A sweep walks down the merges: each adds one row of the contingency table to another and
repairs the matching, nothing is counted or solved again.

N leaves, L of them labeled, with C known classes; M cuts, K clusters of one of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Floats, Ints, as_count, as_labels
from shoal.clustering.class_pairs import PairTerms, pair_terms
from shoal.clustering.tree import Merges, Tree
from shoal.errors import DataError, UsageError
from shoal.words import count

DEFAULT_MAX_CLUSTERS = 1000
"""Largest K tried by default, or ten times the known classes where that is more."""

MIN_FIT_LABELS = 5
"""Labeled images from which on a class has a say in `fit`. One with a single labeled image would be
best off with that image in a cluster of its own, and one with a few with each of them so: `fit`
then rises up to the largest K tried."""


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """What the labeled images say about each number of clusters, K ascending."""

    n_clusters: Ints
    """(M,) K of each cut, from the number of known classes up, within the range asked for."""
    accuracy: Floats
    """(M,) share of labeled images whose cluster is matched to their class."""
    fit: Floats
    """(M,) mean of √(recall · labeled share) in the class's best cluster, over the classes with
    `MIN_FIT_LABELS` labeled images or more; NaN where there is none. See `n_clusters.precision`."""
    gap: Floats
    """(M,) log of the height at which this cut's clusters begin to be joined over that of the last
    merge it keeps."""
    class_sizes: Ints
    """(C,) labeled images of each known class."""
    n_distinct: int
    """Images that differ, labeled or not: N without copies."""
    pairs: PairTerms | None = None
    """What pairs of labeled images say about K; None where labels are too few."""

    @property
    def n_labeled(self) -> int:
        """Labeled images, L."""
        return int(self.class_sizes.sum())

    @property
    def n_classes(self) -> int:
        """Known classes, C."""
        return len(self.class_sizes)


def accuracy_curve(
    tree: Tree,
    labels: ArrayLike,
    *,
    min_clusters: int | None = None,
    max_clusters: int | None = None,
) -> Curve:
    """Sweep every cut from `max_clusters` down to `min_clusters`, and to the number of known
    classes at most.

    By default from 1,000, or ten times the known classes; no K above the number of distinct points
    is tried.
    """
    if not isinstance(tree, Tree):
        raise UsageError(
            f"tree: found {type(tree).__name__}, expected a Tree; pass Tree(linkage) of a linkage "
            "matrix"
        )
    # (N,) 0 … C-1, -1 for unlabeled
    labels = as_labels(labels, tree.n_leaves, name="labels")
    known = known_classes(labels, min_clusters, max_clusters)
    class_sizes = np.bincount(known[known != UNLABELED])
    least, most = _range(tree, len(class_sizes), min_clusters, max_clusters)
    n_clusters = np.arange(least, most + 1)
    n_right, fit = _sweep(tree.merges(most), known, len(class_sizes), most - least)
    return Curve(
        n_clusters,
        n_right / class_sizes.sum(),
        fit,
        _gaps(tree, n_clusters),
        class_sizes,
        tree.n_distinct,
        pair_terms(tree, known),
    )


def usual_most(n_classes: int) -> int:
    """The largest K tried where none is given."""
    return max(DEFAULT_MAX_CLUSTERS, 10 * n_classes)


def _range(tree: Tree, n_classes: int, least: int | None, most: int | None) -> tuple[int, int]:
    """The smallest and the largest K to try."""
    if most is None:
        most = max(usual_most(n_classes), least or 0)
    last = max(min(as_count(most, name="max_clusters"), tree.n_distinct), n_classes)
    first = max(as_count(least or n_classes, name="min_clusters"), n_classes)
    if first > last:
        raise UsageError(
            f"min_clusters: found {first}, expected at most {last}, the largest number of clusters "
            f"that may be tried of {count(tree.n_distinct, 'distinct image')}"
        )
    return first, last


def _sweep(merges: Merges, known: Ints, n_classes: int, n_steps: int) -> tuple[Ints, Floats]:
    """Matched labeled images and the fit at each cut, K ascending: (M,) each."""
    labeled = known != UNLABELED
    n_start = len(merges) + 1
    cells = np.bincount(
        merges.start[labeled] * n_classes + known[labeled], minlength=n_start * n_classes
    )
    matching = RunningMatching(cells.reshape(n_start, n_classes))
    fits = _Fits(matching.counts, np.bincount(merges.start, minlength=n_start + n_classes))
    totals = [matching.total]
    means = [fits.mean()]
    for kept, gone in zip(merges.kept[:n_steps].tolist(), merges.gone.tolist(), strict=False):
        matching.merge(kept, gone)
        fits.merge(kept, gone)
        totals.append(matching.total)
        means.append(fits.mean())
    return np.array(totals[::-1]), np.array(means[::-1])


def _gaps(tree: Tree, n_clusters: Ints) -> Floats:
    """(M,) log(next merge / last merge done) at each K; 0 where nothing but copies is joined
    yet."""
    heights = tree.heights
    done = len(heights) - n_clusters  # (M,) index of the last merge done
    last = np.where(done < 0, 0.0, heights[np.maximum(done, 0)])
    gaps: Floats = np.zeros(len(n_clusters))
    np.log(
        np.divide(heights[done + 1], last, out=np.ones_like(gaps), where=last > tree.rounding),
        out=gaps,
    )
    return gaps


class RunningMatching:
    """The best matching of a table of counts while pairs of its clusters are merged.

    Keeps the dual solution of the assignment problem: what each class earns and what each cluster
    costs, with earning + cost >= count for every pair, equality for matched ones and no cost for
    unmatched clusters. Then the earnings and costs add up to the value of the best matching. A
    merge disturbs only the classes that compete for the merged cluster; these are matched again
    along shortest augmenting paths, the rest stays.

    Args:
        counts: (K, C) images per cluster and class; the table is copied.

    Attributes:
        counts: (C, K + C) the table now, a row per class, C empty clusters at the end so that no
        class is left over.
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
        """Add cluster `gone` to cluster `kept`; `gone` stays as an empty cluster."""
        if self.counts[:, gone].any():
            self.counts[:, kept] += self.counts[:, gone]
            self.counts[:, gone] = 0
            for free in self._release(kept, gone):
                self._augment(free)

    @property
    def total(self) -> int:
        """Images that agree under the best matching."""
        return int(self._earning.sum() + self._cost.sum())

    def _release(self, *changed: int) -> list[int]:
        """Unmatch the changed clusters at cost 0, and whomever that lets earn more; return the
        unmatched classes."""
        open_clusters = list(changed)
        free = []
        while open_clusters:
            cluster = open_clusters.pop()
            self._cost[cluster] = 0
            owner = int(self._class_of[cluster])
            tempted = np.flatnonzero(self.counts[:, cluster] > self._earning).tolist()
            self._earning[tempted] = self.counts[tempted, cluster]
            for leaving in {owner, *tempted} - {-1}:
                left = int(self._cluster_of[leaving])
                if left >= 0:
                    self._cluster_of[leaving] = -1
                    self._class_of[left] = -1
                    free.append(leaving)
                    if self._cost[left] > 0:
                        open_clusters.append(left)
        return free

    def _augment(self, free: int) -> None:
        """Match a free class: the shortest path of reassignments to an unmatched cluster (Dijkstra
        on slack)."""
        slack = self._earning[free] + self._cost - self.counts[free]  # (K + C,) >= 0
        came_from = np.full(len(slack), free)
        is_matched = self._class_of >= 0
        far = np.iinfo(np.int64).max
        visited: list[int] = []
        reach = 2 * slack + is_matched  # of two equally near, the unmatched one ends the search
        while True:
            cluster = int(reach.argmin())
            owner = self._class_of[cluster]
            if owner < 0:
                break
            visited.append(cluster)
            reach[cluster] = far
            through = slack[cluster] + self._earning[owner] + self._cost - self.counts[owner]
            nearer = np.flatnonzero((through < slack) & (reach < far))
            slack[nearer] = through[nearer]
            came_from[nearer] = owner
            reach[nearer] = 2 * through[nearer] + is_matched[nearer]
        length = slack[cluster]
        gained = length - slack[visited]
        self._cost[visited] += gained
        self._earning[self._class_of[visited]] -= gained
        self._earning[free] -= length
        while True:
            owner = came_from[cluster]
            self._class_of[cluster] = owner
            self._cluster_of[owner], cluster = cluster, self._cluster_of[owner]
            if owner == free:
                return


class _Fits:
    """√(recall · labeled share) of the best cluster of each class with enough labeled images, J of
    them, kept up to date while clusters are merged."""

    def __init__(self, counts: Ints, sizes: Ints) -> None:
        self.counts = counts  # (C, clusters) the table of the running matching, which merges it
        self.judged = np.flatnonzero(counts.sum(axis=1) >= MIN_FIT_LABELS)  # (J,)
        # (clusters,) all images, labeled or not
        self.sizes = np.maximum(sizes, 1).astype(np.float64)
        held = counts[self.judged]  # (J, clusters)
        self.class_sizes = held.sum(axis=1)  # (J,)
        self.products = held**2 / (self.class_sizes[:, None] * self.sizes)  # (J, clusters)
        self.best = self.products.max(axis=1)  # (J,)

    def merge(self, kept: int, gone: int) -> None:
        self.sizes[kept] += self.sizes[gone]
        pair = [kept, gone]
        is_lost = (self.products[:, pair] == self.best[:, None]).any(axis=1)
        held = self.counts[self.judged, kept]
        self.products[:, gone] = 0
        self.products[:, kept] = held**2 / (self.class_sizes * self.sizes[kept])
        self.best = np.maximum(self.best, self.products[:, kept])
        self.best[is_lost] = self.products[is_lost].max(axis=1)

    def mean(self) -> float:
        if len(self.best) == 0:
            return float("nan")
        return float(np.sqrt(self.best).mean())


def known_classes(labels: Ints, least: int | None = None, most: int | None = None) -> Ints:
    """Renumber the classes that occur in `labels` (N,) 0 … C-1; refuse labels, and a range, by
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
            "labels: found one class, which never asks for a second cluster; label images of "
            "another class or give the number of clusters"
        )
    first = least or n_classes
    last = most or len(labels)
    if last < n_classes or first > len(labels):
        raise UsageError(
            f"n_clusters: found the range {first:,} to {last:,}, expected one between the "
            f"{n_classes:,} known categories and the {len(labels):,} images"
        )
    return np.where(labels == UNLABELED, UNLABELED, np.searchsorted(classes, labels))
