"""Variance within the known classes is reduced in all images."""

import numpy as np
import pytest
import torch

from shoal.clustering.estimators import MeanShiftClustering
from shoal.clustering.inference import GRID, RIDGE, InferenceSettings, infer, reduce_within_class
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.sums import unit_points
from shoal.discovery.trained.evaluation import blend


def poses(n_images=20):
    """Rows, classes and labels: six classes, the first three labeled. Each class has two poses,
    which are farther apart than the classes and differ in the same direction in all of them."""
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(6), n_images)
    rows = 0.05 * rng.normal(size=(len(classes), 12))
    rows[np.arange(len(classes)), classes] += 1.0
    rows[:, 6] += np.where(np.arange(len(classes)) % 2 == 0, 2.0, -2.0)
    labels = np.where((classes < 3) & (np.arange(len(classes)) % 4 < 2), classes, -1)
    return rows, classes, labels


def test_what_varies_in_known_classes_does_not_split_novel_ones():
    rows, classes, labels = poses()
    is_novel = classes >= 3
    plain = infer(rows, labels, 6, InferenceSettings(max_shifts=0))
    found = infer(rows, labels, 6, InferenceSettings(max_shifts=0, must_link=True))
    trained = infer(rows, labels, 6, InferenceSettings(max_shifts=0, must_link=True), n_frozen=0)
    assert matched_accuracy(classes, found.labels) == 1.0
    assert matched_accuracy(classes[is_novel], plain.labels[is_novel]) < 0.7
    assert matched_accuracy(classes[is_novel], trained.labels[is_novel]) < 0.7
    assert MeanShiftClustering(6, max_shifts=0).fit(rows, labels).labels_[~is_novel].max() == 2


def test_of_a_blend_only_the_frozen_part_is_reduced():
    rows, classes, labels = poses()
    frozen = unit_points(rows)
    trained = unit_points(np.random.default_rng(3).normal(size=(len(rows), 5)))
    both = blend(frozen, trained, 0.8)
    found = reduce_within_class(both, labels, frozen.shape[1])
    expected = blend(reduce_within_class(frozen, labels), trained, 0.8)
    torch.testing.assert_close(found, expected, atol=50 / GRID, rtol=0)
    settings = InferenceSettings(max_shifts=0, must_link=True)
    is_novel = classes >= 3
    whole = infer(both, labels, 6, settings, n_frozen=0)
    reduced = infer(both, labels, 6, settings, n_frozen=frozen.shape[1])
    assert matched_accuracy(classes[is_novel], whole.labels[is_novel]) < 0.7
    assert matched_accuracy(classes, reduced.labels) == 1.0


@pytest.mark.parametrize("n_labeled", [9, 60])  # fewer and more labels than columns
def test_directions_shrink_by_their_variance_within_classes(n_labeled):
    """Each eigenvector of the within-class covariance, with eigenvalue v, is scaled by λ / (v +
    λ)."""
    rng = np.random.default_rng(1)
    points = unit_points(rng.normal(size=(80, 20)) * np.linspace(0.2, 3, 20))
    labels = np.where(np.arange(80) < n_labeled, np.arange(80) % 3, -1)
    rows = points.double().numpy()
    residuals = np.zeros((n_labeled, 20))
    for label in range(3):
        members = np.flatnonzero(labels == label)
        residuals[members] = rows[members] - rows[members].mean(axis=0)
    variances, directions = np.linalg.eigh(residuals.T @ residuals)
    ridge = RIDGE * (variances**2).sum() / variances.sum()
    centered = rows - rows.mean(axis=0)
    expected = centered @ directions * (ridge / (variances + ridge)) @ directions.T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(reduce_within_class(points, labels), expected, atol=50 / GRID)


def test_rows_in_another_order_or_twice_get_the_same_bits():
    rows, _, labels = poses()
    points = unit_points(rows)
    reduced = reduce_within_class(points, labels)
    order = np.random.default_rng(2).permutation(len(rows))
    assert torch.equal(reduce_within_class(points[order], labels[order]), reduced[order])
    twice = reduce_within_class(torch.cat([points, points]), np.concatenate([labels, labels]))
    assert torch.equal(twice[: len(rows)], twice[len(rows) :])


@pytest.mark.parametrize("labels", [[-1, -1, -1, -1], [0, 1, 2, -1], [0, 0, 1, -1]])
def test_without_different_rows_of_a_class_nothing_changes(labels):
    """No labels; one label per class; or one class with two labels, on two equal rows."""
    points = unit_points([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [1.0, 1.0, 0.0]])
    assert reduce_within_class(points, np.array(labels)) is points


def test_a_row_at_the_mean_stays():
    points = torch.eye(3, dtype=torch.float64)[[0, 0, 1, 1, 2]]
    points[4] = torch.tensor([0.5, 0.5, 0.0])  # the mean of all rows
    reduced = reduce_within_class(points, np.array([0, -1, 0, -1, -1]))
    assert torch.equal(reduced[4], points[4])
    assert reduced.isfinite().all()
