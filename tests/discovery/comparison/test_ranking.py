"""Ranks of hand-made tables of correct images."""

import numpy as np
import pytest

from shoal.discovery.comparison import evaluation
from shoal.discovery.comparison.evaluation import rank


def correct_table(*n_correct: int, n_images: int = 40) -> np.ndarray:
    """Return (M, J): the first n_correct[i] images of method i are correct."""
    return np.arange(n_images) < np.array(n_correct)[:, None]


def rank_images(right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank with every image as a unit of a known category."""
    n_images = right.shape[1]
    return np.arange(n_images), np.zeros(n_images, dtype=bool)


def ranges(found: evaluation.Ranking) -> list[list[int]]:
    return [found.rank_range(method) for method in range(len(found.accuracy))]


def test_clearly_different_methods_have_distinct_ranks_in_any_order() -> None:
    right = correct_table(20, 40, 2)
    found = rank(right, *rank_images(right))
    assert ranges(found) == [[2, 2], [1, 1], [3, 3]]
    assert found.accuracy.tolist() == [0.5, 1.0, 0.05]
    assert not found.is_tie.any()


@pytest.mark.parametrize(("n_more", "is_clear"), [(1, False), (5, False), (6, True)])
def test_a_difference_in_few_images_is_a_tie(n_more: int, is_clear: bool) -> None:
    """Five of five differences in favor of one method have a two-sided p-value of 1/16."""
    right = correct_table(5, 5 + n_more, n_images=12)
    assert rank(right, *rank_images(right)).is_tie[1, 0] != is_clear


def test_images_of_a_hidden_category_are_one_unit() -> None:
    """A method is better in one of three categories: significant for sixty single images, but not
    for three units."""
    category = np.repeat([0, 1, 2], 20)
    right = np.stack([category == 0, np.zeros(60, dtype=bool)])
    is_novel = np.ones(60, dtype=bool)
    assert not rank(right, np.arange(60), is_novel).is_tie[0, 1]
    assert rank(right, category, is_novel).is_tie[0, 1]


def test_known_and_novel_units_are_resampled_as_strata() -> None:
    """All known images and no novel ones are correct. Both strata are equally large and resampled
    separately, so every resample has the same accuracy."""
    units = np.arange(40)
    is_novel = units >= 20
    found = rank((~is_novel)[None], units, is_novel)
    assert (found.low, found.high) == (0.5, 0.5)


def test_intervals_are_reproducible_and_wider_with_fewer_images() -> None:
    few = correct_table(5, n_images=10)
    many = correct_table(50, n_images=100)
    one, again = (rank(few, *rank_images(few), seed=3) for _ in range(2))
    assert (one.low, one.high) == (again.low, again.high)
    of_many = rank(many, *rank_images(many))
    assert one.high - one.low > 2 * (of_many.high - of_many.low)
    low, high = of_many.low[0], of_many.high[0]
    assert pytest.approx(low, abs=0.015) == 0.40  # a binomial of 100 at one half: 0.5 ± 1.96 · 0.05
    assert pytest.approx(high, abs=0.015) == 0.60


def test_intervals_of_perfect_and_zero_accuracy_are_wilsons() -> None:
    """For twelve of twelve correct images, p is in Wilson's interval where |1 - p| is at most 1.96
    standard errors √(p (1 - p) / 12)."""
    right = correct_table(12, 0, 11, n_images=12)
    found = rank(right, *rank_images(right))
    low = found.low[0]
    assert 1 - low == pytest.approx(1.96 * (low * (1 - low) / 12) ** 0.5)
    assert (low, found.high[0]) == (pytest.approx(0.757, abs=0.001), 1)
    assert (found.low[1], found.high[1]) == (0, pytest.approx(1 - low))
    assert found.low[2] < low, "eleven of twelve are less"
    one_category = rank(right[:1], np.zeros(12, dtype=int), np.ones(12, dtype=bool))
    assert one_category.low == pytest.approx(0.2066, abs=0.001)


def test_more_methods_need_more_evidence() -> None:
    """Six images separate two methods significantly. With a third method there are three pairs, and
    2 / 2^6 is above 0.05 / 3."""
    two = correct_table(20, 26)
    assert not rank(two, *rank_images(two)).is_tie[1, 0]
    for n_more, is_clear in ((6, False), (7, True)):
        three = correct_table(20, 20 + n_more, 20)
        assert rank(three, *rank_images(three)).is_tie[1, 0] != is_clear


@pytest.mark.parametrize(
    ("n_methods", "n_known", "n_categories", "size"),
    [(2, 20, 1, 20), (2, 20, 2, 10), (2, 40, 5, 10), (4, 40, 3, 10), (8, 60, 5, 10)],
)
def test_equal_methods_rarely_differ_significantly(
    n_methods: int, n_known: int, n_categories: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equally good methods, which find whole categories or miss them, differ significantly in
    at most one table in twenty. Significance does not use resamples, so one batch of them is
    enough."""
    monkeypatch.setattr(evaluation, "N_RESAMPLES", evaluation.BATCH_RESAMPLES)
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
