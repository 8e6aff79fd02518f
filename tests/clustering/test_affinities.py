import torch
from torch.nn import functional as F

from shoal.clustering.affinities import affinities, strongest
from slow_steps import affinities as slow_graph


def test_affinities_are_those_of_the_definition_and_rows_that_do_not_exist_count_for_nothing():
    nodes = F.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    exists = torch.tensor([True] * 7 + [False] * 2)
    found = affinities(nodes, exists, 5, 3)
    torch.testing.assert_close(found[:, :7], slow_graph(nodes[:7], 5, 3))
    assert not found[:, 7:].any()


def test_two_groups_are_two_in_the_graph():
    """Three nodes point right and three up: each belongs with those of its group."""
    nodes = F.normalize(torch.tensor([[9.0, 0], [9, 1], [9, 2], [0, 9], [1, 9], [2, 9]]), dim=1)
    exists = torch.ones(6, dtype=torch.bool)
    found = strongest(affinities(nodes, exists, 6, 3), exists, 0.0)
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    assert torch.equal(found, group[:, None] == group[None, :])
    assert not strongest(torch.zeros(6, 6), exists, 0.5).any()
