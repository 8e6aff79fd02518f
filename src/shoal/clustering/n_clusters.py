"""How many clusters: one sweep over every cut of a tree, judged by labeled images alone (paper, section 4.3).

For every K from the number of known classes up, the clusters of the cut are matched to the classes on the labeled
images, and only on these. A sweep walks down the merges: each adds one row of the contingency table to another and
repairs the matching, nothing is counted or solved again.

The paper takes the K of the highest accuracy. That K errs low and jumps about: joining a known with a novel category
costs no labeled image, so the curve is nearly flat below the truth, and its highest point is a matter of single images.
The other rules are made to be steadier; `RULES` names them all.

N leaves, L of them labeled, with C known classes; M cuts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Bools, Floats, Ints, as_labels
from shoal.clustering.matching import RunningMatching
from shoal.clustering.tree import Merges, Tree
from shoal.errors import DataError, UnknownName, UsageError

DEFAULT_MAX_CLUSTERS = 1000
"""Largest K tried by default, or ten times the known classes where that is more."""


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """What the labeled images say about each number of clusters, K ascending."""

    n_clusters: Ints
    """(M,) K of each cut, from the number of known classes up."""
    accuracy: Floats
    """(M,) share of labeled images whose cluster is matched to their class."""
    occupied: Ints
    """(M,) clusters that hold a labeled image."""
    fit: Floats
    """(M,) mean over classes of √(recall · labeled share) in the class's best cluster; see the rule "precision"."""
    n_labeled: int
    """Labeled images, L."""
    n_classes: int
    """Known classes, C."""


@dataclass(frozen=True, eq=False, slots=True)
class NClustersEstimate:
    """A number of clusters, the accuracy of its cut on the labeled images, and the curve it was read from."""

    n_clusters: int
    accuracy: float
    rule: str
    curve: Curve


def estimate_n_clusters(
    tree: Tree, labels: ArrayLike, *, rule: str = "balance", max_clusters: int | None = None
) -> NClustersEstimate:
    """Estimate K from a tree and the labels a user has: (N,), -1 for unlabeled.

    `rule` is a name in `RULES`. Cost: one pass over the last `max_clusters` merges (default 1,000 or ten times the
    known classes, at most N); a table of `max_clusters` × C counts.
    """
    if rule not in RULES:
        raise UnknownName("rule for the number of clusters", rule, RULES)
    curve = accuracy_curve(tree, labels, max_clusters=max_clusters)
    chosen = RULES[rule](curve)
    return NClustersEstimate(chosen, float(curve.accuracy[chosen - curve.n_clusters[0]]), rule, curve)


def accuracy_curve(tree: Tree, labels: ArrayLike, *, max_clusters: int | None = None) -> Curve:
    """Sweep every cut from `max_clusters` down to the number of known classes; the arguments are those above."""
    known = _known_classes(as_labels(labels, tree.n_leaves, name="labels"))  # (N,) 0 … C-1, -1 for unlabeled
    n_classes = int(known.max()) + 1
    limit = min(tree.n_leaves, max(DEFAULT_MAX_CLUSTERS, 10 * n_classes)) if max_clusters is None else max_clusters
    if not n_classes <= limit <= tree.n_leaves:
        raise UsageError(
            f"max_clusters: found {limit} with {n_classes} known classes and {tree.n_leaves} images, "
            f"expected {n_classes} to {tree.n_leaves}"
        )
    return _sweep(tree.merges(limit), known, n_classes)


def _sweep(merges: Merges, known: Ints, n_classes: int) -> Curve:
    labeled = known != UNLABELED
    n_start = len(merges) + 1
    cells = np.bincount(merges.start[labeled] * n_classes + known[labeled], minlength=n_start * n_classes)
    matching = RunningMatching(cells.reshape(n_start, n_classes))
    fits = _Fits(matching.counts, np.bincount(merges.start, minlength=n_start + n_classes))
    occupied: Bools = np.asarray(matching.counts.any(axis=0))  # (clusters,)
    rows = [(matching.total, int(occupied.sum()), fits.mean())]
    for kept, gone in zip(merges.kept[: n_start - n_classes].tolist(), merges.gone.tolist(), strict=False):
        matching.merge(kept, gone)
        occupied[kept] |= occupied[gone]
        occupied[gone] = False
        fits.merge(kept, gone)
        rows.append((matching.total, int(np.count_nonzero(occupied)), fits.mean()))
    total, held, fit = map(np.array, zip(*rows[::-1], strict=True))  # (M,) each
    n_labeled = int(labeled.sum())
    return Curve(np.arange(n_classes, n_start + 1), total / n_labeled, held, fit, n_labeled, n_classes)


