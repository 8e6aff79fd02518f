"""Six points on a circle in three categories; all expected values are computed by hand."""

import numpy as np
import pytest
import torch

from shoal.clustering.categories import (
    assign_new,
    describe,
    number_clusters,
    other_neighbors,
)
from small_points import at

POINTS = at(0, 10, 20, 90, 100, 180)
CATEGORIES = np.array([0, 0, 0, 2, 2, 3])  # category 1 is known but empty; 2 and 3 are novel
N_KNOWN = 2


def describe_members(points, categories, n_known, n_neighbors):
    lists = other_neighbors(points, n_neighbors)
    return describe(points, categories, lists, points, categories, n_known)


def cosine(degrees):
    return float(np.cos(np.deg2rad(degrees)))


def test_members_are_described_as_worked_out_by_hand():
    found = describe_members(POINTS, CATEGORIES, N_KNOWN, 2)
    # Neighbors: 0 → 10, 20; 10 → 0, 20; 20 → 10, 0; 90 → 100, 20; 100 → 90, then 20 and 180 at 80°
    # each; 180 → 100, 90.
    assert found.confidence.tolist() == [1, 1, 1, 0.5, 0.5, 0]
    expected = 1 - np.array([cosine(10) + cosine(20), 2 * cosine(10), cosine(10) + cosine(20)]) / 2
    assert found.outlier_score[:3] == pytest.approx(expected)
    # Centers lie at 10°, 95° and 180°.
    assert found.typicality == pytest.approx([cosine(a) for a in (10, 0, 10, 5, 5, 0)])
    assert found.second.tolist() == [
        2,
        2,
        2,
        0,
        3,
        2,
    ]  # 90° is nearer to 10° (80°) than to 180° (90°)
    assert found.nearest_known.tolist() == [0] * 6  # never the empty category 1
    assert found.nearest_known_similarity == pytest.approx(
        [cosine(a) for a in (10, 0, 10, 80, 90, 170)], abs=1e-12
    )


def test_new_rows_join_by_vote_and_the_nearest_decides_ties():
    # 57°: the nearest are 90° (33° away) and 20° (37°), one vote each, so category 2. 12°: all
    # neighbors are in category 0.
    chosen, members, _ = assign_new(at(57, 12), POINTS, CATEGORIES, N_KNOWN, 2)
    assert chosen.tolist() == [2, 0]
    assert members.confidence.tolist() == [0.5, 1]
    assert members.outlier_score[0] == pytest.approx(1 - (cosine(33) + cosine(37)) / 2)
    assert members.second.tolist() == [0, 2]
    assert members.nearest_known.tolist() == [0, 0]


@pytest.fixture(scope="module")
def crowd():
    """600 float32 rows of 96 columns in 12 categories, so that sums of 50 rows and products of 96
    columns are all rounded."""
    generator = torch.Generator().manual_seed(0)
    categories = torch.randint(0, 12, (600,), generator=generator)
    rows = torch.randn(12, 96, generator=generator)[categories] + 2 * torch.randn(
        600, 96, generator=generator
    )
    return torch.nn.functional.normalize(rows, dim=1), categories.numpy()


def bits(found, rows=slice(None)):
    return {name: values[rows].tobytes() for name, values in vars(found).items()}


def test_members_are_described_alike_whatever_the_order_of_rows_and_the_number_of_threads(
    crowd,
):
    points, categories = crowd
    whole = describe_members(points, categories, 7, 10)
    n_threads = torch.get_num_threads()
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(600)
        try:
            torch.set_num_threads(1 + seed % 2)
            found = describe_members(points[order], categories[order], 7, 10)
        finally:
            torch.set_num_threads(n_threads)
        assert bits(found) == bits(whole, order)


