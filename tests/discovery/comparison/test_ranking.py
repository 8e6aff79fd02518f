"""Ranks of hand-made tables of right and wrong, whose order is known."""

import numpy as np
import pytest

from shoal.discovery.comparison import ranking
from shoal.discovery.comparison.ranking import rank


def rights(*n_right: int, n_images: int = 40) -> np.ndarray:
    """(M, J) where method i has its first n_right[i] images right."""
    return np.arange(n_images) < np.array(n_right)[:, None]


def singly(right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every image a unit of its own, of a known category."""
    n_images = right.shape[1]
    return np.arange(n_images), np.zeros(n_images, dtype=bool)


def ranges(found: ranking.Ranking) -> list[tuple[int, int]]:
    return [found.rank_range(method) for method in range(len(found.shares))]


def test_methods_that_are_far_apart_have_one_rank_each_in_whatever_order_they_come() -> None:
    right = rights(20, 40, 2)
    found = rank(right, *singly(right))
    assert ranges(found) == [(2, 2), (1, 1), (3, 3)]
    assert found.order == [1, 0, 2]
    assert found.shares.tolist() == [0.5, 1.0, 0.05]
    assert not found.is_tie.any()


def test_two_identical_methods_tie() -> None:
    right = rights(20, 20, 40)
    found = rank(right, *singly(right))
    assert found.is_tie.tolist() == [[False, True, False], [True, False, False], [False] * 3]
    assert ranges(found) == [(2, 3), (2, 3), (1, 1)]
    assert found.difference[0, 1] == 0
    assert found.difference_interval[:, 0, 1].tolist() == [0, 0]


def test_a_pair_is_the_same_from_both_sides() -> None:
    right = rights(25, 30)
    found = rank(right, *singly(right))
    assert found.difference[0, 1] == -found.difference[1, 0] == -0.125
    there = found.difference_interval[:, 0, 1]
    assert there.tolist() == pytest.approx((-found.difference_interval[::-1, 1, 0]).tolist())
    assert found.is_tie[0, 1] == found.is_tie[1, 0]


@pytest.mark.parametrize(("n_more", "is_clear"), [(1, False), (5, False), (6, True)])
def test_a_few_images_are_a_tie(n_more: int, is_clear: bool) -> None:
    """Five more of twelve could be five tosses of a coin: one time in sixteen they all fall
    alike."""
    right = rights(5, 5 + n_more, n_images=12)
    assert rank(right, *singly(right)).is_tie[1, 0] != is_clear


def test_images_of_a_category_that_was_kept_whole_count_as_one() -> None:
    """Better in one of three categories: sixty single images would be sure of it, three categories
    are not."""
    category = np.repeat([0, 1, 2], 20)
    right = np.stack([category == 0, np.zeros(60, dtype=bool)])
    is_novel = np.ones(60, dtype=bool)
    assert not rank(right, np.arange(60), is_novel).is_tie[0, 1]
    assert rank(right, category, is_novel).is_tie[0, 1]


def test_known_and_novel_units_are_drawn_apart() -> None:
    """All known images right, no novel one: however units are drawn, the share stays, with units of
    one size."""
    units = np.arange(40)
    is_novel = units >= 20
    found = rank((~is_novel)[None], units, is_novel)
    assert (found.low, found.high) == (0.5, 0.5)


def test_the_same_seed_gives_the_same_intervals_and_a_longer_interval_means_fewer_images() -> None:
    few = rights(5, n_images=10)
    many = rights(50, n_images=100)
    one, again = (rank(few, *singly(few), seed=3) for _ in range(2))
    assert (one.low, one.high) == (again.low, again.high)
    of_many = rank(many, *singly(many))
    assert one.high - one.low > 2 * (of_many.high - of_many.low)
    low, high = of_many.low[0], of_many.high[0]
    assert pytest.approx(low, abs=0.015) == 0.40  # a binomial of 100 at one half: 0.5 ± 1.96 · 0.05
    assert pytest.approx(high, abs=0.015) == 0.60


def test_all_right_or_all_wrong_is_no_certainty() -> None:
    """Twelve of twelve: p is in Wilson's interval where |1 - p| is at most 1.96 standard errors √(p
    (1 - p) / 12)."""
    right = rights(12, 0, 11, n_images=12)
    found = rank(right, *singly(right))
    low = found.low[0]
    assert 1 - low == pytest.approx(1.96 * (low * (1 - low) / 12) ** 0.5)
    assert (low, found.high[0]) == (pytest.approx(0.757, abs=0.001), 1)
    assert (found.low[1], found.high[1]) == (0, pytest.approx(1 - low))
    assert found.low[2] < low, "eleven of twelve are less"
    one_category = rank(right[:1], np.zeros(12, dtype=int), np.ones(12, dtype=bool))
    assert one_category.low == pytest.approx(0.2066, abs=0.001)


def test_more_methods_take_more_evidence() -> None:
    """Six images tell two methods apart; with a third there are three pairs, and 2 / 2^6 is above
    0.05 / 3."""
    two = rights(20, 26)
    assert not rank(two, *singly(two)).is_tie[1, 0]
    for n_more, is_clear in ((6, False), (7, True)):
        three = rights(20, 20 + n_more, 20)
        assert rank(three, *singly(three)).is_tie[1, 0] != is_clear


@pytest.mark.parametrize(
    ("n_methods", "n_known", "n_categories", "size"),
    [(2, 20, 1, 20), (2, 20, 2, 10), (2, 40, 5, 10), (4, 40, 3, 10), (8, 60, 5, 10)],
)
def test_of_equals_few_tables_call_a_difference(
    n_methods: int, n_known: int, n_categories: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods of the same skill, which find a whole category or miss it: by chance at most one
    table in twenty.

    Which pairs are clear is found without resamples, so one batch of them is enough.
    """
    monkeypatch.setattr(ranking, "N_RESAMPLES", ranking.AT_ONCE)
    rng = np.random.default_rng(0)
    units = np.concatenate([np.arange(n_known), np.repeat(100 + np.arange(n_categories), size)])
    n_called = 0
    for _ in range(100):
        known = rng.random((n_methods, n_known)) < 0.7
        whole = rng.random((n_methods, n_categories)) < 0.6
        right = np.concatenate([known, whole.repeat(size, axis=1)], axis=1)
        n_ties = int(rank(right, units, units >= 100).is_tie.sum())
        n_called += n_ties < n_methods * (n_methods - 1)
    assert n_called <= 5
