"""How many clusters: a number and the range it likely lies in, from a tree and the labels a user
has; and numbers of clusters as users give them.

The paper takes the K of the highest labeled accuracy (section 4.3). That K errs low and jumps
about: joining a known with a novel category costs no labeled image, so the curve is nearly flat
below the truth, and its highest point is a matter of single images. Other marks of the tree are
steadier, but each is biased, as the collection has it. Pairs of labeled images are not
(`class_pairs`), and know how sure they are. The default weighs both: with few labels the marks
decide more, with many the pairs, and where there are too few for pairs the marks alone.

A clustering that has no tree is made anew for each K, so that only a few are tried
(`search_n_clusters`).

N images, C known classes; M numbers of clusters tried.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Floats, Ints, as_count
from shoal.clustering.curve import (
    MIN_FIT_LABELS,
    Curve,
    accuracy_curve,
    known_classes,
    usual_most,
)
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.tree import Tree
from shoal.errors import UnknownName, UsageError

DEFAULT_RULE = "pairs"

RULES = (DEFAULT_RULE, "paper")
"""How K may be estimated: the default, and section 4.3."""

LEVEL = 0.8
"""The chance with which the number of classes lies in the interval."""

NONE_NEW = float(np.exp(-(1.645**2) / 2))
"""The interval begins at the known classes where these alone are at least so likely beside the
likeliest number, as a normal distribution has it at the end of its 90 % interval. Fewer are
impossible, so a tenth of the weight seldom lies on that one number."""

SURE_FIT_LABELS = 8
"""Labeled images of a class from which on `fit` need not be checked by the gap: with fewer it still
takes far too many clusters now and then."""

SCALES = {"balance": 0.15, "median": 0.2, "gap": 0.6}
"""By how much log K of each mark is off, about: the scale of Student's t."""

FREEDOM = 2
"""Degrees of freedom of that: few, for now and then a mark is far off."""

FEW_KNOWN = 2.0, 2.5
"""K in multiples of the known classes: from the first on the upper end of the interval moves to
that by pairs alone, from the second on it is that."""

MOST_PER_KNOWN = 20
"""K in multiples of the known classes that may lie in the interval by pairs alone."""

MAX_TRIES = 30
"""Most numbers of clusters tried where each costs a clustering; an interval of 1,000 is narrowed to
one number in about 15."""

EXPECTED = "expected a whole number, or a range such as 30-50, (30, 50) in Python"

Range = tuple[int, int]
"""The least and the largest number of clusters, both included."""


@dataclass(frozen=True, eq=False, slots=True)
class NClustersEstimate:
    """A number of clusters, the interval it likely lies in, and the curve both were read from."""

    n_clusters: int
    interval: Range
    """Ends of the 80 % interval, by the default rule whichever was asked for: another rule's K may
    lie outside."""
    accuracy: float
    """Of the cut into `n_clusters`, on the labeled images."""
    rule: str
    """The rule that decided; 'balance', 'median' or 'gap' where labels are too few for pairs."""
    curve: Curve
    range: Range | None = None
    """Where the user gave one: both numbers keep to it."""
    by_labels: Range | None = None
    """The interval without that range, where the two have no number in common."""

    def keeping_to(self, least: int | None, most: int | None) -> "NClustersEstimate":
        """The same with K and its interval moved into a range, where they lie outside of it."""
        k = keep_to(self.n_clusters, least, most)
        low, high = self.interval
        at = min(max(k - self.curve.n_clusters[0], 0), len(self.curve.accuracy) - 1)
        kept = replace(
            self,
            n_clusters=k,
            interval=(keep_to(low, least, most), keep_to(high, least, most)),
            accuracy=float(self.curve.accuracy[at]),
        )
        if least is None or most is None:
            return kept
        return replace(kept, range=(least, most), by_labels=_outside(self.interval, (least, most)))


def _outside(by_labels: Range, asked: Range) -> Range | None:
    """The interval that was found, where it has no number of the range that was asked for."""
    if by_labels[1] < asked[0] or by_labels[0] > asked[1]:
        return by_labels
    return None


