"""Rows that are equal, or become equal by shifting, share a cluster; otherwise their order in the
file would decide."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from shoal.clustering.estimators import MeanShiftClustering
from shoal.clustering.inference import InferenceSettings, infer, infer_inductive
from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.errors import DataError

KERNELS = {
    "knn": ShiftSettings(),
    # One shift moves 15 rows onto their mean.
    "whole groups": ShiftSettings(n_neighbors=14, alpha=14 / 15),
    "uniform": ShiftSettings(kernel="uniform"),
    "gaussian": ShiftSettings(kernel="gaussian"),
}


def draw_groups(dtype, n_groups=4, noise=0.2):
    """Sample 15 rows around each of a few directions; shifting with any kernel moves each group
    onto one point."""
    rng = np.random.default_rng(2)
    group = np.arange(15 * n_groups) % n_groups
    rows = rng.normal(size=(n_groups, 16))[group] + noise * rng.normal(size=(len(group), 16))
    labels = np.where((group < n_groups - 1) & (rng.random(len(group)) < 0.5), group, -1)
    return rows.astype(dtype), labels


def n_apart(found):
    """Count the rows that differ from all earlier ones by more than rounding, some hundred times
    the float32 resolution."""
    rows = found.embeddings.double().numpy()
    kept: list[np.ndarray] = []
    for row in rows:
        if all(np.abs(row - other).max() > 1e-5 for other in kept):
            kept.append(row)
    return len(kept)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n_clusters", [3, 12, 60])
def test_the_order_of_rows_changes_nothing_for_any_kernel(dtype, kernel, n_clusters):
    rows, labels = draw_groups(dtype)
    settings = InferenceSettings(shift=KERNELS[kernel])
    plain = infer(rows, labels, n_clusters, settings)
    assert n_apart(plain) >= n_clusters
    for order in (np.arange(60)[::-1], np.random.default_rng(0).permutation(60)):
        shuffled = infer(rows[order].copy(), labels[order], n_clusters, settings)
        assert (shuffled.accuracies, shuffled.n_shifts) == (plain.accuracies, plain.n_shifts)
        assert adjusted_rand_score(plain.labels[order], shuffled.labels) == 1.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_iterate_with_fewer_places_than_clusters_ends_the_shifting(dtype):
    """One shift moves 4 groups of 15 onto 4 points. K = 4 allows the usual shifts, K = 5 allows
    none."""
    rows, labels = draw_groups(dtype)
    settings = InferenceSettings(shift=KERNELS["whole groups"])
    assert len(infer(rows, labels, 4, settings).accuracies) == 3
    for labeled in (labels, np.full(60, -1)):
        found = infer(rows, labeled, 5, settings)
        assert (found.n_shifts, len(found.accuracies), len(np.unique(found.labels))) == (0, 1, 5)


def test_k_is_estimated_before_known_classes_fall_together():
    """The first of three shifts leaves 4 points for 5 known classes, so K is estimated on the tree
    before it."""
    rows, _ = draw_groups("float64", 5, noise=0.01)
    rows[4::5] = rows[3::5] + 0.02  # the fifth group is next to the fourth
    labels = np.where(np.arange(75) < 50, np.arange(75) % 5, -1)
    moves = ShiftSettings(kernel="uniform")
    with_none = infer(rows, labels, settings=InferenceSettings(shift=moves, estimate_shifts=0))
    found = infer(rows, labels, settings=InferenceSettings(shift=moves, estimate_shifts=3))
    assert (found.n_clusters, found.n_shifts, len(found.accuracies)) == (with_none.n_clusters, 0, 1)
    assert found.n_clusters >= 5


@pytest.mark.parametrize("noise", [0.0, 1e-8])
def test_more_clusters_than_distinct_rows_are_refused(noise):
    """20 rows, each ten times: exact copies, or copies that differ by float32 rounding only."""
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=(20, 8)), 10, axis=0)
    rows = (rows + noise * rng.normal(size=rows.shape)).astype(np.float32)
    labels = np.where(np.arange(200) < 100, np.arange(200) // 10, -1)
    with pytest.raises(DataError):
        infer(rows, labels, 30)
    with pytest.raises(DataError):
        MeanShiftClustering(30).fit(rows)
    with pytest.raises(DataError):
        infer_inductive(rng.normal(size=(200, 8)), rows, labels, 30)
    assert len(np.unique(MeanShiftClustering(20, max_shifts=0).fit(rows).labels_)) == 20


def test_rounding_makes_no_clusters_where_k_is_estimated():
    """8 places with 6 rows each that differ by rounding only: no K above 8 is tried, and the gap at
    K = 8 is zero."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(8), 6)
    rows = torch.from_numpy(rng.normal(size=(8, 16))[group])
    linkage = ward_linkage(rows + 1e-9 * torch.from_numpy(rng.normal(size=rows.shape)))
    # With one label per class, the rule is "gap".
    labels = np.where((np.arange(48) % 6 == 0) & (group < 3), group, -1)
    curve = estimate_n_clusters(Tree(linkage, rounding=1e-6), labels).curve
    assert (curve.n_distinct, curve.n_clusters[-1], curve.gap[-1]) == (8, 8, 0.0)
    assert estimate_n_clusters(Tree(linkage), labels).curve.n_distinct == 48
