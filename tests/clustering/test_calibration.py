"""Confidence against true accuracy on digits; half of the images of half of the classes are
labeled."""

import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.datasets import load_digits

from shoal.clustering.calibration import (
    UNCHECKED_CONFIDENCE,
    Calibration,
    calibrate,
)
from shoal.clustering.categories import number_clusters, other_neighbors, same_category_share
from shoal.clustering.inference import infer
from shoal.clustering.sums import unit_points


@dataclass
class Task:
    """Digits in fewer categories than classes, so that many are misplaced. Odd digits are the known
    classes."""

    rows: np.ndarray
    truth: np.ndarray
    labels: np.ndarray
    categories: np.ndarray
    n_categories: int
    share: np.ndarray
    neighbors: np.ndarray

    def calibrate(self, labels=None, **options):
        labels = self.labels if labels is None else labels
        sizes = {"n_categories": self.n_categories, "n_known": 5}
        return calibrate(
            self.categories, labels, self.share, self.neighbors, self.rows, **sizes, **options
        )

    @property
    def right(self):
        """In a known category, whether the image is correct; in a novel one, the share of the other
        images that have its class."""
        counts = np.zeros((self.n_categories, 10))
        np.add.at(counts, (self.categories, self.truth), 1)
        alike = (counts[self.categories, self.truth] - 1) / np.maximum(
            counts.sum(axis=1)[self.categories] - 1, 1
        )
        return np.where(self.categories < 5, self.truth == self.categories, alike)


def make_task(images, truth, labels, n_clusters):
    points = unit_points(images)
    rows = points.numpy()
    categories, n_novel = number_clusters(infer(points, labels, n_clusters).labels, labels, 5, rows)
    lists = other_neighbors(points, 8)
    share = same_category_share(lists, categories, categories)
    return Task(rows, truth, labels, categories, 5 + n_novel, share, lists.indices.numpy())


@pytest.fixture(scope="module")
def task():
    images, digits = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    truth = np.where(digits % 2 == 1, digits // 2, 5 + digits // 2)  # odd digits are 0 … 4
    labels = np.where((truth < 5) & (rng.random(len(truth)) < 0.5), truth, -1)
    return make_task(images, truth, labels, 8)


def error(confidence, right):
    """Return the expected calibration error over ten bins."""
    bins = np.minimum((confidence * 10).astype(int), 9)
    gaps = [
        abs(confidence[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean()
        for b in np.unique(bins)
    ]
    return float(sum(gaps))


def test_confidence_is_nearer_to_the_truth_than_the_share_of_neighbors(task):
    found = task.calibrate().confidence(task.share, task.categories, task.labels >= 0)
    hidden = task.labels < 0
    before, after = (error(each[hidden], task.right[hidden]) for each in (task.share, found))
    assert before > 0.2
    assert after < 0.6 * before
    assert ((found >= 0) & (found <= 1)).all()


def test_the_order_of_images_changes_nothing(task):
    found = task.calibrate().confidence(task.share, task.categories, task.labels >= 0)
    order = np.random.default_rng(1).permutation(len(task.labels))
    neighbors = np.argsort(order)[task.neighbors[order]]
    rows = task.rows[order]
    categories, labels, share = (each[order] for each in (task.categories, task.labels, task.share))
    turned = calibrate(
        categories, labels, share, neighbors, rows, n_categories=task.n_categories, n_known=5
    )
    assert np.abs(turned.confidence(share, categories, labels >= 0) - found[order]).max() < 1e-12


def test_with_few_labels_nothing_is_calibrated_and_confidence_is_the_share(task):
    for labels in (
        np.full(len(task.labels), -1),
        np.where(np.cumsum(task.labels >= 0) <= 19, task.labels, -1),
    ):
        found = task.calibrate(labels)
        assert found.label_rate is None
        assert found.to_dict()["is_calibrated"] is False
        confidence = found.confidence(task.share, task.categories, labels >= 0)
        most = np.where(labels >= 0, 1.0, UNCHECKED_CONFIDENCE)
        assert np.allclose(confidence, np.minimum(task.share, most))


def test_labels_that_training_saw_are_no_evidence(task):
    labeled = np.flatnonzero(task.labels >= 0)
    few = task.calibrate(held_out=labeled[::4])
    assert few.labeled.n_images.sum() < 0.5 * task.calibrate().labeled.n_images.sum()
    assert task.calibrate(held_out=np.zeros(0, dtype=np.int64)).label_rate is None


def test_what_was_written_is_read_back(task):
    found = task.calibrate()
    again = Calibration.from_dict(found.to_dict())
    at = np.array([0, 4, task.n_categories - 1])
    share = np.array([0.0, 0.4, 1.0])
    assert (
        found.confidence(share, at, at < 0).tolist() == again.confidence(share, at, at < 0).tolist()
    )


@pytest.mark.slow
def test_discovering_imports_no_scikit_learn():
    """scikit-learn imports pandas and scipy.stats, which takes half as long again as torch."""
    code = (
        "import sys, shoal.discovery.api; sys.exit('sklearn' in sys.modules or 'pandas' in "
        "sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