def estimate_n_clusters(
    tree: Tree,
    labels: ArrayLike,
    *,
    rule: str = DEFAULT_RULE,
    min_clusters: int | None = None,
    max_clusters: int | None = None,
) -> NClustersEstimate:
    """Estimate the number of clusters from a tree and the labels a user has.

    No number below that of known classes, or above that of distinct points, is tried. Cost: one
    pass over the last `max_clusters` merges, and a table of `max_clusters` × C counts.

    Parameters
    ----------
    tree
        A Ward tree of the embeddings.
    labels
        (N,) known classes as numbers, -1 for unlabeled.
    rule
        'pairs', or 'paper' for section 4.3.
    min_clusters
        The number and its interval keep to this.
    max_clusters
        And to this; None: 1,000, or ten times the known classes.

    Returns
    -------
    NClustersEstimate
        The number, its 80 % interval, the rule that decided, and the curve that it was read from.

    Examples
    --------
    >>> import numpy as np, shoal
    >>> centers = 9 * np.eye(5)
    >>> X = np.repeat(centers, 20, axis=0) + np.random.default_rng(0).normal(size=(100, 5))
    >>> labels = np.where(np.arange(100) < 60, np.arange(100) // 20, -1)  # three classes of five
    >>> estimate = shoal.estimate_n_clusters(shoal.Tree(shoal.ward_linkage(X)), labels)
    >>> estimate.n_clusters, estimate.interval
    (5, (5, 5))
    """
    check_rule(rule)
    curve = accuracy_curve(tree, labels, min_clusters=min_clusters, max_clusters=max_clusters)
    chosen, decided = choose(curve, rule)
    accuracy = float(curve.accuracy[chosen - curve.n_clusters[0]])
    estimate = NClustersEstimate(chosen, interval(curve), accuracy, decided, curve)
    if min_clusters is None or max_clusters is None:
        return estimate
    # Cuts outside of the range say whether the labels agree with it.
    most = max(max_clusters, usual_most(curve.n_classes))
    free = interval(accuracy_curve(tree, labels, max_clusters=most))
    asked = (min_clusters, max_clusters)
    return replace(estimate, range=asked, by_labels=_outside(free, asked))


def check_rule(rule: str) -> None:
    """Refuse what is no name in `RULES`."""
    if not isinstance(rule, str) or rule not in RULES:
        raise UnknownName("rule for the number of clusters", str(rule), RULES)


def choose(curve: Curve, rule: str) -> tuple[int, str]:
    """Read K off a curve by a rule; returns what decided too, a mark where labels are too few for
    pairs."""
    if rule == "paper":
        return int(curve.n_clusters[curve.accuracy.argmax()]), rule  # the smallest on ties
    if curve.pairs is None:
        name, k, _ = read_mark(curve)
        return round(k), name
    return _quantile(curve, _weights(curve), 0.5), rule


def interval(curve: Curve) -> Range:
    """The ends of the interval in which the number of classes lies with the chance `LEVEL`."""
    weights = _weights(curve)
    share = (1 + LEVEL) / 2
    low = _quantile(curve, weights, 1 - share)
    high = _quantile(curve, weights, share)
    if curve.n_clusters[0] == curve.n_classes and weights[0] >= NONE_NEW * weights.max():
        low = curve.n_classes
    first, last = np.log(FEW_KNOWN)
    per_known = _quantile(curve, weights, 0.5) / curve.n_classes
    part = float(np.clip((np.log(per_known) - first) / (last - first), 0, 1))
    by_pairs = max(high, _quantile(curve, _weights_by_pairs(curve), share))
    return low, round(high ** (1 - part) * by_pairs**part)


def _quantile(curve: Curve, weights: Floats, share: float) -> int:
    at = int(np.searchsorted(np.cumsum(weights), share))
    return int(curve.n_clusters[min(at, len(weights) - 1)])


