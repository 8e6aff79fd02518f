"""Whether two methods differ beyond chance: sign flips of what they differ in, corrected for all pairs of a table.

U units that are drawn as one, P pairs of methods.
"""

import numpy as np

from shoal.arrays import Bools, Floats, Ints

MAX_FALSE = 0.05
"""The share of tables that may call a difference where there is none."""


def sign_flip_p(by_unit: Ints) -> float:
    """How often equally good methods would differ in sum by as much as in `by_unit` (U,), one way or the other.

    Of equals, the sign of each difference is a toss of a coin. All 2^U tosses are counted: the sum of a toss of ±d has
    the characteristic function cos(t d), that of all tosses their product, and its Fourier transform is how often each
    sum comes. Units without a difference say nothing. One that speaks more for the better never makes this larger.
    """
    sizes, times = np.unique(np.abs(by_unit[by_unit != 0]), return_counts=True)
    most, observed = int(sizes @ times), abs(int(by_unit.sum()))  # sums lie in [-most, most]
    if observed == 0:
        return 1.0
    n_sums = 2 * most + 1
    at = np.arange(n_sums)
    waves = np.ones(n_sums)
    for size, n_times in zip(sizes.tolist(), times.tolist(), strict=True):
        waves *= np.cos(2 * np.pi / n_sums * (at * size % n_sums)) ** n_times
    chances = np.fft.ifft(waves).real  # of the sum s at place s, of -s at place n_sums - s
    return float(np.clip(2 * chances[observed : most + 1].sum(), 0, 1))


def are_clear(p_values: Floats) -> Bools:
    """(P,) which differences are called, by Holm's method: in at most `MAX_FALSE` of all tables any that is none."""
    order = np.argsort(p_values, kind="stable")
    is_rare = p_values[order] < MAX_FALSE / np.arange(len(p_values), 0, -1)
    clear = np.zeros(len(p_values), dtype=bool)
    clear[order] = np.logical_and.accumulate(is_rare)
    return clear
