"""How many clusters: one sweep over every cut of a tree, judged by labeled images alone (paper, section 4.3).

For every K from the number of known classes up, the clusters of the cut are matched to the classes on the labeled
images, and only on these. A sweep walks down the merges: each adds one row of the contingency table to another and
repairs the matching, nothing is counted or solved again.

The paper takes the K of the highest accuracy. That K errs low and jumps about: joining a known with a novel category
costs no labeled image, so the curve is nearly flat below the truth, and its highest point is a matter of single images.
The other rules are made to be steadier; `RULES` names them all. They ask for more labels: where these are too few for
the rule asked for, a more modest one decides, and the estimate says which.

N leaves, L of them labeled, with C known classes; M cuts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Bools, Floats, Ints, as_count, as_labels
from shoal.clustering.matching import RunningMatching
from shoal.clustering.tree import Merges, Tree
from shoal.errors import DataError, UnknownName, UsageError

DEFAULT_MAX_CLUSTERS = 1000
"""Largest K tried by default, or ten times the known classes where that is more."""

MIN_FIT_LABELS = 5
"""Labeled images from which on a class has a say in `fit`. One with a single labeled image would be best off with that
image in a cluster of its own, and one with a few with each of them so: `fit` then rises up to the largest K tried."""

SURE_FIT_LABELS = 8
"""Labeled images of a class from which on `fit` need not be checked by other rules: with fewer it still takes far too
many clusters now and then."""


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
    """(M,) mean of √(recall · labeled share) in the class's best cluster, over the classes with
    `MIN_FIT_LABELS` labeled images or more; NaN where there is none. See the rule "precision"."""
    gap: Floats
    """(M,) log of the height at which this cut's clusters begin to be joined over that of the last merge it keeps."""
    class_sizes: Ints
    """(C,) labeled images of each known class."""
    n_distinct: int
    """Images that differ, labeled or not: N without copies."""

    @property
    def n_labeled(self) -> int:
        """Labeled images, L."""
        return int(self.class_sizes.sum())

    @property
    def n_classes(self) -> int:
        """Known classes, C."""
        return len(self.class_sizes)


@dataclass(frozen=True, eq=False, slots=True)
class NClustersEstimate:
    """A number of clusters, the accuracy of its cut on the labeled images, and the curve it was read from."""

    n_clusters: int
    accuracy: float
    rule: str
    """The rule that decided: another than the one asked for where labels are too few for that."""
    curve: Curve


def estimate_n_clusters(
    tree: Tree, labels: ArrayLike, *, rule: str = "balance", max_clusters: int | None = None
) -> NClustersEstimate:
    """Estimate K from a tree and the labels a user has: (N,), -1 for unlabeled.

    `rule` is a name in `RULES`; `choose` says when another decides. No K above the number of distinct points is tried.
    Cost: one pass over the last `max_clusters` merges (default 1,000 or ten times the known classes; at most N); a
    table of `max_clusters` × C counts.
    """
    check_rule(rule)
    curve = accuracy_curve(tree, labels, max_clusters=max_clusters)
    chosen, decided = choose(curve, rule)
    return NClustersEstimate(chosen, float(curve.accuracy[chosen - curve.n_clusters[0]]), decided, curve)


def check_rule(rule: str) -> None:
    """Refuse what is no name in `RULES`."""
    if not isinstance(rule, str) or rule not in RULES:
        raise UnknownName("rule for the number of clusters", str(rule), RULES)


def choose(curve: Curve, rule: str) -> tuple[int, str]:
    """Read K off a curve by `rule` or, where labels are too few for it, by the next in `NEEDS`; return both."""
    while rule in NEEDS and not NEEDS[rule][0](curve):
        rule = NEEDS[rule][1]
    return round(RULES[rule](curve)), rule