@pytest.mark.parametrize("batch", [1, 7])
def test_newcomers_are_described_alike_however_many_come_at_once(crowd, batch):
    points, categories = crowd
    whole = assign_new(points[:100], points[100:], categories[100:], 7, 10)
    for start in range(0, 100, batch):
        part = slice(start, min(start + batch, 100))
        found = assign_new(points[part], points[100:], categories[100:], 7, 10)
        assert found[0].tolist() == whole[0][part].tolist()
        assert bits(found[1]) == bits(whole[1], part)


def test_the_nearest_centers_are_those_of_a_loop(crowd):
    points, categories = crowd
    found = describe_members(points, categories, 7, 10)
    rows = points.double().numpy()
    centers = np.stack([rows[categories == c].mean(axis=0) for c in range(12)])
    cosines = rows @ (centers / np.linalg.norm(centers, axis=1, keepdims=True)).T
    for i, row in enumerate(cosines):
        assert found.nearest_known[i] == row[:7].argmax()
        assert found.second[i] == max(
            (c for c in range(12) if c != categories[i]), key=row.__getitem__
        )
        assert found.nearest_known_similarity[i] == pytest.approx(row[:7].max(), abs=1e-12)
        assert found.typicality[i] == pytest.approx(row[categories[i]], abs=1e-12)


@pytest.mark.gpu
def test_members_and_newcomers_are_described_alike_on_cpu_and_gpu(crowd):
    points, categories = crowd
    on_cpu, on_gpu = (describe_members(rows, categories, 7, 10) for rows in (points, points.cuda()))
    assert bits(on_gpu) == bits(on_cpu)
    placed = [
        assign_new(rows[:100], rows[100:], categories[100:], 7, 10)[1]
        for rows in (points, points.cuda())
    ]
    assert bits(placed[1]) == bits(placed[0])


def test_known_clusters_take_their_classs_number_and_novel_ones_follow_by_falling_size():
    # Clusters 0 (2 rows) and 3 (3 rows) are unlabeled, 1 is class 1 and 2 is class 0; class 2
    # has no cluster.
    clusters = np.array([0, 0, 1, 1, 2, 2, 3, 3, 3])
    labels = np.array([-1, -1, 1, -1, 0, 0, -1, -1, -1])
    found, n_novel = number_clusters(clusters, labels, 3, np.arange(9.0)[:, None])
    assert found.tolist() == [4, 4, 1, 1, 0, 0, 3, 3, 3]
    assert n_novel == 2


@pytest.mark.parametrize("column", [0, 7, 8, 30])
def test_novel_clusters_of_one_size_are_ordered_by_whichever_column_tells_them_apart(
    column,
):
    """Two clusters of two rows differ in one column only, where the rows of the second cluster are
    smaller."""
    rows = np.zeros((4, 31))
    rows[:, column] = [5, 4, 3, 9]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        found, _ = number_clusters(np.array([0, 0, 1, 1])[order], np.full(4, -1), 0, rows[order])
        assert found.tolist() == np.array([1, 1, 0, 0])[order].tolist()


def test_a_tie_of_the_matching_goes_to_the_larger_cluster_and_then_by_rows_whatever_the_order():
    """Two clusters have one labeled image each. Class 0 is matched to the larger cluster, or if
    both are equally large, to the one with smaller rows."""
    for sizes, expected in ((2, 3), 1), ((2, 2), 0):
        clusters = np.repeat([0, 1], sizes)
        labels = np.where(np.diff(clusters, prepend=-1) > 0, 0, -1)  # the first row of each
        rows = np.arange(len(clusters), dtype=float)[:, None]
        for order in (np.arange(len(clusters)), np.arange(len(clusters))[::-1]):
            _, renumbered = np.unique(clusters[order], return_inverse=True)
            renumbered = (
                renumbered if order[0] == 0 else 1 - renumbered
            )  # by first image, as in a cut
            found, n_novel = number_clusters(renumbered, labels[order], 1, rows[order])
            assert found.tolist() == (clusters[order] != expected).astype(int).tolist()
            assert n_novel == 1
