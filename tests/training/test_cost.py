"""What a training will take: how much there is to do, and that asking changes nothing."""

from dataclasses import replace

import pytest
import torch

from shoal.training import cost as module
from shoal.training.cost import Cost, measure_cost
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


def test_a_step_is_its_views_forward_and_backward_and_its_share_of_the_bank(toy, monkeypatch):
    """48 images, six steps of 2 x 8 views; every epoch embeds every image once more, forward alone."""
    monkeypatch.setattr(module, "_time_networks", lambda *given: (0.5, 0.3))
    data, (model,) = toy.data(), toy.networks()
    cost = measure_cost(data, model, toy.settings(views=ViewSettings(pool=3)))
    assert (cost.view_s, cost.step_s) == (0.5, pytest.approx(16 * 0.3 + 48 * 0.3 / 3 / 6))
    alone = measure_cost(data, model, toy.settings())  # without a pool each step looks at images itself
    assert alone.step_s == pytest.approx(16 * 0.8 + 48 * 0.8 / 3 / 6)


def test_what_epochs_took_is_what_a_step_takes():
    cost = Cost(n_views=10, view_s=1.0, n_steps=12, step_s=5.0, n_epochs=3)
    assert cost.as_measured([8.0, 12.0]) == replace(cost, step_s=2.5)
    assert cost.as_measured([]) == cost
    assert replace(cost, n_steps=0, n_epochs=0).as_measured([8.0]).step_s == 5.0


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
