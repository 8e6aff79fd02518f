"""What a training will take: how much there is to do, and that asking changes nothing."""

from dataclasses import replace

import torch

from shoal.training.cost import measure_cost
from shoal.training.epoch_draws import EpochDraws
from shoal.training.views import ViewSettings


def test_views_and_steps_are_those_that_training_counts(toy):
    data, (model,) = toy.data(), toy.networks()
    cost = measure_cost(data, model, toy.settings())
    assert (cost.n_views, cost.n_steps, cost.n_epochs) == (48, 18, 3)
    assert cost.view_s > 0
    assert cost.seconds == 48 * cost.view_s + 18 * cost.step_s > 48 * cost.view_s
    pooled = toy.settings(views=ViewSettings(pool=3))
    n_pooled = len(EpochDraws(data.training_labels, pooled).pooled_views(data.training))
    cost = measure_cost(data, model, pooled, n_done=1)
    assert (cost.n_views, cost.n_steps, cost.n_epochs) == (48 + n_pooled, 12, 2)
    assert measure_cost(data, model, pooled, n_done=3).n_views == 48


def test_nothing_of_the_model_or_of_chance_changes(toy):
    (model,) = toy.networks()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    measure_cost(replace(toy.data()), model, toy.settings())
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
