from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score

from shoal.clustering import mean_shift as mean_shift_module
from shoal.clustering import neighbors as neighbors_module
from shoal.clustering import sums
from shoal.clustering.inference import (
    InferenceSettings,
    has_peaked,
    infer,
    infer_inductive,
    linked_clusters,
)
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.mean_shift import ShiftSettings, mean_shift
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.errors import DataError, UsageError

Collection = tuple[np.ndarray, np.ndarray, np.ndarray]


def draw(seed, n_classes=6, per_class=15, noise=1.1):
    """Sample overlapping classes: embeddings, labels (half of the images of all but two classes),
    hidden truth."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(n_classes), per_class))
    rows = rng.normal(size=(n_classes, 10))[truth] + noise * rng.normal(size=(len(truth), 10))
    labels = np.where((truth < n_classes - 2) & (rng.random(len(truth)) < 0.5), truth, -1)
    return rows, labels, truth


def slow_infer(rows, labels, n_clusters, k, max_shifts):
    """Algorithm 1 as printed, with loops over points and scipy's linkage."""
    points = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    clusters = []
    accuracies = []
    for t in range(max_shifts + 1):
        clusters.append(fcluster(linkage(points, "ward"), n_clusters, "maxclust"))
        labeled = labels >= 0
        accuracies.append(matched_accuracy(labels[labeled], clusters[t][labeled]))
        if t > 1 and accuracies[t - 2] >= max(accuracies[t - 1], accuracies[t]):
            return clusters[t - 2].tolist(), t - 2, accuracies
        moved = []
        for i in range(len(points)):
            others = sorted(
                (-float(points[i] @ points[j]), j) for j in range(len(points)) if j != i
            )[:k]
            mean = 0.5 * points[i] + 0.5 / k * sum(points[j] for _, j in others)
            moved.append(mean / np.linalg.norm(mean))
        points = np.array(moved)
    best = int(np.argmax(accuracies))
    return clusters[best].tolist(), best, accuracies


@pytest.mark.parametrize(
    ("seed", "max_shifts"),
    [(0, 20), (1, 1), *(pytest.param(seed, 20, marks=pytest.mark.slow) for seed in (1, 2))],
)
def test_inference_is_algorithm_1_as_printed(seed, max_shifts):
    rows, labels, _ = draw(seed)
    found = infer(rows, labels, 6, InferenceSettings(max_shifts=max_shifts))
    expected, n_shifts, accuracies = slow_infer(rows, labels, 6, 8, max_shifts)
    assert found.accuracies == pytest.approx(accuracies)
    assert found.n_shifts == n_shifts
    assert adjusted_rand_score(expected, found.labels) == 1.0


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.9], False),
        ([0.9, 0.1], False),
        ([0.5, 0.4, 0.3], True),
        ([0.5, 0.5, 0.5], True),  # ties keep the earlier iterate
        ([0.5, 0.4, 0.6], False),
        ([0.5, 0.6, 0.4], False),
        ([0.9, 0.1, 0.5, 0.4], False),  # compares only the iterate two back
    ],
)
def test_an_iterate_is_returned_when_neither_of_the_next_two_is_better(accuracies, expected):
    assert has_peaked(accuracies) is expected


def assert_same(found, expected):
    assert np.array_equal(found.labels, expected.labels)
    assert torch.equal(found.embeddings, expected.embeddings)
    assert (found.n_clusters, found.n_shifts) == (expected.n_clusters, expected.n_shifts)
    assert found.accuracies == expected.accuracies
    assert np.array_equal(found.tree.linkage, expected.tree.linkage)


