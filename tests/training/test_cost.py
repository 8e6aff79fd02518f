"""What a training will take: how much there is to do, and that asking changes nothing."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from shoal.device import seconds_of
from shoal.training import cost as module
from shoal.training.cost import Cost, measure_cost
from shoal.training.epoch_draws import EpochDraws
from shoal.training.views import ViewSettings


def test_views_and_steps_are_those_that_training_counts(toy):
    data = toy.data()
    (model,) = toy.networks()
    cost = measure_cost(data, model, toy.settings())
    assert (cost.n_views, cost.n_steps, cost.n_epochs) == (48, 18, 3)
    assert cost.view_s > 0
    assert cost.seconds == 48 * cost.view_s + 18 * cost.step_s > 48 * cost.view_s
    pooled = toy.settings(views=ViewSettings(pool=3))
    n_pooled = len(EpochDraws(data.training_labels, pooled).pooled_views(data.training))
    cost = measure_cost(data, model, pooled, n_done=1)
    assert (cost.n_views, cost.n_steps, cost.n_epochs) == (48 + n_pooled, 12, 2)
    assert measure_cost(data, model, pooled, n_done=3).n_views == 48
    assert measure_cost(data, model, pooled, n_done=3, needs_pool=True).n_views == 48 + n_pooled


def test_a_step_is_its_views_forward_and_backward_the_rest_and_its_share_of_the_bank(
    toy, monkeypatch
):
    """48 images, six steps of 2 x 8 views; every epoch embeds every image once more, forward alone."""
    monkeypatch.setattr(module, "_time_networks", lambda *given: (0.5, 0.3, 0.7))
    data = toy.data()
    (model,) = toy.networks()
    cost = measure_cost(data, model, toy.settings(views=ViewSettings(pool=3)))
    assert (cost.view_s, cost.step_s) == (0.5, pytest.approx(16 * 0.3 + 0.7 + 48 * 0.3 / 3 / 6))
    alone = measure_cost(
        data, model, toy.settings()
    )  # without a pool each step looks at images itself
    assert alone.step_s == pytest.approx(16 * 0.8 + 0.7 + 48 * 0.8 / 3 / 6)


def test_what_epochs_took_is_what_a_step_takes():
    cost = Cost(n_views=10, view_s=1.0, n_epochs=3, steps_per_epoch=4, step_s=5.0)
    assert cost.as_measured([8.0, 12.0]) == replace(cost, step_s=2.5)
    assert cost.as_measured([]) == cost
    assert replace(cost, steps_per_epoch=0).as_measured([8.0]).step_s == 5.0


def test_a_training_after_another_takes_a_share_of_all_of_its_epochs_however_many_are_done():
    cost = Cost(n_views=10, view_s=1.0, n_epochs=12, steps_per_epoch=4, step_s=5.0, judging_s=3.0)
    assert (cost.of_next(0.4, 0).n_steps, cost.of_next(0.4, 0).seconds) == (20, 100.0)
    resumed = replace(cost, n_epochs=0, n_done=12)
    assert resumed.of_next(0.4, 0) == cost.of_next(0.4, 0)
    assert resumed.of_next(0.4, 3).n_steps == 8
    assert resumed.of_next(1.0, 12).seconds == 0.0


def test_the_loss_of_a_whole_batch_and_the_optimizer_are_part_of_a_step(toy, monkeypatch):
    """By a clock that stands still but for a loss, which takes 2 s for each view of its batch."""
    clock = [0.0]
    monkeypatch.setattr(module, "seconds_of", partial(seconds_of, clock=lambda: clock[0]))
    (model,) = toy.networks()
    loss = model.loss

    def slow(batch):
        clock[0] += 2 * len(batch.labels)
        return loss(batch)

    monkeypatch.setattr(model, "loss", slow)
    cost = measure_cost(toy.data(), model, toy.settings())
    assert (cost.view_s, cost.step_s) == (0.0, 2 * 2 * 8)


def test_measuring_draws_nothing_that_training_draws(toy):
    (model,) = toy.networks()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    measure_cost(toy.data(), model, toy.settings())
    assert torch.equal(torch.rand(3), expected)