def accuracy_curve(tree: Tree, labels: ArrayLike, *, max_clusters: int | None = None) -> Curve:
    """Sweep every cut from `max_clusters` down to the number of known classes; the arguments are those above."""
    if not isinstance(tree, Tree):
        raise UsageError(f"tree: found {type(tree).__name__}, expected a Tree; pass Tree(linkage) of a linkage matrix")
    known = known_classes(as_labels(labels, tree.n_leaves, name="labels"))  # (N,) 0 … C-1, -1 for unlabeled
    n_classes = int(known.max()) + 1
    wanted = max(DEFAULT_MAX_CLUSTERS, 10 * n_classes) if max_clusters is None else max_clusters
    limit = min(as_count(wanted, name="max_clusters"), tree.n_leaves)
    if limit < n_classes:
        raise UsageError(f"max_clusters: found {wanted} with {n_classes} known classes, expected {n_classes} or more")
    merges = tree.merges(max(min(limit, tree.n_distinct), n_classes))
    n_clusters = np.arange(n_classes, len(merges) + 2)
    class_sizes = np.bincount(known[known != UNLABELED], minlength=n_classes)
    accuracy, occupied, fit = _sweep(merges, known, n_classes)
    gap = _gaps(tree, n_clusters)
    return Curve(n_clusters, accuracy / class_sizes.sum(), occupied, fit, gap, class_sizes, tree.n_distinct)


def _sweep(merges: Merges, known: Ints, n_classes: int) -> tuple[Ints, Ints, Floats]:
    """For each cut, K ascending: matched labeled images, clusters that hold any, and the fit; (M,) each."""
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
    total, held, fit = map(np.array, zip(*rows[::-1], strict=True))
    return total, held, fit


def _gaps(tree: Tree, n_clusters: Ints) -> Floats:
    """(M,) log(next merge / last merge done) at each K; 0 where nothing but copies is joined yet."""
    heights = tree.heights
    done = len(heights) - n_clusters  # (M,) index of the last merge done
    last = np.where(done < 0, 0.0, heights[np.maximum(done, 0)])
    gaps: Floats = np.zeros(len(n_clusters))
    np.log(np.divide(heights[done + 1], last, out=np.ones_like(gaps), where=last > tree.rounding), out=gaps)
    return gaps


class _Fits:
    """√(recall · labeled share) of the best cluster of each class with enough labeled images, J of them, kept up to
    date while clusters are merged."""

    def __init__(self, counts: Ints, sizes: Ints) -> None:
        self.counts = counts  # (C, clusters) the table of the running matching, which merges it
        self.judged = np.flatnonzero(counts.sum(axis=1) >= MIN_FIT_LABELS)  # (J,)
        self.sizes = np.maximum(sizes, 1).astype(np.float64)  # (clusters,) all images, labeled or not
        held = counts[self.judged]  # (J, clusters)
        self.class_sizes = held.sum(axis=1)  # (J,)
        self.products = held**2 / (self.class_sizes[:, None] * self.sizes)  # (J, clusters)
        self.best = self.products.argmax(axis=1)  # (J,)

    def merge(self, kept: int, gone: int) -> None:
        self.sizes[kept] += self.sizes[gone]
        self.products[:, gone] = 0
        self.products[:, kept] = self.counts[self.judged, kept] ** 2 / (self.class_sizes * self.sizes[kept])
        classes = np.arange(len(self.best))
        lost = (self.best == kept) | (self.best == gone)
        self.best[self.products[:, kept] > self.products[classes, self.best]] = kept
        self.best[lost] = self.products[lost].argmax(axis=1)

    def mean(self) -> float:
        if len(self.best) == 0:
            return float("nan")
        return float(np.sqrt(self.products[np.arange(len(self.best)), self.best]).mean())


def known_classes(labels: Ints) -> Ints:
    """Renumber the classes that occur 0 … C-1."""
    classes = np.unique(labels[labels != UNLABELED])
    if len(classes) == 0:
        raise DataError("labels: all are -1, so nothing says how many clusters there are; label images or give K")
    if len(classes) == 1:
        raise DataError(
            "labels: only one class is labeled, and one class never asks for a second cluster; "
            "label images of another class or give the number of clusters"
        )
    return np.where(labels == UNLABELED, UNLABELED, np.searchsorted(classes, labels))


def _best_accuracy(curve: Curve) -> float:
    """The K of the highest labeled accuracy, the smallest on ties: the paper's rule."""
    return float(curve.n_clusters[curve.accuracy.argmax()])


