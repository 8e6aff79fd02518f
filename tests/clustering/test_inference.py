from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage

from shoal.clustering import iterates as iterates_module
from shoal.clustering import neighbors as neighbors_module
from shoal.clustering import sums
from shoal.clustering.inference import (
    PAPER,
    Inference,
    InferenceSettings,
    infer,
    infer_inductive,
    stops,
)
from shoal.clustering.iterates import unit_tree
from shoal.clustering.links import Links
from shoal.clustering.matching import adjusted_rand, matched_accuracy
from shoal.clustering.mean_shift import ShiftSettings, mean_shift
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.errors import DataError, UsageError

Collection = tuple[np.ndarray, np.ndarray, np.ndarray]


def draw(seed: int, n_classes: int = 6, per_class: int = 15, noise: float = 1.1) -> Collection:
    """Overlapping classes: embeddings, labels (half of the images of all but two classes), hidden
    truth."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(n_classes), per_class))
    rows = rng.normal(size=(n_classes, 10))[truth] + noise * rng.normal(size=(len(truth), 10))
    labels = np.where((truth < n_classes - 2) & (rng.random(len(truth)) < 0.5), truth, -1)
    return rows, labels, truth


def slow_infer(
    rows: np.ndarray, labels: np.ndarray, n_clusters: int, k: int, max_shifts: int
) -> tuple[list, int, list]:
    """Algorithm 1 as it is printed: every line a loop over points, scipy's tree, the answer looked
    up at the end."""
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
def test_inference_is_algorithm_1_as_printed(seed: int, max_shifts: int) -> None:
    rows, labels, _ = draw(seed)
    found = infer(rows, labels, 6, InferenceSettings(max_shifts=max_shifts))
    expected, n_shifts, accuracies = slow_infer(rows, labels, 6, 8, max_shifts)
    assert found.accuracies == pytest.approx(accuracies)
    assert found.n_shifts == n_shifts
    assert adjusted_rand(expected, found.labels) == 1.0


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.9], False),
        ([0.9, 0.1], False),
        ([0.5, 0.4, 0.3], True),
        ([0.5, 0.5, 0.5], True),  # ties keep the earlier iterate
        ([0.5, 0.4, 0.6], False),
        ([0.5, 0.6, 0.4], False),
        ([0.9, 0.1, 0.5, 0.4], False),  # only the iterate two back is asked
    ],
)
def test_an_iterate_is_returned_when_neither_of_the_next_two_is_better(
    accuracies: list[float], expected: bool
) -> None:
    assert stops(accuracies) is expected


def test_six_points_in_two_groups() -> None:
    """Directions 0, 5, 10 and 80, 85, 90 degrees; one image of each group is labeled.

    Both groups are whole at once, accuracy 1, so the iterate without a shift is returned after two
    that are no better.
    """
    radians = np.deg2rad([0, 5, 10, 80, 85, 90])
    rows = np.stack([np.cos(radians), np.sin(radians)], axis=1)
    settings = InferenceSettings(shift=ShiftSettings(n_neighbors=2))
    found = infer(rows, [0, -1, -1, -1, -1, 1], 2, settings)
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (found.n_shifts, found.accuracies) == (0, (1.0, 1.0, 1.0))


def assert_same(found: Inference, expected: Inference) -> None:
    assert np.array_equal(found.labels, expected.labels)
    assert torch.equal(found.embeddings, expected.embeddings)
    assert (found.n_clusters, found.n_shifts) == (expected.n_clusters, expected.n_shifts)
    assert found.accuracies == expected.accuracies
    assert np.array_equal(found.tree.linkage, expected.tree.linkage)


def test_labels_that_are_given_do_matter() -> None:
    """Hidden ones have no argument here; that they reach nothing is proved where they are read,
    through `evaluate`."""
    rows, labels, _ = draw(0)
    is_labeled = labels >= 0
    shuffled = labels.copy()
    shuffled[is_labeled] = np.random.default_rng(9).permutation(labels[is_labeled])
    assert infer(rows, shuffled).accuracies != infer(rows, labels).accuracies


def test_batch_size_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels, _ = draw(1)
    expected = infer(rows, labels)
    for module in (iterates_module, sums):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    monkeypatch.setitem(neighbors_module.BLOCK_BYTES, "cpu", 4 * 90 * 64)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert_same(infer(rows, labels), expected)
    finally:
        torch.set_num_threads(threads)


def test_the_order_of_files_changes_nothing() -> None:
    rows, labels, _ = draw(2)
    order = np.random.default_rng(0).permutation(len(rows))
    plain = infer(rows, labels)
    shuffled = infer(rows[order], labels[order])
    assert (shuffled.n_clusters, shuffled.n_shifts) == (plain.n_clusters, plain.n_shifts)
    assert shuffled.accuracies == plain.accuracies
    assert torch.equal(shuffled.embeddings, plain.embeddings[order])
    assert adjusted_rand(plain.labels[order], shuffled.labels) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("estimate_shifts", [0, 1, 2, 3])
def test_k_is_estimated_after_the_shifts_asked_for(estimate_shifts: int) -> None:
    """On these classes every shift changes the estimate, so that one more or one less would be
    seen."""
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
    # The estimate aside, K given or found is the same.
    assert_same(infer(rows, labels, found.n_clusters), found)


def test_the_papers_settings_are_the_papers() -> None:
    rows, labels, _ = draw(4)
    found = infer(rows, labels, settings=PAPER)
    tree = Tree(linkage(unit_points(rows).numpy(), "ward"))
    assert found.n_clusters == estimate_n_clusters(tree, labels, rule="paper").n_clusters
    assert (PAPER.shift.n_neighbors, PAPER.shift.alpha, PAPER.shift.kernel) == (8, 0.5, "knn")


def test_without_labels_k_must_be_given_and_one_shift_is_made() -> None:
    rows, _, _ = draw(5)
    nothing = np.full(len(rows), -1)
    found = infer(rows, nothing, 6)
    assert (found.n_shifts, len(np.unique(found.labels))) == (1, 6)
    assert np.isnan(found.accuracies).all()
    with pytest.raises(UsageError):
        infer(rows, nothing)


@pytest.mark.parametrize(("most", "expected"), [(0, 0), (2, 2), (20, 3)])
def test_without_labels_no_more_shifts_are_made_than_allowed(most: int, expected: int) -> None:
    rows, _, _ = draw(5)
    settings = InferenceSettings(max_shifts=most, unlabeled_shifts=3)
    found = infer(rows, np.full(len(rows), -1), 6, settings)
    assert (found.n_shifts, len(found.accuracies)) == (expected, expected + 1)
    assert torch.equal(found.embeddings, unit_points(rows)) is (expected == 0)


def test_inductive_inference_on_the_validation_set_itself_is_transductive() -> None:
    rows, labels, _ = draw(6)
    assert_same(infer_inductive(rows, rows, labels, 6), infer(rows, labels, 6))


def test_inductive_inference_stops_by_the_validation_set_alone() -> None:
    """Other test images, same validation: the accuracies, hence the number of shifts, are the
    same."""
    rows, labels, _ = draw(7)
    one = infer_inductive(draw(8)[0], rows, labels)
    other = infer_inductive(draw(9)[0], rows, labels)
    assert one.accuracies == other.accuracies
    assert (one.n_shifts, one.n_clusters) == (other.n_shifts, other.n_clusters)
    assert len(np.unique(one.labels)) == one.n_clusters


@pytest.mark.parametrize(
    "moves",
    [
        ShiftSettings(kernel="uniform", min_similarity=0.5),
        ShiftSettings(kernel="gaussian", bandwidth=0.3),
        ShiftSettings(retrieval="random"),
    ],
)
def test_every_kernel_of_the_paper_runs_through_inference(moves: ShiftSettings) -> None:
    rows, labels, _ = draw(0)
    settings = InferenceSettings(shift=moves, max_shifts=3)
    found, again = (
        infer(rows, labels, 6, settings, generator=torch.Generator().manual_seed(0))
        for _ in range(2)
    )
    assert len(np.unique(found.labels)) == 6
    assert_same(found, again)


def test_duplicates_end_in_one_cluster() -> None:
    rows, labels, _ = draw(1)
    rows = np.repeat(rows, 3, axis=0)
    labels = np.repeat(labels, 3)
    found = infer(rows, labels, 6)
    assert (found.labels.reshape(-1, 3) == found.labels[::3, None]).all()


def test_tensors_and_arrays_are_alike() -> None:
    rows, labels, _ = draw(2)
    found = infer(rows, labels, 6)
    assert_same(infer(torch.from_numpy(rows), labels, 6), found)
    assert_same(infer(np.asfortranarray(rows), labels, 6), found)


def test_unit_rows_hold_at_any_scale() -> None:
    rows = np.array([[3e-200, 4e-200], [3e200, 4e200], [3.0, 4.0]])
    torch.testing.assert_close(
        unit_points(rows), torch.tensor([[0.6, 0.8]] * 3, dtype=torch.float64)
    )
    assert unit_points(torch.ones(2, 4, dtype=torch.float16)).dtype == torch.float32


def test_bad_rows_are_named() -> None:
    rows, labels, _ = draw(0)
    broken = rows.copy()
    broken[[3, 8]] = np.nan
    for given in (broken, torch.from_numpy(broken)):
        with pytest.raises(DataError):
            infer(given, labels)
    broken[[3, 8]] = 0
    for given in (broken, torch.from_numpy(broken)):
        with pytest.raises(DataError):
            infer(given, labels)


@pytest.mark.parametrize("n_clusters", [0, 3, 91])
def test_k_lies_between_known_classes_and_images(n_clusters: int) -> None:
    rows, labels, _ = draw(0)
    with pytest.raises(UsageError):
        infer(rows, labels, n_clusters)
    with pytest.raises(UsageError):
        infer_inductive(rows, rows, labels, n_clusters)


def test_bad_arguments_are_refused() -> None:
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


def test_one_labeled_class_is_enough_where_k_is_given() -> None:
    rows, labels, _ = draw(0)
    assert infer(rows, np.where(labels == 2, 2, -1), 6).n_clusters == 6


@pytest.mark.gpu
def test_cpu_and_gpu_agree() -> None:
    rows, labels, _ = draw(3, per_class=100)
    on_cpu = infer(rows, labels, device="cpu")
    on_gpu = infer(rows, labels, device="cuda")
    assert torch.equal(on_gpu.embeddings.cpu(), on_cpu.embeddings)
    assert np.array_equal(on_gpu.labels, on_cpu.labels)
    assert on_gpu.accuracies == on_cpu.accuracies


def test_a_memory_mapped_file_is_read_without_a_warning_and_not_written(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(20, 4)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert torch.equal(unit_points(mapped), unit_points(np.array(mapped)))


def test_linked_classes_give_the_tree_of_weighted_class_means() -> None:
    """A slow reference: Ward by definition, begun with one cluster per labeled class and one per
    other row."""
    rng = np.random.default_rng(0)
    x = unit_points(rng.normal(size=(40, 5)))
    labels = np.where(np.arange(40) < 12, np.arange(40) % 3, -1)
    groups = [[int(row) for row in np.flatnonzero(labels == label)] for label in range(3)]
    groups += [[row] for row in range(12, 40)]
    points = x.double().numpy()
    while len(groups) > 9:
        pairs = [
            (_ward_cost(points, a, b), i, j)
            for i, a in enumerate(groups)
            for j, b in enumerate(groups[:i])
        ]
        _, i, j = min(pairs)
        groups[j] += groups.pop(i)
    expected = np.empty(40, dtype=int)
    for number, rows in enumerate(groups):
        expected[rows] = number
    found = unit_tree(Links.of(x, labels).rows).cut(9)
    assert matched_accuracy(expected, found) == 1.0


@pytest.mark.parametrize("n_clusters", [6, 9, 20])
def test_no_cluster_holds_two_classes_and_there_are_as_many_as_asked_for(n_clusters: int) -> None:
    """Classes that lie upon each other, which the tree joins."""
    rng = np.random.default_rng(1)
    x = unit_points(rng.normal(size=(90, 6)))
    labels = np.where(np.arange(90) < 60, np.arange(90) % 6, -1)
    links = Links.of(x, labels)
    tree = unit_tree(links.rows)
    assert len(np.unique(tree.cut(n_clusters)[:6])) < 6  # without parting, classes share a cluster
    found = links.cut(tree, n_clusters)
    assert len(np.unique(found)) == n_clusters
    assert (
        len(
            {
                (int(label), int(cluster))
                for label, cluster in zip(labels[:60], found[:60], strict=True)
            }
        )
        == 6
    )
    assert len(np.unique(found[:6])) == 6
    assert found[0] == 0  # numbered by their first image


def test_a_parted_image_goes_to_the_nearest_class_mean() -> None:
    """Two classes in one cluster: of the unlabeled images each is with the class whose mean is
    nearer."""
    x = unit_points(
        np.array(
            [[1.0, 0.1], [1.0, 0.0], [1.0, -0.1], [1.0, -0.2], [1.0, 0.08], [1.0, -0.19], [-1.0, 0]]
        )
    )
    labels = np.array([0, 0, 1, 1, -1, -1, -1])
    links = Links.of(x, labels)
    np.testing.assert_array_equal(links.cut(unit_tree(links.rows), 3), [0, 0, 1, 1, 0, 1, 2])


def _ward_cost(points: np.ndarray, a: list[int], b: list[int]) -> float:
    gap = points[a].mean(axis=0) - points[b].mean(axis=0)
    return len(a) * len(b) / (len(a) + len(b)) * float(gap @ gap)


def test_must_links_change_neither_the_number_of_clusters_nor_of_shifts() -> None:
    """Both are chosen before: the labels would agree with links whatever is chosen."""
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


def test_a_copy_of_a_labeled_row_stays_with_it() -> None:
    x, labels, _ = draw(0)
    copied = np.flatnonzero(labels >= 0)[:5]
    both = np.concatenate([x, x[copied]])
    given = np.concatenate([labels, np.full(5, -1)])
    found = infer(both, given, 6, InferenceSettings(max_shifts=0, must_link=True)).labels
    np.testing.assert_array_equal(found[copied], found[-5:])


def test_must_links_that_leave_too_few_distinct_rows_are_left_out() -> None:
    x, _, truth = draw(0, n_classes=2, per_class=4)
    settings = InferenceSettings(shift=ShiftSettings(n_neighbors=2), max_shifts=0)
    labels = np.where(np.arange(8) < 7, truth, -1)
    plain, linked = (
        infer(x, labels, 6, replace(settings, must_link=links)) for links in (False, True)
    )
    np.testing.assert_array_equal(plain.labels, linked.labels)


def test_a_fixed_number_of_shifts_is_made_whatever_the_labels_say() -> None:
    x, _, truth = draw(0, n_classes=4, per_class=15)
    settings = InferenceSettings(shift=ShiftSettings(n_neighbors=4))
    for n_shifts in (0, 3):
        assert infer(x, truth, 4, settings, n_shifts=n_shifts).n_shifts == n_shifts
