"""How many clusters: a number and the range it likely lies in, from a tree and the labels a user has.

The paper takes the K of the highest labeled accuracy (section 4.3). That K errs low and jumps about: joining a known
with a novel category costs no labeled image, so the curve is nearly flat below the truth, and its highest point is a
matter of single images. Rules that read other marks off the tree are steadier, but each is biased, as the collection
has it. Pairs of labeled images are not (`class_pairs`), and know how sure they are. The default weighs both:
with few labels the other rules decide more, with many the pairs.

C known classes; M numbers of clusters tried.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import Floats
from shoal.clustering.curve import DEFAULT_MAX_CLUSTERS, MIN_FIT_LABELS, Curve, accuracy_curve
from shoal.clustering.n_clusters_range import Range, keep_to
from shoal.clustering.tree import Tree
from shoal.errors import UnknownName

Rule = Callable[[Curve], float]

DEFAULT_RULE = "pairs"

LEVEL = 0.8
"""The chance with which the number of classes lies in the interval."""

NONE_NEW = float(np.exp(-(1.645**2) / 2))
"""The interval begins at the known classes where these alone are at least so likely beside the likeliest number, as a
normal distribution has it at the end of its 90 % interval. Fewer are impossible, so a tenth of the weight seldom lies
on that one number."""

SURE_FIT_LABELS = 8
"""Labeled images of a class from which on `fit` need not be checked by other rules: with fewer it still takes far too
many clusters now and then."""

SCALES = {"balance": 0.15, "median": 0.2, "gap": 0.6}
"""By how much log K of each rule is off, about: the scale of Student's t."""

FREEDOM = 2
"""Degrees of freedom of that: few, for now and then a rule is far off."""


FEW_KNOWN = 2.0, 2.5
"""K in multiples of the known classes: from the first on the upper end of the interval moves to that by pairs alone,
from the second on it is that."""

MOST_PER_KNOWN = 20
"""K in multiples of the known classes that may lie in the interval by pairs alone."""


@dataclass(frozen=True, eq=False, slots=True)
class NClustersEstimate:
    """A number of clusters, the interval it likely lies in, and the curve both were read from."""

    n_clusters: int
    interval: tuple[int, int]
    """Ends of the 80 % interval, by the default rule whichever was asked for: another rule's K may lie outside."""
    accuracy: float
    """Of the cut into `n_clusters`, on the labeled images."""
    rule: str
    """The rule that decided: another than the one asked for where labels are too few for that."""
    curve: Curve
    range: Range | None = None
    """Where the user gave one: both numbers keep to it."""
    by_labels: Range | None = None
    """The interval without that range, where the two have no number in common."""

    def keeping_to(self, least: int | None, most: int | None) -> "NClustersEstimate":
        """The same with K and its interval moved into a range, where they lie outside of it."""
        k, low, high = (
            keep_to(number, least, most) for number in (self.n_clusters, *self.interval)
        )
        at = int(np.clip(k - self.curve.n_clusters[0], 0, len(self.curve.n_clusters) - 1))
        asked = _asked(least, most)
        accuracy = float(self.curve.accuracy[at])
        kept = replace(self, n_clusters=k, interval=(low, high), accuracy=accuracy, range=asked)
        return kept if asked is None else replace(kept, by_labels=_outside(self.interval, asked))


def _asked(least: int | None, most: int | None) -> Range | None:
    return None if least is None or most is None else (least, most)


def _outside(by_labels: Range, asked: Range) -> Range | None:
    """The interval that was found, where it has no number of the range that was asked for."""
    return by_labels if by_labels[1] < asked[0] or by_labels[0] > asked[1] else None