def test_batch_size_and_threads_change_nothing(monkeypatch):
    rows, labels, _ = draw(1)
    expected = infer(rows, labels)
    for module in (mean_shift_module, sums):
        monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    monkeypatch.setitem(neighbors_module.BLOCK_BYTES, "cpu", 4 * 90 * 64)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert_same(infer(rows, labels), expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("estimate_shifts", [0, 1, 2, 3])
def test_k_is_estimated_after_the_shifts_asked_for(estimate_shifts):
    """Every shift changes the estimate on these classes, so one shift too many or too few would be
    noticed."""
    rows, labels, _ = draw(1, per_class=30, noise=1.5)
    settings = InferenceSettings(rule="paper", estimate_shifts=estimate_shifts, max_clusters=40)
    found = infer(rows, labels, settings=settings)
    points = unit_points(rows)
    own = torch.arange(len(rows))
    expected = []
    for _ in range(5):
        tree = Tree(linkage(points.numpy(), "ward"))
        expected.append(estimate_n_clusters(tree, labels, rule="paper", max_clusters=40).n_clusters)
        points = mean_shift(
            points, points, k_nearest(points, points, 8, exclude=own).indices, alpha=0.5
        )
    assert expected == [7, 4, 5, 4, 8]
    assert found.estimate is not None
    assert (
        found.n_clusters
        == found.estimate.n_clusters
        == expected[estimate_shifts]
        == len(np.unique(found.labels))
    )
    # Except for the estimate, passing the estimated K gives the same result.
    assert_same(infer(rows, labels, found.n_clusters), found)


def test_without_labels_k_must_be_given_and_one_shift_is_made():
    rows, _, _ = draw(5)
    nothing = np.full(len(rows), -1)
    found = infer(rows, nothing, 6)
    assert (found.n_shifts, len(np.unique(found.labels))) == (1, 6)
    assert np.isnan(found.accuracies).all()
    with pytest.raises(UsageError):
        infer(rows, nothing)


def test_inductive_inference_on_the_validation_set_itself_is_transductive():
    rows, labels, _ = draw(6)
    assert_same(infer_inductive(rows, rows, labels, 6), infer(rows, labels, 6))


def test_inductive_inference_stops_by_the_validation_set_alone():
    """With other test images and the same validation set, the accuracies and hence the number of
    shifts are the same."""
    rows, labels, _ = draw(7)
    one = infer_inductive(draw(8)[0], rows, labels)
    other = infer_inductive(draw(9)[0], rows, labels)
    assert one.accuracies == other.accuracies
    assert (one.n_shifts, one.n_clusters) == (other.n_shifts, other.n_clusters)
    assert len(np.unique(one.labels)) == one.n_clusters


def test_unit_rows_hold_at_any_scale():
    rows = np.array([[3e-200, 4e-200], [3e200, 4e200], [3.0, 4.0]])
    torch.testing.assert_close(
        unit_points(rows), torch.tensor([[0.6, 0.8]] * 3, dtype=torch.float64)
    )
    assert unit_points(torch.ones(2, 4, dtype=torch.float16)).dtype == torch.float32


def test_bad_arguments_are_refused():
    rows, labels, _ = draw(0)
    with pytest.raises(DataError):
        infer(rows, labels[:-1])
    with pytest.raises(UsageError):
        infer(rows, labels, 6, InferenceSettings(shift=ShiftSettings(n_neighbors=90)))
    with pytest.raises(DataError):
        infer(rows, np.where(labels == 2, 2, -1))
    with pytest.raises(DataError):
        infer(rows[:1], labels[:1], 1)
    with pytest.raises(UsageError):
        InferenceSettings(max_shifts=-1)
    with pytest.raises(UsageError):
        InferenceSettings(max_clusters=9.0)
    with pytest.raises(UsageError):
        infer(rows, labels, 6.0)


@pytest.mark.gpu
def test_cpu_and_gpu_agree():
    rows, labels, _ = draw(3, per_class=100)
    on_cpu = infer(rows, labels)
    on_gpu = infer(torch.as_tensor(rows).cuda(), labels)
    assert torch.equal(on_gpu.embeddings.cpu(), on_cpu.embeddings)
    assert np.array_equal(on_gpu.labels, on_cpu.labels)
    assert on_gpu.accuracies == on_cpu.accuracies


@pytest.mark.parametrize("n_clusters", [6, 9, 20])
def test_no_cluster_holds_two_classes_and_there_are_as_many_as_asked_for(n_clusters):
    """Classes that coincide, so that the tree joins them."""
    rng = np.random.default_rng(1)
    x = unit_points(rng.normal(size=(90, 6)))
    labels = np.where(np.arange(90) < 60, np.arange(90) % 6, -1)
    linked = linked_clusters(x, labels, n_clusters)
    assert linked is not None
    tree, found = linked
    assert len(np.unique(tree.cut(n_clusters)[:6])) < 6  # in the plain cut, classes share a cluster
    assert len(np.unique(found)) == n_clusters
    assert len(set(zip(labels[:60].tolist(), found[:60].tolist(), strict=True))) == 6
    assert len(np.unique(found[:6])) == 6
    assert found[0] == 0  # clusters are numbered by first image


def test_must_links_change_neither_the_number_of_clusters_nor_of_shifts():
    """Both are chosen without must-links, because with them labeled images are correct whatever is
    chosen."""
    x, labels, _ = draw(0)
    settings = InferenceSettings(shift=ShiftSettings(n_neighbors=4))
    plain = infer(x, labels, None, settings)
    linked = infer(x, labels, None, replace(settings, must_link=True))
    assert (plain.n_clusters, plain.n_shifts, plain.accuracies) == (
        linked.n_clusters,
        linked.n_shifts,
        linked.accuracies,
    )
    assert matched_accuracy(labels[labels >= 0], linked.labels[labels >= 0]) == 1.0


def test_a_copy_of_a_labeled_row_stays_with_it():
    x, labels, _ = draw(0)
    copied = np.flatnonzero(labels >= 0)[:5]
    both = np.concatenate([x, x[copied]])
    given = np.concatenate([labels, np.full(5, -1)])
    found = infer(both, given, 6, InferenceSettings(max_shifts=0, must_link=True)).labels
    np.testing.assert_array_equal(found[copied], found[-5:])
