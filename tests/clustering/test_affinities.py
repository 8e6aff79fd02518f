import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.methods.promptcal import affinities, strongest
from slow_steps import affinities as slow_graph


def test_affinities_are_those_of_the_definition_and_rows_that_do_not_exist_count_for_nothing():
    nodes = F.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    exists = torch.tensor([True] * 7 + [False] * 2)
    found = affinities(nodes, exists, 5, 3)
    torch.testing.assert_close(found[:, :7], slow_graph(nodes[:7], 5, 3))
    assert not found[:, 7:].any()


@pytest.mark.parametrize("quantile", [0.0, 0.31, 0.5, 0.8, 1.0])
def test_the_limit_is_a_quantile_of_those_over_the_mean(quantile):
    found = torch.rand(7, 11, generator=torch.Generator().manual_seed(2))
    limit = np.quantile(found[found > found.mean()].double().numpy(), quantile)
    chosen = strongest(found, torch.ones(11, dtype=torch.bool), quantile)
    assert torch.equal(chosen, found >= limit - 1e-6)


def test_a_batch_of_a_thousand_images_has_its_strongest_affinities_too():
    """2,000 views and 9,000 nodes are more values than torch.quantile accepts."""
    found = torch.zeros(2000, 9000)
    found[:, :10] = torch.arange(1.0, 11)
    chosen = strongest(found, torch.ones(9000, dtype=torch.bool), 0.5)
    assert torch.equal(chosen, found >= 6)  # of 1 … 10, all above the mean, half exceed 5.5
