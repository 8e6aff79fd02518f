"""Sign flips counted one by one, and Holm's method by hand."""

from itertools import product

import numpy as np
import pytest

from shoal.discovery.comparison.ranking import are_clear, sign_flip_p


def count_all(by_unit: np.ndarray) -> float:
    """The share of all 2^U tosses whose sum is at least as far from 0."""
    tosses = np.array(list(product((-1, 1), repeat=len(by_unit))))  # (2^U, U)
    return float((np.abs(tosses @ by_unit) >= abs(by_unit.sum())).mean())


def test_it_is_the_share_of_all_tosses() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        by_unit = rng.integers(-9, 13, size=rng.integers(1, 11))
        assert sign_flip_p(by_unit) == pytest.approx(count_all(by_unit), abs=1e-12)


@pytest.mark.parametrize(
    ("by_unit", "expected"),
    [
        ([1] * 5, 0.0625),
        ([1] * 6, 0.03125),
        ([-1] * 6 + [0] * 30, 0.03125),
        ([1] * 5 + [8], 0.03125),
        ([1] * 12 + [20], 2**-12),
        ([1] * 40 + [500, 3000], 2**-41),
        ([20], 1),
        ([1, -1], 1),
        ([0, 0], 1),
        ([], 1),
    ],
)
def test_units_that_all_favor_one_are_tosses_that_all_fall_alike(
    by_unit: list[int], expected: float
) -> None:
    assert sign_flip_p(np.array(by_unit, dtype=np.int64)) == pytest.approx(expected, abs=1e-12)


def test_more_in_favor_of_the_better_is_never_less_clear() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        by_unit = rng.integers(-3, 6, size=20)
        if by_unit.sum() > 0:
            more = by_unit.copy()
            more[rng.integers(20)] += rng.integers(1, 60)
            assert sign_flip_p(more) <= sign_flip_p(by_unit) + 1e-12


def test_each_further_difference_may_be_less_rare_until_one_is_not_rare_enough() -> None:
    """0.05 by 4, 3, 2 and 1: the third is above its level, so the fourth, below its own, is no
    difference either."""
    assert are_clear(np.array([0.03, 0.012, 0.016, 0.026])).tolist() == [False, True, True, False]
    assert are_clear(np.array([0.013, 0.001])).tolist() == [True, True]
    assert are_clear(np.array([0.013, 0.013, 0.013, 0.013])).tolist() == [False] * 4
    assert are_clear(np.array([])).tolist() == []
