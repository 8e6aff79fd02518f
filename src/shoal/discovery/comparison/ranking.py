"""Which method puts more images right, and how sure that is: intervals by a bootstrap, ties by flips of signs.

Every method is judged by the same images, so two of them are compared image by image. What is drawn again, or flipped,
is what was drawn before: single images of known categories, and whole categories where a whole category was kept,
because its images stand or fall together.

M methods, P pairs of them, J images that judge, U units that are drawn as one.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from shoal.arrays import Bools, Floats, Ints

N_RESAMPLES = 2_000
"""How often the units are drawn again."""

AT_ONCE = 100
"""Resamples that are held in memory at a time."""

LEVEL = 0.95
"""What share of the resamples an interval holds."""

Z = 1.96
"""Standard deviations within which a normal distribution has that share."""

MAX_FALSE = 0.05
"""The share of tables that may call a difference where there is none."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """How much more of the images one method puts right than another, as shares in [-1, 1]."""

    difference: float
    low: float
    high: float
    """The interval of the difference, of this pair alone."""
    is_clear: bool
    """Whether one of the two is better beyond what chance would do in any pair of the table; else they tie."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """M methods, in the order they were given in."""

    shares: tuple[float, ...]
    """(M,) the share of images put right."""
    intervals: tuple[tuple[float, float], ...]
    """(M,) where that share likely lies."""
    ranks: tuple[tuple[int, int], ...]
    """(M,) the best and the worst rank that a method may have; 1 is the first."""
    pairs: dict[tuple[int, int], Pair]
    """By (i, j), i != j: i against j."""

    def ties(self, method: int) -> list[int]:
        """The methods that cannot be told from one."""
        return [j for (i, j), pair in self.pairs.items() if i == method and not pair.is_clear]

    @property
    def order(self) -> list[int]:
        """The methods by the share they put right, the first of equals first."""
        return sorted(range(len(self.shares)), key=lambda method: -self.shares[method])


def rank(right: Bools, units: Ints, is_novel: Bools, *, seed: int = 0) -> Ranking:
    """Rank M methods by what they put `right` (M, J).

    Images of the same number in `units` (J,) are drawn together; those of novel categories and the others are drawn
    apart, as many units of either as there are. Where there is one of a kind, all are drawn from one bag: drawn apart,
    it would come every time, as if it were certain.
    """
    numbers, at = np.unique(units, return_inverse=True)  # (U,) and (J,)
    sizes = np.bincount(at)  # (U,)
    n_right = np.stack([np.bincount(at[one], minlength=len(numbers)) for one in right])  # (M, U)
    novel = np.zeros(len(numbers), dtype=bool)
    novel[at[is_novel]] = True
    drawn = _resampled_shares(n_right, sizes, novel, np.random.default_rng(seed))  # (R, M)
    n_methods = len(right)
    pairs = _compare_pairs(n_right, int(sizes.sum()), drawn)
    return Ranking(
        shares=tuple(float(one.mean()) for one in right),
        intervals=tuple(
            _interval_of(float(right[i].mean()), drawn[:, i], len(sizes)) for i in range(n_methods)
        ),
        ranks=tuple(_rank_range(i, n_methods, pairs) for i in range(n_methods)),
        pairs=pairs,
    )


def _resampled_shares(n_right: Ints, sizes: Ints, novel: Bools, rng: np.random.Generator) -> Floats:
    """(R, M) the share that each method puts right when units are drawn again, with replacement.

    `n_right` (M, U) of the `sizes` (U,) images of a unit; `novel` (U,) which units are whole categories.
    """
    strata = [rows for rows in (np.flatnonzero(novel), np.flatnonzero(~novel)) if len(rows)]
    if min(map(len, strata)) == 1:
        strata = [np.arange(len(sizes))]
    shares = []
    for _ in range(N_RESAMPLES // AT_ONCE):
        times = np.zeros((AT_ONCE, len(sizes)), dtype=np.int64)
        for rows in strata:
            times[:, rows] = rng.multinomial(
                len(rows), np.full(len(rows), 1 / len(rows)), size=AT_ONCE
            )
        shares.append((times @ n_right.T) / (times @ sizes)[:, None])
    return np.concatenate(shares)


def _compare_pairs(n_right: Ints, n_images: int, drawn: Floats) -> dict[tuple[int, int], Pair]:
    """Each method against each other one; ranks rest on all pairs, so all of them share one level.

    `n_right` (M, U) of each unit's images, `drawn` (R, M) shares.
    """
    unordered = list(combinations(range(len(n_right)), 2))
    clear = are_clear(np.array([sign_flip_p(n_right[i] - n_right[j]) for i, j in unordered]))
    pairs = {}
    for (first, second), is_clear in zip(unordered, clear.tolist(), strict=True):
        for i, j in ((first, second), (second, first)):
            low, high = _interval(drawn[:, i] - drawn[:, j])
            difference = float((n_right[i] - n_right[j]).sum() / n_images)
            pairs[i, j] = Pair(difference=difference, low=low, high=high, is_clear=is_clear)
    return pairs


def _interval_of(share: float, drawn: Floats, n_units: int) -> tuple[float, float]:
    """Where a share likely lies; of all right, or all wrong, every draw is the same: the other end is Wilson's."""
    end = n_units / (n_units + Z**2)
    if share == 1:
        return end, 1.0
    return (0.0, 1 - end) if share == 0 else _interval(drawn)


def _interval(drawn: Floats) -> tuple[float, float]:
    rest = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [rest, 1 - rest])
    return float(low), float(high)


def _rank_range(method: int, n_methods: int, pairs: dict[tuple[int, int], Pair]) -> tuple[int, int]:
    clear = [pair.difference for (i, _), pair in pairs.items() if i == method and pair.is_clear]
    n_better = sum(difference < 0 for difference in clear)
    n_worse = sum(difference > 0 for difference in clear)
    return 1 + n_better, n_methods - n_worse


def sign_flip_p(by_unit: Ints) -> float:
    """How often equally good methods would differ in sum by as much as in `by_unit` (U,), one way or the other.

    Of equals, the sign of each difference is a toss of a coin. All 2^U tosses are counted: the sum of a toss of ±d has
    the characteristic function cos(t d), that of all tosses their product, and its Fourier transform is how often each
    sum comes. Units without a difference say nothing. One that speaks more for the better never makes this larger.
    """
    sizes, times = np.unique(np.abs(by_unit[by_unit != 0]), return_counts=True)
    # sums lie in [-most, most]
    most = int(sizes @ times)
    observed = abs(int(by_unit.sum()))
    if observed == 0:
        return 1.0
    n_sums = 2 * most + 1
    at = np.arange(n_sums)
    waves = np.ones(n_sums)
    for size, n_times in zip(sizes.tolist(), times.tolist(), strict=True):
        waves *= np.cos(2 * np.pi / n_sums * (at * size % n_sums)) ** n_times
    chances = np.fft.ifft(waves).real  # at index s of the sum s, at n_sums - s of -s
    return float(np.clip(2 * chances[observed : most + 1].sum(), 0, 1))


def are_clear(p_values: Floats) -> Bools:
    """(P,) which differences are called, by Holm's method: in at most `MAX_FALSE` of all tables any that is none."""
    order = np.argsort(p_values, kind="stable")
    is_rare = p_values[order] < MAX_FALSE / np.arange(len(p_values), 0, -1)
    clear = np.zeros(len(p_values), dtype=bool)
    clear[order] = np.logical_and.accumulate(is_rare)
    return clear
