"""Estimate the number of clusters, with an 80 % interval, from a tree and the labels a user has;
and parse the numbers of clusters that users enter.

The CMS paper takes the K with the highest labeled accuracy (section 4.3). That K tends to be too
low and has a high variance: merging a known with a novel category does not lower the labeled
accuracy, which is therefore nearly flat below the true K and has a maximum that depends on single
images. Other heuristics that use the tree are more stable, but each is biased. Pairs of labeled
images (`pair_terms`) give an unbiased estimate with a standard error. The default rule combines
both: the heuristics are the prior and the pairs the likelihood, so the more labels there are, the
more weight the pairs have. If there are too few labels for pairs, the heuristics are used alone.

A method without a tree has to cluster once for each K, so it tries only a few
(`search_n_clusters`).

Shapes: N images, C known classes, M candidate values of K.
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
    default_max_clusters,
    renumber_classes,
)
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.tree import Tree
from shoal.errors import UnknownName, UsageError

DEFAULT_RULE = "pairs"

# Rules that estimate K: the default, and that of section 4.3
RULES = (DEFAULT_RULE, "paper")

# Coverage of the interval
LEVEL = 0.8

# The interval starts at the number of known classes, i.e. includes "no novel class", if the
# probability of that number is at least this fraction of the largest one. The value is the density
# of a normal distribution at the end of its 90 % interval, relative to its mode. The 10 % quantile
# would rarely include that number, because a single value at the edge rarely has a probability of
# 10 %.
NONE_NOVEL_RATIO = float(np.exp(-(1.645**2) / 2))

# Labeled images per class needed to use `precision` without `gap`; with fewer, it sometimes
# overestimates K greatly
RELIABLE_FIT_LABELS = 8

# Typical error of log K of each heuristic, used as the scale of Student's t distribution
SCALES = {"balance": 0.15, "median": 0.2, "gap": 0.6}

# Those of Student's t, whose tails are heavy, because a heuristic is sometimes far off
DEGREES_OF_FREEDOM = 2

# Between these two ratios K / C, the upper end of the interval moves from that of the full
# posterior to that of the pairs alone
PAIRS_ONLY_RATIOS = 2.0, 2.5

# Largest K / C in the interval of the pairs alone
MAX_RATIO_BY_PAIRS = 20

# Largest number of clusterings in a search for K; about 15 suffice for a range of 1,000
MAX_TRIES = 30

# The smallest and the largest number of clusters, both included
Range = tuple[int, int]


@dataclass(frozen=True)
class NClustersEstimate:
    """An estimate of the number of clusters, and the curve it is based on.

    Attributes
    ----------
    n_clusters
        The estimate.
    interval
        Ends of the 80 % interval of the default rule; the K of another rule may lie outside.
    rule
        The rule used; 'balance', 'median' or 'gap' if there were too few labels for pairs.
    curve
        The labeled accuracy of every cut of the tree, and more that the rules use.
    range
        The range that the user gave, to which `n_clusters` and `interval` are clipped; None unless
        both ends are given.
    """

    n_clusters: int
    interval: Range
    rule: str
    curve: Curve
    range: Range | None = None

    def clipped_to(self, min_clusters: int | None, max_clusters: int | None) -> "NClustersEstimate":
        """Return the estimate with K and its interval clipped to a range; None is an open end."""
        k, low, high = (
            clip_n_clusters(number, min_clusters, max_clusters)
            for number in (self.n_clusters, *self.interval)
        )
        given_range = None
        if min_clusters is not None and max_clusters is not None:
            given_range = (min_clusters, max_clusters)
        return replace(self, n_clusters=k, interval=(low, high), range=given_range)


def estimate_n_clusters(
    tree: Tree,
    labels: ArrayLike,
    *,
    rule: str = DEFAULT_RULE,
    min_clusters: int | None = None,
    max_clusters: int | None = None,
) -> NClustersEstimate:
    """Estimate the number of clusters from a tree and the labels a user has.

    K is at least the number of known classes and at most the number of distinct points. Cost: one
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
        Lower limit of K and of its interval; None: the number of known classes.
    max_clusters
        Upper limit of K and of its interval; None: the larger of 1,000 and ten times the number of
        known classes.

    Returns
    -------
    NClustersEstimate
        K, its 80 % interval, the rule used, and the curve it is based on.

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
    k, rule_used = choose(curve, rule)
    estimate = NClustersEstimate(k, interval(curve), rule_used, curve)
    return estimate.clipped_to(min_clusters, max_clusters)


def check_rule(rule: str) -> None:
    if rule not in RULES:
        raise UnknownName("rule for the number of clusters", str(rule), RULES)


def choose(curve: Curve, rule: str) -> tuple[int, str]:
    """Return K by a rule, and the name of the rule used: that of a heuristic if there are too few
    labels for pairs."""
    if rule == "paper":
        return int(curve.n_clusters[curve.accuracy.argmax()]), rule  # the smallest on ties
    if curve.pairs is None:
        name, k, _ = read_heuristic(curve)
        return round(k), name
    return _quantile(curve, _posterior(curve), 0.5), rule