def _weights_by_pairs(curve: Curve) -> Floats:
    """(M,) how likely each K is by pairs alone, log K being uniform before; for the upper end where
    few are known.

    With few known classes the marks err low, by up to two thirds: novel classes that are joined
    cost them nothing. The likelihood of pairs falls as 1 / K by itself where they say nothing,
    which is uniform in log K.
    """
    k = curve.n_clusters
    logs = -np.log(k) if curve.pairs is None else curve.pairs.log_likelihood(k)
    is_tried = k <= max(MOST_PER_KNOWN * curve.n_classes, int(k[0]))
    return _in_sum_one(np.where(is_tried, logs, -np.inf))


def _weights(curve: Curve) -> Floats:
    """(M,) how likely each K is: a prior around the K of what can be read off the tree, times
    pairs."""
    log_k = np.log(curve.n_clusters)
    _, k, error = read_mark(curve)
    off = (log_k - np.log(k)) / error
    logs = -log_k - (FREEDOM + 1) / 2 * np.log1p(off**2 / FREEDOM)
    if curve.pairs is not None:
        logs += curve.pairs.log_likelihood(curve.n_clusters)
    return _in_sum_one(logs)


def _in_sum_one(logs: Floats) -> Floats:
    weights = np.exp(logs - logs.max())
    shares: Floats = weights / weights.sum()
    return shares


def read_mark(curve: Curve) -> tuple[str, float, float]:
    """The steadiest mark for which labels suffice: its name, its K, not rounded yet, and the error
    expected of its log.

    `balance` is the geometric mean of plateau and precision, whose errors pull in opposite
    directions: the plateau errs low, because joining known with novel costs it nothing; precision
    errs high where classes overlap, because a pure core without its blurred edge scores well. With
    fewer labels than that needs, `median` is the median in log K of plateau, gap and, where labels
    suffice for it, precision: each fails now and then, but seldom two in the same direction. With
    fewer than two labels per class there is `gap` alone: single images are never parted, and end no
    plateau. The expected error grows with the distance of the two marks that a K lies between.
    """
    if _most_have(SURE_FIT_LABELS, curve):
        name = "balance"
        parts = [plateau(curve), precision(curve)]
        k = float(np.sqrt(parts[0] * parts[1]))
    elif curve.n_labeled >= 2 * curve.n_classes:
        name = "median"
        parts = [plateau(curve), gap(curve)]
        if _most_have(MIN_FIT_LABELS, curve):
            parts.append(precision(curve))
        k = float(np.exp(np.median(np.log(parts))))
    else:
        name = "gap"
        parts = []
        k = gap(curve)
    apart = np.log(parts[0] / parts[1]) / 2 if len(parts) == 2 else 0.0
    return name, k, float(np.hypot(SCALES[name], apart))


def _most_have(n_labels: int, curve: Curve) -> bool:
    """Whether half of the known classes, and at least two, have so many labeled images."""
    return bool((curve.class_sizes >= n_labels).sum() >= max(2, curve.n_classes / 2))


def plateau(curve: Curve) -> float:
    """The mean of log K over the curve's plateau, each K weighted by how nearly it reaches the best
    accuracy.

    The accuracy a of L images has the standard error s = √(a(1-a)/L), so a K within about s of the
    best is as good as the best. Each K weighs exp(-½·((best - accuracy)/s)²) / K: a likelihood
    times a prior that, as for any scale, is uniform in log K. The mean of log K under these weights
    averages over the plateau instead of taking its accidental top, and approaches the paper's K as
    labeled images grow in number.
    """
    best = curve.accuracy.max()
    # Never 0: one image in L.
    error = np.sqrt(max(best * (1 - best), 1 / curve.n_labeled) / curve.n_labeled)
    weights = np.exp(-0.5 * ((best - curve.accuracy) / error) ** 2) / curve.n_clusters
    return float(np.exp(np.average(np.log(curve.n_clusters), weights=weights)))


def precision(curve: Curve) -> float:
    """The K of the highest accuracy · fit, where fit also charges for unlabeled images that a class
    swallows.

    If labels are missing at random within each class, a cluster's share of labeled images of class
    c is its precision for c times an unknown constant, which an argmax does not see. recall · share
    is then the criterion r²/Pr(f = 1) of learning from positive and unlabeled examples, and falls
    when a known class is joined with a novel one.
    """
    return float(curve.n_clusters[(curve.accuracy * curve.fit).argmax()])