class _Fits:
    """√(recall · labeled share) of every class's best cluster, kept up to date while clusters are merged."""

    def __init__(self, counts: Ints, sizes: Ints) -> None:
        self.counts = counts  # (C, clusters) the table of the running matching, which merges it
        self.sizes = np.maximum(sizes, 1).astype(np.float64)  # (clusters,) all images, labeled or not
        self.class_sizes = counts.sum(axis=1)  # (C,)
        self.products = counts**2 / (self.class_sizes[:, None] * self.sizes)  # (C, clusters)
        self.best = self.products.argmax(axis=1)  # (C,)

    def merge(self, kept: int, gone: int) -> None:
        self.sizes[kept] += self.sizes[gone]
        self.products[:, gone] = 0
        self.products[:, kept] = self.counts[:, kept] ** 2 / (self.class_sizes * self.sizes[kept])
        classes = np.arange(len(self.best))
        lost = (self.best == kept) | (self.best == gone)
        self.best[self.products[:, kept] > self.products[classes, self.best]] = kept
        self.best[lost] = self.products[lost].argmax(axis=1)

    def mean(self) -> float:
        return float(np.sqrt(self.products[np.arange(len(self.best)), self.best]).mean())


def _known_classes(labels: Ints) -> Ints:
    """Renumber the classes that occur 0 … C-1."""
    classes = np.unique(labels[labels != UNLABELED])
    if len(classes) == 0:
        raise DataError("labels: all are -1, so nothing says how many clusters there are; label images or give K")
    if len(classes) == 1:
        raise DataError(
            f"labels: only class {classes[0]} is labeled, and one class never asks for a second cluster; "
            "label images of another class or give the number of clusters"
        )
    return np.where(labels == UNLABELED, UNLABELED, np.searchsorted(classes, labels))


def _best_accuracy(curve: Curve) -> int:
    """The K of the highest labeled accuracy, the smallest on ties: the paper's rule."""
    return int(curve.n_clusters[curve.accuracy.argmax()])


def _plateau(curve: Curve) -> int:
    """The mean of log K over the curve's plateau, each K weighted by how nearly it reaches the best accuracy.

    The accuracy a of L images has the standard error s = √(a(1-a)/L), so a K within about s of the best is as good as
    the best. Each K weighs exp(-½·((best - accuracy)/s)²) / K: a likelihood times a prior that, as for any scale, is
    uniform in log K. The mean of log K under these weights averages over the plateau instead of taking its accidental
    top, and approaches the paper's K as labeled images grow in number.
    """
    best = curve.accuracy.max()
    error = np.sqrt(max(best * (1 - best), 1 / curve.n_labeled) / curve.n_labeled)  # never 0: one image in L
    weights = np.exp(-0.5 * ((best - curve.accuracy) / error) ** 2) / curve.n_clusters
    return round(float(np.exp(np.average(np.log(curve.n_clusters), weights=weights))))


def _precision(curve: Curve) -> int:
    """The K of the highest accuracy · fit, where fit also charges for unlabeled images that a class swallows.

    If labels are missing at random within each class, a cluster's share of labeled images of class c is its precision
    for c times an unknown constant, which an argmax does not see. recall · share is then the criterion r²/Pr(f = 1) of
    learning from positive and unlabeled examples, and falls when a known class is joined with a novel one.
    """
    return int(curve.n_clusters[(curve.accuracy * curve.fit).argmax()])


def _occupancy(curve: Curve) -> int:
    """The K of the highest accuracy · (1 - |occupied - C| / occupied): labeled images should fill C clusters."""
    penalty = np.abs(curve.occupied - curve.n_classes) / curve.occupied
    return int(curve.n_clusters[(curve.accuracy * (1 - penalty)).argmax()])


def _balance(curve: Curve) -> int:
    """The geometric mean of the plateau's K and the precision's K, whose errors pull in opposite directions.

    The plateau errs low, because joining known with novel costs it nothing. Precision errs high where classes overlap,
    because a pure core without its blurred edge scores well. Between the two it is steadier than either.
    """
    return round(float(np.sqrt(_plateau(curve) * _precision(curve))))


RULES: dict[str, Callable[[Curve], int]] = {
    "paper": _best_accuracy,
    "balance": _balance,
    "plateau": _plateau,
    "precision": _precision,
    "occupancy": _occupancy,
}
"""Rules that choose K from a curve; all see labeled images only. "paper" is section 4.3's."""