def _plateau(curve: Curve) -> float:
    """The mean of log K over the curve's plateau, each K weighted by how nearly it reaches the best accuracy.

    The accuracy a of L images has the standard error s = √(a(1-a)/L), so a K within about s of the best is as good as
    the best. Each K weighs exp(-½·((best - accuracy)/s)²) / K: a likelihood times a prior that, as for any scale, is
    uniform in log K. The mean of log K under these weights averages over the plateau instead of taking its accidental
    top, and approaches the paper's K as labeled images grow in number.
    """
    best = curve.accuracy.max()
    error = np.sqrt(max(best * (1 - best), 1 / curve.n_labeled) / curve.n_labeled)  # never 0: one image in L
    weights = np.exp(-0.5 * ((best - curve.accuracy) / error) ** 2) / curve.n_clusters
    return float(np.exp(np.average(np.log(curve.n_clusters), weights=weights)))


def _precision(curve: Curve) -> float:
    """The K of the highest accuracy · fit, where fit also charges for unlabeled images that a class swallows.

    If labels are missing at random within each class, a cluster's share of labeled images of class c is its precision
    for c times an unknown constant, which an argmax does not see. recall · share is then the criterion r²/Pr(f = 1) of
    learning from positive and unlabeled examples, and falls when a known class is joined with a novel one.
    """
    return float(curve.n_clusters[(curve.accuracy * curve.fit).argmax()])


def _occupancy(curve: Curve) -> float:
    """The K of the highest accuracy · (1 - |occupied - C| / occupied): labeled images should fill C clusters."""
    penalty = np.abs(curve.occupied - curve.n_classes) / curve.occupied
    return float(curve.n_clusters[(curve.accuracy * (1 - penalty)).argmax()])


def _balance(curve: Curve) -> float:
    """The geometric mean of the plateau's K and the precision's K, whose errors pull in opposite directions.

    The plateau errs low, because joining known with novel costs it nothing. Precision errs high where classes overlap,
    because a pure core without its blurred edge scores well. Between the two it is steadier than either.
    """
    return float(np.sqrt(_plateau(curve) * _precision(curve)))


def _median(curve: Curve) -> float:
    """The median in log K of what plateau, gap and, where labels suffice for it, precision find.

    With few labels each of the three fails now and then, but seldom two in the same direction.
    """
    found = [_plateau(curve), _gap(curve)]
    if _most_have(MIN_FIT_LABELS, curve):
        found.append(_precision(curve))
    return float(np.exp(np.median(np.log(found))))


def _gap(curve: Curve) -> float:
    """The K between the known classes and ten times as many whose clusters stand out most in the tree.

    Of labels it takes the number of known classes alone, for collections that hardly have any. Most clusters are
    expected to hold two different images or more: further down the largest gap is that between near copies and
    everything else.
    """
    most = max(min(10 * curve.n_classes, curve.n_distinct // 2), curve.n_classes)
    return float(curve.n_clusters[curve.gap[: most - curve.n_classes + 1].argmax()])


RULES: dict[str, Callable[[Curve], float]] = {
    "paper": _best_accuracy,
    "balance": _balance,
    "plateau": _plateau,
    "precision": _precision,
    "median": _median,
    "occupancy": _occupancy,
    "gap": _gap,
}
"""Rules that read K off a curve, not rounded yet; of labels they see the given ones alone. "paper" is section 4.3's."""


def _most_have(n_labels: int, curve: Curve) -> bool:
    """Whether half of the known classes, and at least two, have so many labeled images."""
    return bool((curve.class_sizes >= n_labels).sum() >= max(2, curve.n_classes / 2))


def _has_three_each(curve: Curve) -> bool:
    """Whether there are three labeled images per known class: single ones are never parted, and end no plateau."""
    return curve.n_labeled >= 3 * curve.n_classes


NEEDS: dict[str, tuple[Callable[[Curve], bool], str]] = {
    "balance": (partial(_most_have, SURE_FIT_LABELS), "median"),
    "precision": (partial(_most_have, SURE_FIT_LABELS), "median"),
    "median": (_has_three_each, "gap"),
    "plateau": (_has_three_each, "gap"),
}
"""Whether the labels suffice for a rule, and the one that decides where they do not: chosen on half of the classes of
CUB and CIFAR-100, half of the digits and overlapping clouds, and compared on the other halves
(benchmarks/results/2026-11-15_2-core-cpu_n_clusters_rules.md)."""