def estimate_n_clusters(
    tree: Tree,
    labels: ArrayLike,
    *,
    rule: str = DEFAULT_RULE,
    min_clusters: int | None = None,
    max_clusters: int | None = None,
) -> NClustersEstimate:
    """Estimate the number of clusters from a tree and the labels a user has.

    No number below that of known classes, or above that of distinct points, is tried. Cost: one pass over the last
    `max_clusters` merges, and a table of `max_clusters` × C counts.

    Parameters
    ----------
    tree
        A Ward tree of the embeddings.
    labels
        (N,) known classes as numbers, -1 for unlabeled.
    rule
        'pairs', 'balance', 'precision', 'plateau', 'median', 'gap', or 'paper' for section 4.3. Where labels are too
        few for it, another decides, which `rule` of the result names.
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
    asked = _asked(min_clusters, max_clusters)
    by_labels = None
    if asked is not None:  # cuts outside of the range say whether the labels agree with it
        most = max(asked[1], DEFAULT_MAX_CLUSTERS, 10 * curve.n_classes)
        free = accuracy_curve(tree, labels, max_clusters=most)
        by_labels = _outside(interval(free), asked)
    return NClustersEstimate(chosen, interval(curve), accuracy, decided, curve, asked, by_labels)


def check_rule(rule: str) -> None:
    """Refuse what is no name in `RULES`."""
    if not isinstance(rule, str) or rule not in RULES:
        raise UnknownName("rule for the number of clusters", str(rule), RULES)


def choose(curve: Curve, rule: str) -> tuple[int, str]:
    """Read K off a curve by `rule` or, where labels are too few for it, by the next in `NEEDS`; return both."""
    decides = _decides(curve, rule)
    return round(RULES[decides](curve)), decides


def _decides(curve: Curve, rule: str) -> str:
    while rule in NEEDS and not NEEDS[rule][0](curve):
        rule = NEEDS[rule][1]
    return rule


def interval(curve: Curve, level: float = LEVEL) -> tuple[int, int]:
    """The ends of the interval in which the number of classes lies with that chance."""
    weights = _weights(curve)
    share = (1 + level) / 2
    low, k, high = (_quantile(curve, weights, at) for at in (1 - share, 0.5, share))
    if curve.n_clusters[0] == curve.n_classes and weights[0] >= NONE_NEW * weights.max():
        low = curve.n_classes
    first, last = np.log(FEW_KNOWN)
    part = float(np.clip((np.log(k / curve.n_classes) - first) / (last - first), 0, 1))
    by_pairs = max(high, _quantile(curve, _weights_by_pairs(curve), share))
    return low, round(high ** (1 - part) * by_pairs**part)


def _quantile(curve: Curve, weights: Floats, share: float) -> int:
    below = np.cumsum(weights)
    return int(curve.n_clusters[min(int(np.searchsorted(below, share)), len(below) - 1)])


def _weights_by_pairs(curve: Curve) -> Floats:
    """(M,) how likely each K is by pairs alone, log K being uniform before; for the upper end where few are known.

    With few known classes the other rules err low, by up to two thirds: novel classes that are joined cost them
    nothing. The likelihood of pairs falls as 1 / K by itself where they say nothing, which is uniform in log K.
    """
    k = curve.n_clusters
    likely = -np.log(k) if curve.pairs is None else curve.pairs.log_likelihood(k)
    tried = k <= max(MOST_PER_KNOWN * curve.n_classes, int(k[0]))
    return _in_sum_one(np.where(tried, likely, -np.inf))


def _in_sum_one(logs: Floats) -> Floats:
    weights = np.exp(logs - logs.max())
    shares: Floats = weights / weights.sum()
    return shares


def _weights(curve: Curve) -> Floats:
    """(M,) how likely each K is: a prior around the K of "balance", or of what decides in its place, times pairs."""
    log_k = np.log(curve.n_clusters)
    rule = _decides(curve, "balance")
    off = (log_k - np.log(RULES[rule](curve))) / _scale(curve, rule)
    weights = -log_k - (FREEDOM + 1) / 2 * np.log1p(off**2 / FREEDOM)
    if curve.pairs is not None:
        weights += curve.pairs.log_likelihood(curve.n_clusters)
    return _in_sum_one(weights)


def _scale(curve: Curve, rule: str) -> float:
    """The error expected of log K by a rule; it grows with the distance between the two rules that it lies between."""
    between: dict[str, list[Rule]] = {
        "balance": [_plateau, _precision],
        "median": _in_median(curve),
    }
    parts = between.get(rule, [])
    apart = np.log(parts[0](curve) / parts[1](curve)) / 2 if len(parts) == 2 else 0.0
    return float(np.hypot(SCALES[rule], apart))


def _pairs(curve: Curve) -> float:
    """The median of K by pairs of labeled images, weighed with what "balance" finds."""
    return _quantile(curve, _weights(curve), 0.5)


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
    error = np.sqrt(
        max(best * (1 - best), 1 / curve.n_labeled) / curve.n_labeled
    )  # never 0: one image in L
    weights = np.exp(-0.5 * ((best - curve.accuracy) / error) ** 2) / curve.n_clusters
    return float(np.exp(np.average(np.log(curve.n_clusters), weights=weights)))


def _precision(curve: Curve) -> float:
    """The K of the highest accuracy · fit, where fit also charges for unlabeled images that a class swallows.

    If labels are missing at random within each class, a cluster's share of labeled images of class c is its precision
    for c times an unknown constant, which an argmax does not see. recall · share is then the criterion r²/Pr(f = 1) of
    learning from positive and unlabeled examples, and falls when a known class is joined with a novel one.
    """
    return float(curve.n_clusters[(curve.accuracy * curve.fit).argmax()])


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
    return float(np.exp(np.median([np.log(rule(curve)) for rule in _in_median(curve)])))


def _in_median(curve: Curve) -> list[Rule]:
    return [_plateau, _gap, *([_precision] if _most_have(MIN_FIT_LABELS, curve) else [])]


def _gap(curve: Curve) -> float:
    """The K between the known classes and ten times as many whose clusters stand out most in the tree.

    Of labels it takes the number of known classes alone, for collections that hardly have any. Most clusters are
    expected to hold two different images or more: further down the largest gap is that between near copies and
    everything else.
    """
    most = max(min(10 * curve.n_classes, curve.n_distinct // 2), curve.n_classes)
    n_tried = max(int(np.searchsorted(curve.n_clusters, most, side="right")), 1)
    return float(curve.n_clusters[curve.gap[:n_tried].argmax()])


RULES: dict[str, Rule] = {
    "paper": _best_accuracy,
    "pairs": _pairs,
    "balance": _balance,
    "plateau": _plateau,
    "precision": _precision,
    "median": _median,
    "gap": _gap,
}
"""Rules that read K off a curve, not rounded yet; of labels they see the given ones alone. "paper" is section 4.3's."""


def _most_have(n_labels: int, curve: Curve) -> bool:
    """Whether half of the known classes, and at least two, have so many labeled images."""
    return bool((curve.class_sizes >= n_labels).sum() >= max(2, curve.n_classes / 2))


def _has_each(n_labels: int, curve: Curve) -> bool:
    """Whether there are so many labeled images per known class: single ones are never parted, and end no plateau."""
    return curve.n_labeled >= n_labels * curve.n_classes


def _has_pairs(curve: Curve) -> bool:
    return curve.pairs is not None


NEEDS: dict[str, tuple[Callable[[Curve], bool], str]] = {
    "pairs": (_has_pairs, "balance"),
    "balance": (partial(_most_have, SURE_FIT_LABELS), "median"),
    "precision": (partial(_most_have, SURE_FIT_LABELS), "median"),
    "median": (partial(_has_each, 2), "gap"),
    "plateau": (partial(_has_each, 3), "gap"),
}
"""Whether the labels suffice for a rule, and the one that decides where they do not."""