def interval(curve: Curve) -> Range:
    """Return the ends of the credible interval with probability `LEVEL`."""
    posterior = _posterior(curve)
    upper = (1 + LEVEL) / 2
    low = _quantile(curve, posterior, 1 - upper)
    high = _quantile(curve, posterior, upper)
    if (
        curve.n_clusters[0] == curve.n_classes
        and posterior[0] >= NONE_NOVEL_RATIO * posterior.max()
    ):
        low = curve.n_classes
    # With few known classes the heuristics underestimate K by up to two thirds, because they do not
    # detect merged novel classes. The upper end then moves, in log K, to that of the pairs alone.
    first, last = np.log(PAIRS_ONLY_RATIOS)
    per_known = _quantile(curve, posterior, 0.5) / curve.n_classes
    fraction = float(np.clip((np.log(per_known) - first) / (last - first), 0, 1))
    by_pairs = max(high, _quantile(curve, _posterior_by_pairs(curve), upper))
    return low, round(high ** (1 - fraction) * by_pairs**fraction)


def _quantile(curve: Curve, weights: Floats, share: float) -> int:
    index = np.searchsorted(np.cumsum(weights)[:-1], share)
    return int(curve.n_clusters[index])


def _posterior_by_pairs(curve: Curve) -> Floats:
    """Return the probability (M,) of each K by pairs alone.

    No prior is multiplied in: where pairs are uninformative, their likelihood already falls as
    1 / K. Without pairs, the probability is proportional to 1 / K.
    """
    k = curve.n_clusters
    logs = -np.log(k) if curve.pairs is None else curve.pairs.log_likelihood(k)
    is_tried = k <= max(MAX_RATIO_BY_PAIRS * curve.n_classes, int(k[0]))
    return _normalized(np.where(is_tried, logs, -np.inf))


def _posterior(curve: Curve) -> Floats:
    """Return the probability (M,) of each K: Student's t around the heuristic's log K, times the
    likelihood of the pairs."""
    log_k = np.log(curve.n_clusters)
    _, k, error = read_heuristic(curve)
    deviation = (log_k - np.log(k)) / error
    # Student's t is a density over log K; 1 / K turns it into one over K.
    logs = -log_k - (DEGREES_OF_FREEDOM + 1) / 2 * np.log1p(deviation**2 / DEGREES_OF_FREEDOM)
    if curve.pairs is not None:
        logs += curve.pairs.log_likelihood(curve.n_clusters)
    return _normalized(logs)


def _normalized(logs: Floats) -> Floats:
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


