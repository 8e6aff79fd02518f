import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.communities import NeighborGraph, find_communities, link_neighbors

NOBODY = np.full(6, -1)


def on_circle(*degrees):
    angles = torch.tensor(degrees, dtype=torch.float64) * torch.pi / 180
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


def links(graph):
    ends = zip(graph.first.tolist(), graph.second.tolist(), strict=True)
    return dict(zip(ends, graph.weights.tolist(), strict=True))


def test_each_point_is_linked_with_its_nearest_once_and_by_their_cosine():
    """Six points in two groups: 0, 10, 20 and 90, 100, 115 degrees. The two nearest of 20 are 10
    and 0, …"""
    points = on_circle(0, 10, 20, 90, 100, 115)
    found = links(link_neighbors(points, NOBODY, n_neighbors=2, min_similarity=0.5))
    pairs = [(0, 1, 10), (0, 2, 20), (1, 2, 10), (3, 4, 10), (3, 5, 25), (4, 5, 15)]
    assert found == {
        (i, j): pytest.approx(np.cos(np.radians(angle)), abs=1e-6) for i, j, angle in pairs
    }
    fewer = links(link_neighbors(points, NOBODY, n_neighbors=2, min_similarity=0.95))
    assert set(fewer) == {(0, 1), (1, 2), (3, 4), (4, 5)}


def test_labels_part_neighbors_of_two_classes_and_join_those_of_one():
    points = on_circle(0, 10, 20, 90, 100, 115)
    labels = np.array([7, 2, 7, -1, 2, -1])
    found = links(link_neighbors(points, labels, n_neighbors=2, min_similarity=0.95))
    assert set(found) == {(0, 2), (3, 4), (4, 5)}, (
        "0 and 2 are linked though their cosine is below 0.95"
    )
    assert found[0, 2] == 1.0


def test_communities_are_the_two_rings_of_a_graph_drawn_by_hand():
    """Two squares with diagonals, joined by one link; a pair apart; one image alone."""
    squares = [(a + o, b + o) for o in (0, 4) for a in range(4) for b in range(a + 1, 4)]
    ends = np.array([*squares, (3, 4), (8, 9)])
    graph = NeighborGraph(11, ends[:, 0], ends[:, 1], np.ones(len(ends)))
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


def test_they_are_as_modular_as_those_of_another_search():
    networkx = pytest.importorskip("networkx")
    points = F.normalize(torch.randn(400, 8, generator=torch.Generator().manual_seed(3)), dim=1)
    graph = link_neighbors(points, np.full(400, -1), n_neighbors=6, min_similarity=0.0)
    network = networkx.Graph()
    network.add_weighted_edges_from(
        zip(graph.first.tolist(), graph.second.tolist(), graph.weights, strict=True)
    )
    found = find_communities(graph, resolution=2.0, min_members=1, seed=0)
    ours = [np.flatnonzero(found == each).tolist() for each in range(found.max() + 1)]
    theirs = networkx.community.louvain_communities(network, resolution=2.0, seed=0)
    modularity = [
        networkx.community.modularity(network, each, resolution=2.0) for each in (ours, theirs)
    ]
    assert modularity[0] >= 0.98 * modularity[1]


def test_without_any_link_there_is_no_community():
    graph = link_neighbors(torch.eye(4), np.full(4, -1), n_neighbors=2, min_similarity=0.5)
    assert len(graph.first) == 0
    assert find_communities(graph, resolution=1.0, min_members=2, seed=0).tolist() == [-1] * 4