def gap(curve: Curve) -> float:
    """The K between the known classes and ten times as many whose clusters stand out most in the
    tree.

    Of labels it takes the number of known classes alone, for collections that hardly have any. Most
    clusters are expected to hold two different images or more: further down the largest gap is that
    between near copies and everything else.
    """
    most = max(min(10 * curve.n_classes, curve.n_distinct // 2), curve.n_classes)
    n_tried = max(int(np.searchsorted(curve.n_clusters, most, side="right")), 1)
    return float(curve.n_clusters[curve.gap[:n_tried].argmax()])


def search_n_clusters(
    cluster: Callable[[int], Ints],
    labels: Ints,
    *,
    least: int | None = None,
    most: int | None = None,
) -> int:
    """The K with the highest accuracy of `cluster(K)`, (N,), on the labeled images, as far as
    Brent's method tries them (Vaze et al. 2022); the smallest of equals.

    `cluster` must not look at `labels` (N,), -1 for unlabeled. K lies between `least`, by default
    the number of known classes, and `most`, by default 1,000 or ten times these; it is never below
    the known classes, and never above these and the unlabeled images together: labeled images stay
    in their class.
    """
    from scipy.optimize import minimize_scalar

    n_known = int(known_classes(labels, least, most).max()) + 1
    is_labeled = labels != UNLABELED
    low = max(n_known, least or 0)
    high = min(n_known + int((~is_labeled).sum()), most or usual_most(n_known))
    if low >= high:
        return low
    accuracy_of: dict[int, float] = {}

    def error(number: float) -> float:
        k = int(number)
        if k not in accuracy_of:
            accuracy_of[k] = matched_accuracy(labels[is_labeled], cluster(k)[is_labeled])
        return 1 - accuracy_of[k]

    # Up to the next whole number, so that the largest K is tried too.
    bounds = (low, np.nextafter(high + 1, low))
    minimize_scalar(
        error, bounds=bounds, method="bounded", options={"xatol": 0.5, "maxiter": MAX_TRIES}
    )
    return max(accuracy_of, key=lambda k: (accuracy_of[k], -k))


def read_n_clusters(given: object) -> tuple[int | None, Range | None]:
    """One number, or a range, of what was given: 40, '40', '30-50', (30, 50) or None.

    A range of one number is that number.
    """
    if given is None:
        return None, None
    ends: list[object] = [given]
    if isinstance(given, str):
        matched = re.fullmatch(r"\s*(\d+)\s*(?:[-–]\s*(\d+)\s*)?", given)
        if matched is None:
            raise UsageError(f"n_clusters: found {given!r}, {EXPECTED}")
        ends = [int(end) for end in matched.groups() if end is not None]
    elif isinstance(given, tuple | list):
        ends = list(given)
    numbers = [as_count(end, name="n_clusters", least=1) for end in ends]
    if not 1 <= len(numbers) <= 2 or numbers != sorted(numbers):
        raise UsageError(f"n_clusters: found {given!r}, {EXPECTED}, the smaller number first")
    if numbers[0] == numbers[-1]:
        return numbers[0], None
    return None, (numbers[0], numbers[1])


def check_n_clusters(n_clusters: int, known: Ints, n_rows: int) -> int:
    """Refuse a K above the images or, in a partly labeled collection, below its known classes."""
    n_known = len(np.unique(known[known != UNLABELED]))
    least = 1
    # Where every image is labeled there is nothing to discover, and fewer clusters than classes is
    # a plain coarser cut.
    if (known == UNLABELED).any():
        least = max(n_known, 1)
    if not least <= as_count(n_clusters, name="n_clusters") <= n_rows:
        raise UsageError(
            f"n_clusters: found {n_clusters} with {n_known} known classes and {n_rows} images, "
            f"expected {least} to {n_rows}"
        )
    return int(n_clusters)


def keep_to(n_clusters: int, least: int | None, most: int | None) -> int:
    """The number within the range that is nearest; an end that is None is open."""
    if most is not None:
        n_clusters = min(n_clusters, most)
    if least is not None:
        n_clusters = max(n_clusters, least)
    return n_clusters