def read_heuristic(curve: Curve) -> tuple[str, float, float]:
    """Return the name, the K (not rounded) and the expected error of log K of the most stable
    heuristic for this number of labels.

    `balance` is the geometric mean of plateau and precision, which err in opposite directions: the
    plateau is too low, because it does not detect known classes merged with novel ones; precision
    is too high where classes overlap, because the pure core of a class scores well. With fewer
    labels, `median` is the median of log K over plateau, gap and, if there are enough labels,
    precision: each fails sometimes, but rarely two in the same direction. With fewer than two
    labels per class, `gap` is used alone. If two heuristics are combined, the expected error grows
    with their distance.
    """
    # At least half of the known classes, and at least two, have `n_typical` labeled images or more.
    n_typical = np.sort(curve.class_sizes)[-max(2, -(-curve.n_classes // 2))]
    if n_typical >= RELIABLE_FIT_LABELS:
        name = "balance"
        estimates = [plateau(curve), precision(curve)]
    elif curve.n_labeled >= 2 * curve.n_classes:
        name = "median"
        estimates = [plateau(curve), gap(curve)]
        if n_typical >= MIN_FIT_LABELS:
            estimates.append(precision(curve))
    else:
        name = "gap"
        estimates = [gap(curve)]
    logs = np.log(estimates)
    distance = 0.0
    if len(estimates) == 2:
        distance = (logs[0] - logs[1]) / 2
    return name, float(np.exp(np.median(logs))), float(np.hypot(SCALES[name], distance))


def plateau(curve: Curve) -> float:
    """Return the geometric mean of K over the plateau of the accuracy.

    The accuracy a on L images has the standard error s = √(a(1-a)/L), so every K with an accuracy
    within about s of the best is equally plausible. Each K has the weight
    exp(-½·((best - accuracy)/s)²) / K: a likelihood times a prior that is uniform in log K. With
    more labels, the mean approaches the CMS paper's K.
    """
    best = curve.accuracy.max()
    # The variance is at least that of one error in L images, even if all are correct.
    error = np.sqrt(max(best * (1 - best), 1 / curve.n_labeled) / curve.n_labeled)
    weights = np.exp(-0.5 * ((best - curve.accuracy) / error) ** 2) / curve.n_clusters
    return float(np.exp(np.average(np.log(curve.n_clusters), weights=weights)))


def precision(curve: Curve) -> float:
    """Return the K with the highest accuracy · fit. The fit is the mean over known classes of the
    root of recall · share; unlike accuracy, it depends on the unlabeled images in the cluster of a
    class.

    If labels are missing at random within each class, the share of a cluster that is labeled as
    class c is the cluster's precision for c times a constant, which does not affect an argmax.
    recall · share is then the criterion r²/Pr(f = 1) of learning from positive and unlabeled
    examples (Lee and Liu 2003), and falls when a known class is merged with a novel one.
    """
    return float(curve.n_clusters[(curve.accuracy * curve.fit).argmax()])


def gap(curve: Curve) -> float:
    """Return the K, from the number of known classes to ten times that, with the largest relative
    gap between successive heights of the tree.

    It uses only the number of known classes, for collections with very few labels. K is at most
    half the number of distinct images: with more clusters, the largest gap would be that between
    near-duplicates and all other images.
    """
    max_clusters = max(min(10 * curve.n_classes, curve.n_distinct // 2), curve.n_classes)
    n_tried = max(int(np.searchsorted(curve.n_clusters, max_clusters, side="right")), 1)
    return float(curve.n_clusters[curve.gap[:n_tried].argmax()])


def search_n_clusters(
    cluster: Callable[[int], Ints],
    labels: Ints,
    *,
    min_clusters: int | None = None,
    max_clusters: int | None = None,
) -> int:
    """Search, by Brent's method (Vaze et al. 2022), for the K at which the clusters (N,) returned
    by `cluster(K)` have the highest labeled accuracy; the smallest on ties.

    `cluster` must not use the `labels` (N,), -1 for unlabeled. K lies between `min_clusters`, by
    default the number of known classes, and `max_clusters`, by default the larger of 1,000 and ten
    times the number of known classes. It is never below the number of known classes, nor above that
    plus the number of unlabeled images.
    """
    from scipy.optimize import minimize_scalar

    n_known = int(renumber_classes(labels, min_clusters, max_clusters).max()) + 1
    is_labeled = labels != UNLABELED
    low = max(n_known, min_clusters or 0)
    high = min(n_known + int((~is_labeled).sum()), max_clusters or default_max_clusters(n_known))
    if low >= high:
        return low
    accuracy_of: dict[int, float] = {}

    def error(x: float) -> float:
        k = int(x)
        if k not in accuracy_of:
            accuracy_of[k] = matched_accuracy(labels[is_labeled], cluster(k)[is_labeled])
        return 1 - accuracy_of[k]

    # `error` truncates, so the upper bound is just below high + 1: `high` must be reachable.
    bounds = (low, np.nextafter(high + 1, low))
    minimize_scalar(
        error, bounds=bounds, method="bounded", options={"xatol": 0.5, "maxiter": MAX_TRIES}
    )
    return max(accuracy_of, key=lambda k: (accuracy_of[k], -k))


def read_n_clusters(value: object) -> tuple[int | None, Range | None]:
    """Parse a number of clusters or a range: 40, '40', '30-50', (30, 50) or None.

    A range of one number is that number.
    """
    if value is None:
        return None, None
    ends: object = value
    if isinstance(value, str):
        ends = [int(end) if end.strip().isdecimal() else end for end in re.split("[-–]", value)]
    if not isinstance(ends, tuple | list):
        ends = [value]
    numbers = [int(end) for end in ends if isinstance(end, int | np.integer) and end > 0]
    if len(numbers) != len(ends) or len(ends) not in (1, 2) or numbers != sorted(numbers):
        raise UsageError(
            f"n_clusters: found {value!r}, expected a whole number or a range with the smaller "
            "number first, such as 30-50 or, in Python, (30, 50)"
        )
    if numbers[0] == numbers[-1]:
        return numbers[0], None
    return None, (numbers[0], numbers[1])


def check_n_clusters(n_clusters: int, known: Ints, n_rows: int) -> None:
    """Raise an error for a K above the number of images or, in a partly labeled collection, below
    the number of known classes."""
    n_known = len(np.unique(known[known != UNLABELED]))
    least = 1
    # If every image is labeled, there is nothing to discover, and K may also be smaller.
    if (known == UNLABELED).any():
        least = max(n_known, 1)
    if not least <= as_count(n_clusters, name="n_clusters") <= n_rows:
        raise UsageError(
            f"n_clusters: found {n_clusters} with {n_known} known classes and {n_rows} images, "
            f"expected {least} to {n_rows}"
        )


def clip_n_clusters(n_clusters: int, min_clusters: int | None, max_clusters: int | None) -> int:
    """Return the nearest number within a range; None is an open end."""
    return int(np.clip(n_clusters, min_clusters or 1, max_clusters or np.inf))
