import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, triu
from torch.nn import functional as F

from shoal.methods.dccl import find_communities, link_neighbors
from small_points import at

NOBODY = np.full(6, -1)


def links(graph):
    upper = triu(graph).tocoo()
    ends = zip(upper.row.tolist(), upper.col.tolist(), strict=True)
    return dict(zip(ends, upper.data.tolist(), strict=True))


def test_each_point_is_linked_with_its_nearest_once_and_by_their_cosine():
    """Six points in two groups, at 0, 10, 20 and 90, 100, 115 degrees. The two nearest of each
    point are the others of its group."""
    points = at(0, 10, 20, 90, 100, 115).float()
    found = links(link_neighbors(points, NOBODY, n_neighbors=2, min_similarity=0.5))
    pairs = [(0, 1, 10), (0, 2, 20), (1, 2, 10), (3, 4, 10), (3, 5, 25), (4, 5, 15)]
    assert found == {
        (i, j): pytest.approx(np.cos(np.radians(angle)), abs=1e-6) for i, j, angle in pairs
    }
    fewer = links(link_neighbors(points, NOBODY, n_neighbors=2, min_similarity=0.95))
    assert set(fewer) == {(0, 1), (1, 2), (3, 4), (4, 5)}


def test_labels_part_neighbors_of_two_classes_and_join_those_of_one():
    points = at(0, 10, 20, 90, 100, 115).float()
    labels = np.array([7, 2, 7, -1, 2, -1])
    found = links(link_neighbors(points, labels, n_neighbors=2, min_similarity=0.95))
    assert set(found) == {(0, 2), (3, 4), (4, 5)}, (
        "0 and 2 are linked though their cosine is below 0.95"
    )
    assert found[0, 2] == 1.0


def test_communities_are_the_two_rings_of_a_graph_drawn_by_hand():
    """Two squares with diagonals, joined by one link; a separate pair; an isolated image."""
    squares = [(a + o, b + o) for o in (0, 4) for a in range(4) for b in range(a + 1, 4)]
    ends = np.array([*squares, (3, 4), (8, 9)])
    upper = csr_matrix((np.ones(len(ends)), ends.T), shape=(11, 11))
    graph = upper + upper.T
    found = find_communities(graph, resolution=1.0, min_members=2, seed=0)
    assert found.tolist() == [0] * 4 + [1] * 4 + [2] * 2 + [-1]
    assert (
        find_communities(graph, resolution=1.0, min_members=3, seed=0).tolist()
        == [0] * 4 + [1] * 4 + [-1] * 3
    )
    one = find_communities(graph, resolution=1e-6, min_members=3, seed=0)
    assert one.tolist() == [0] * 8 + [-1] * 3, "a low resolution joins what is linked at all"


def test_they_are_the_same_again_and_many_groups_need_a_high_resolution():
    truth = np.arange(600) % 60
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(60, 16, generator=generator)
    points = F.normalize(centers[truth] + 0.7 * torch.randn(600, 16, generator=generator), dim=1)
    graph = link_neighbors(points, np.full(600, -1), n_neighbors=8, min_similarity=0.0)
    found = [
        find_communities(graph, resolution=each, min_members=3, seed=1) for each in (1.0, 8.0, 8.0)
    ]
    assert np.array_equal(found[1], found[2])
    assert found[0].max() + 1 < 40 < found[1].max() + 1
