"""Which method puts more images right, and how sure that is: intervals by a bootstrap, ties by
flips of signs.

Every method is judged by the same images, so two of them are compared image by image. What is drawn
again, or flipped, is what was drawn before: single images of known categories, and whole categories
where a whole category was kept, because its images stand or fall together.

M methods, P pairs of them, J images that judge, U units that are drawn as one, R resamples.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False, kw_only=True)
class Ranking:
    """M methods, in the order they were given in."""

    shares: Floats
    """(M,) the share of images put right."""
    low: Floats
    high: Floats
    """(M,) where that share likely lies."""
    difference: Floats
    """(M, M) how much more of the images one method puts right than another."""
    difference_interval: Floats
    """(2, M, M) where that likely lies, of this pair alone."""
    is_tie: Bools
    """(M, M) whether neither of two is better beyond what chance would do in any pair of the
    table."""

    @property
    def order(self) -> list[int]:
        """The methods by the share they put right, the first of equals first."""
        order: list[int] = np.argsort(-self.shares, kind="stable").tolist()
        return order

    def rank_range(self, method: int) -> tuple[int, int]:
        """The best and the worst rank that a method may have; 1 is the first."""
        clear = self.difference[method] * ~self.is_tie[method]
        return 1 + int((clear < 0).sum()), len(self.shares) - int((clear > 0).sum())


def rank(right: Bools, units: Ints, is_novel: Bools, *, seed: int = 0) -> Ranking:
    """Rank M methods by what they put `right` (M, J).

    Images of the same number in `units` (J,) are drawn together; those of novel categories and the
    others are drawn apart, as many units of either as there are. Where there is one of a kind, all
    are drawn from one bag: drawn apart, it would come every time, as if it were certain.
    """
    numbers, at = np.unique(units, return_inverse=True)  # (U,) and (J,)
    sizes = np.bincount(at)  # (U,)
    n_right = np.stack([np.bincount(at[one], minlength=len(numbers)) for one in right])  # (M, U)
    novel = np.zeros(len(numbers), dtype=bool)
    novel[at[is_novel]] = True
    drawn = _resampled_shares(n_right, sizes, novel, np.random.default_rng(seed))  # (R, M)
    ends = [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2]
    shares = right.mean(axis=1)
    low, high = np.quantile(drawn, ends, axis=0)
    # Of all right, or all wrong, every draw is the same: the other end is Wilson's.
    end = len(sizes) / (len(sizes) + Z**2)
    low[shares == 1] = end
    high[shares == 0] = 1 - end
    by_unit = n_right[:, None] - n_right[None]  # (M, M, U)
    return Ranking(
        shares=shares,
        low=low,
        high=high,
        difference=by_unit.sum(axis=2) / sizes.sum(),
        difference_interval=np.quantile(drawn[:, :, None] - drawn[:, None], ends, axis=0),
        is_tie=_ties(by_unit),
    )


def _resampled_shares(n_right: Ints, sizes: Ints, novel: Bools, rng: np.random.Generator) -> Floats:
    """(R, M) the share that each method puts right when units are drawn again, with replacement.

    `n_right` (M, U) of the `sizes` (U,) images of a unit; `novel` (U,) which units are whole
    categories.
    """
    strata = [rows for rows in (np.flatnonzero(novel), np.flatnonzero(~novel)) if len(rows)]
    if min(map(len, strata)) == 1:
        strata = [np.arange(len(sizes))]
    shares = []
    for _ in range(N_RESAMPLES // AT_ONCE):
        times = np.zeros((AT_ONCE, len(sizes)), dtype=np.int64)
        for rows in strata:
            even = np.full(len(rows), 1 / len(rows))
            times[:, rows] = rng.multinomial(len(rows), even, size=AT_ONCE)
        shares.append((times @ n_right.T) / (times @ sizes)[:, None])
    return np.concatenate(shares)


def _ties(by_unit: Ints) -> Bools:
    """(M, M) which methods cannot be told apart; ranks rest on all pairs, so all of them share one
    level."""
    first, second = np.triu_indices(len(by_unit), k=1)  # (P,) each
    p_values = np.array([sign_flip_p(one) for one in by_unit[first, second]])
    is_tie = np.zeros(by_unit.shape[:2], dtype=bool)
    is_tie[first, second] = ~are_clear(p_values)
    return is_tie | is_tie.T


def sign_flip_p(by_unit: Ints) -> float:
    """How often equally good methods would differ in sum by as much as in `by_unit` (U,), one way
    or the other.

    Of equals, the sign of each difference is a toss of a coin. All 2^U tosses are counted: the sum
    of a toss of ±d has the characteristic function cos(t d), that of all tosses their product, and
    its Fourier transform is how often each sum comes. Units without a difference say nothing. One
    that speaks more for the better never makes this larger.
    """
    sizes, times = np.unique(np.abs(by_unit[by_unit != 0]), return_counts=True)
    observed = abs(int(by_unit.sum()))
    if observed == 0:
        return 1.0
    most = int(sizes @ times)  # sums lie in [-most, most]
    n_sums = 2 * most + 1
    at = np.arange(n_sums)
    waves = np.ones(n_sums)
    for size, n_times in zip(sizes.tolist(), times.tolist(), strict=True):
        waves *= np.cos(2 * np.pi / n_sums * (at * size % n_sums)) ** n_times
    chances = np.fft.ifft(waves).real  # at index s of the sum s, at n_sums - s of -s
    return float(np.clip(2 * chances[observed : most + 1].sum(), 0, 1))


def are_clear(p_values: Floats) -> Bools:
    """(P,) which differences are called, by Holm's method: in at most `MAX_FALSE` of all tables any
    that is none."""
    order = np.argsort(p_values, kind="stable")
    is_rare = p_values[order] < MAX_FALSE / np.arange(len(p_values), 0, -1)
    clear = np.zeros(len(p_values), dtype=bool)
    clear[order] = np.logical_and.accumulate(is_rare)
    return clear
