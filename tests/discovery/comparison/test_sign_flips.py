"""The sign-flip test by enumeration, and Holm's method by hand."""

from itertools import product

import numpy as np
import pytest

from shoal.discovery.comparison.evaluation import are_significant, sign_flip_p


def count_all(by_unit: np.ndarray) -> float:
    """Return the share of all 2^U sign flips whose sum is at least as far from 0."""
    tosses = np.array(list(product((-1, 1), repeat=len(by_unit))))  # (2^U, U)
    return float((np.abs(tosses @ by_unit) >= abs(by_unit.sum())).mean())


def test_the_p_value_is_the_share_of_all_sign_flips() -> None:
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
def test_unanimous_units_have_the_p_value_of_equal_coin_tosses(
    by_unit: list[int], expected: float
) -> None:
    assert sign_flip_p(np.array(by_unit, dtype=np.int64)) == pytest.approx(expected, abs=1e-12)


def test_holms_method_stops_at_the_first_insignificant_difference() -> None:
    """The levels are 0.05 / 4, / 3, / 2 and / 1: the third p-value is above its level, so the
    fourth is not significant either."""
    assert are_significant(np.array([0.03, 0.012, 0.016, 0.026])).tolist() == [
        False,
        True,
        True,
        False,
    ]
    assert are_significant(np.array([0.013, 0.001])).tolist() == [True, True]
    assert are_significant(np.array([0.013, 0.013, 0.013, 0.013])).tolist() == [False] * 4
    assert are_significant(np.array([])).tolist() == []
