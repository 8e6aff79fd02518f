"""A novel category inside a known one is found from the positions of its images and of the labeled
ones."""

import math

import numpy as np
import pytest

from shoal.arrays import UNLABELED
from shoal.clustering.categories import (
    LABEL_RATIO_RANGE,
    MAX_COMPARED,
    STRAY_LABELS,
    find_mixtures,
    label_ratios,
    split_mixtures,
)
from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.sums import unit_points

N_EACH = 30
BULLDOG = 0


def breeds(n_breeds=8, spread=0.5, gap=1.0):
    """Return `N_EACH` rows of each breed. The last breed is `gap` away from the first; all others
    are far apart."""
    rng = np.random.default_rng(0)
    centers = 3 * np.eye(n_breeds, 32)
    centers[-1] = centers[0] + gap * np.eye(32)[-1]
    rows = np.repeat(centers, N_EACH, axis=0)
    return rows + spread * rng.normal(size=rows.shape) / np.sqrt(32)


def half_labeled(breed, n_known):
    is_labeled = (np.arange(len(breed)) % 2 == 0) & (breed < n_known)
    return np.where(is_labeled, breed, UNLABELED)


def test_a_breed_hidden_in_a_labeled_one_is_found_image_by_image():
    breed = np.repeat(np.arange(8), N_EACH)
    points = unit_points(breeds())
    merged = np.where(breed == 7, BULLDOG, breed)
    found = find_mixtures(points, merged, half_labeled(breed, 5), 7)
    assert found.probability[BULLDOG] > 0.9
    assert found.probability[1:].max() < 0.1
    members = merged == BULLDOG
    assert np.array_equal(found.is_apart[members], breed[members] == 7)


def test_labels_on_both_sides_speak_against_a_split():
    breed = np.repeat(np.arange(8), N_EACH)
    points = unit_points(breeds(gap=0.4))
    merged = np.where(breed == 7, BULLDOG, breed)
    on_one_side = half_labeled(breed, 5)
    on_both = on_one_side.copy()
    on_both[(breed == 7) & (np.arange(len(breed)) % 2 == 0)] = BULLDOG
    one = find_mixtures(points, merged, on_one_side, 7).probability[BULLDOG]
    both = find_mixtures(points, merged, on_both, 7).probability[BULLDOG]
    assert both < one / 2


def test_a_likely_mixture_is_split_and_keeps_its_labeled_images():
    breed = np.repeat(np.arange(8), N_EACH)
    labels = half_labeled(breed, 5)
    merged = np.where(breed == 7, BULLDOG, breed)
    mixtures = find_mixtures(unit_points(breeds()), merged, labels, 7)
    parted = split_mixtures(merged, labels, mixtures)
    assert np.array_equal(parted, breed)
    assert np.array_equal(parted[labels != UNLABELED], merged[labels != UNLABELED])
    assert np.array_equal(split_mixtures(merged, labels, mixtures, max_splits=0), merged)
    unlabeled = np.full(len(breed), UNLABELED)
    assert np.array_equal(split_mixtures(merged, unlabeled, mixtures), merged)


def test_the_label_ratio_is_that_of_a_count_of_all_ways_to_place_the_labels():
    rng = np.random.default_rng(1)
    is_labeled = rng.random(9) < 0.4
    parts = [rng.permutation(9)[:size] for size in (1, 2, 3, 4, 5, 7)]
    n_labeled = int(is_labeled.sum())
    for part, ratio in zip(parts, label_ratios(parts, is_labeled), strict=True):
        inside = int(is_labeled[part].sum())
        outside = n_labeled - inside
        if_one = math.comb(len(part), inside) * math.comb(9 - len(part), outside)
        if_one /= math.comb(9, n_labeled)
        if_other = math.comb(n_labeled, inside)
        if_other *= STRAY_LABELS**inside * (1 - STRAY_LABELS) ** outside
        assert ratio == pytest.approx(np.clip(math.log(if_other / if_one), *LABEL_RATIO_RANGE))


def test_images_beyond_those_compared_join_the_nearer_part():
    rng = np.random.default_rng(0)
    n = MAX_COMPARED + 500
    is_other = rng.random(n) < 0.4
    rows = np.where(is_other[:, None], np.eye(6)[0], np.eye(6)[1]) + 0.05 * rng.normal(size=(n, 6))
    points = unit_points(rows)
    labels = np.where(~is_other & (rng.random(n) < 0.3), 0, UNLABELED)
    found = find_mixtures(points, np.zeros(n, dtype=np.int64), labels, 1)
    assert np.array_equal(found.is_apart, is_other)


def test_a_split_keeps_to_the_range_that_was_given():
    breed = np.repeat(np.arange(8), N_EACH)
    labels = half_labeled(breed, 5)
    x = breeds(gap=0.6)
    kept = InferenceSettings(must_link=True, split_mixtures=True, max_clusters=7)
    assert infer(x, labels, None, kept).n_clusters == 7
    assert infer(x, labels, 7, InferenceSettings(split_mixtures=True)).n_clusters == 7


def test_few_or_equal_rows_have_no_second_category():
    points = unit_points(np.ones((3, 4)))
    assert not find_mixtures(
        points, np.zeros(3, dtype=np.int64), np.full(3, -1), 1
    ).probability.any()
    equal = unit_points(np.ones((12, 4)))
    found = find_mixtures(equal, np.zeros(12, dtype=np.int64), np.full(12, -1), 2)
    assert np.isfinite(found.probability).all()
    assert found.probability.max() < 0.1
