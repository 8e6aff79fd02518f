import numpy as np
import pytest
import torch
from scipy.stats import multivariate_t

from shoal.methods.gpc import (
    Prior,
    log_evidence,
    prior_of_classes,
    split_and_merge,
)

RNG = np.random.default_rng(0)
CENTERS = np.array([[0.0, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 9], [9, 9, 9]])
TRUTH = np.arange(200) % 5
POINTS = CENTERS[TRUTH] + RNG.normal(size=(200, 3))
LABELS = np.where((TRUTH < 2) & (np.arange(200) % 10 < 5), TRUTH, -1)
PRIOR = prior_of_classes(POINTS, LABELS)


def change(clusters, labels=LABELS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return split_and_merge(POINTS, clusters, labels, PRIOR, concentration=1.0, generator=generator)


def same_groups(first, second):
    return (
        len(np.unique(first)) == len(np.unique(second)) == len(set(zip(first, second, strict=True)))
    )


def test_the_evidence_is_the_product_of_what_each_point_was_predicted_with():
    """Each point has a Student's t predictive density given the earlier points; then the four
    parameters of the prior are updated."""
    mean = np.array([0.3, -0.2, 0.1])
    weight = 0.7
    freedom = 6.5
    scatter = np.array([[2.0, 0.3, 0], [0.3, 1.0, 0.1], [0, 0.1, 3.0]])
    points = RNG.normal(size=(5, 3))
    found = log_evidence(points, Prior(mean, weight, scatter, freedom))
    expected = 0.0
    for point in points:
        df = freedom - 2
        expected += multivariate_t.logpdf(point, mean, scatter * (weight + 1) / (weight * df), df)
        scatter = scatter + weight / (weight + 1) * np.outer(point - mean, point - mean)
        mean = (weight * mean + point) / (weight + 1)
        weight = weight + 1
        freedom = freedom + 1
    assert found == pytest.approx(expected, rel=1e-10)


def test_the_prior_is_as_wide_as_the_labeled_classes_and_as_far_apart():
    rows = [POINTS[each == LABELS] for each in (0, 1)]
    apart = [point - own.mean(axis=0) for own in rows for point in own]
    within = sum(np.outer(point, point) for point in apart) / (len(apart) - 2)
    worth = len(apart) - 2
    assert PRIOR.freedom == 4 + worth
    expected = worth * (within + 1e-3 * np.trace(within) / 3 * np.eye(3))
    np.testing.assert_allclose(PRIOR.scatter, expected)
    off = [np.sum((own.mean(axis=0) - POINTS.mean(axis=0)) ** 2) for own in rows]
    assert PRIOR.mean_weight == pytest.approx(np.trace(expected) / worth / np.mean(off))
    vague = prior_of_classes(POINTS, np.full(200, -1))
    assert vague.mean_weight == 1e-4


def test_a_cluster_of_two_groups_is_split_and_halves_of_one_group_are_joined():
    two = np.where(TRUTH == 4, 3, TRUTH)  # groups 3 and 4 are one cluster
    assert same_groups(change(two), TRUTH)
    halves = np.where((TRUTH == 4) & (POINTS[:, 0] > 9), 5, TRUTH)
    assert same_groups(change(halves), TRUTH)
    assert same_groups(change(TRUTH), TRUTH), "what is right stays"


def test_a_known_class_gives_away_unlabeled_images_and_no_labeled_one():
    mixed = np.where(TRUTH == 2, 0, TRUTH)
    mixed[TRUTH > 2] -= 1
    found = change(mixed)
    assert same_groups(found, TRUTH)
    assert np.array_equal(found[LABELS >= 0], LABELS[LABELS >= 0])
    wrong = np.where(TRUTH == 4, 0, LABELS)  # labels that no Gaussian explains
    kept = change(np.where(wrong >= 0, wrong, TRUTH), wrong)
    assert np.array_equal(kept[wrong >= 0], wrong[wrong >= 0])


def test_numbers_have_no_gaps_and_equal_seeds_give_equal_clusters():
    begun = np.where(TRUTH < 2, TRUTH, 2)
    found = change(begun, seed=3)
    assert np.array_equal(np.unique(found), np.arange(found.max() + 1))
    assert np.array_equal(found, change(begun, seed=3))
    assert same_groups(change(change(begun)), TRUTH), "three groups in one cluster take two rounds"


def test_copies_and_tiny_clusters_are_not_split():
    points = np.zeros((12, 2))
    prior = prior_of_classes(points, np.full(12, -1))
    generator = torch.Generator().manual_seed(0)
    found = split_and_merge(
        points, np.zeros(12, int), np.full(12, -1), prior, concentration=1.0, generator=generator
    )
    assert found.tolist() == [0] * 12


def test_no_part_of_a_split_has_five_points_or_fewer():
    """Five far-away points would be a cluster of their own but for their number; six are one."""
    points = np.concatenate([POINTS[TRUTH == 3], CENTERS[4] + RNG.normal(size=(6, 3))])
    for n_far, n_expected in ((5, 1), (6, 2)):
        some = points[: 40 + n_far]
        found = split_and_merge(
            some,
            np.zeros(len(some), dtype=np.int64),
            np.full(len(some), -1),
            PRIOR,
            concentration=1.0,
            generator=torch.Generator().manual_seed(0),
        )
        assert len(np.unique(found)) == n_expected
