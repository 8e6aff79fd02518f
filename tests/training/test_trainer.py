import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.errors import DataError, ShoalError, UsageError
from shoal.training.data import TrainingData
from shoal.training.loop import train
from shoal.training.train_settings import TrainSettings
from shoal.training.trainer import Totals, Trainer, cut_to_length
from shoal.training.views import ViewSettings

CPU = torch.device("cpu")


def test_embeddings_are_computed_once_between_two_epochs(toy):
    trainer = Trainer(toy.data(), *toy.networks(), toy.settings())
    trainer.prepare()
    first = trainer.embed_all()
    assert trainer.embed_all() is first
    trainer.run_epoch(0)
    assert not torch.equal(trainer.embed_all(), first)


def test_the_bank_holds_the_training_images_in_their_order(toy):
    trainer = Trainer(toy.data(), *toy.networks(), toy.settings())
    trainer.prepare()
    training = torch.from_numpy(toy.data().training)
    trainer.begin_epoch(0)
    assert torch.equal(trainer.model.bank.rows, trainer.embed_all()[training])


def test_out_of_memory_in_the_renewal_of_the_bank_names_the_batch_size(toy, monkeypatch):
    trainer = Trainer(toy.data(), *toy.networks(), toy.settings())
    trainer.prepare()

    def fail(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer.tokens, "embed", fail)
    with pytest.raises(ShoalError, match=r"out of memory; lower training\.batch_size \(now 8\)"):
        trainer.begin_epoch(0)


def test_another_seed_makes_another_pool_of_views_and_the_same_seed_the_same(toy):
    pools = []
    for seed in (0, 0, 1):
        trainer = Trainer(
            toy.data(), *toy.networks(), toy.settings(seed=seed, views=ViewSettings(pool=2))
        )
        trainer.prepare()
        pools.append(trainer.forward.pool.tokens)
    assert torch.equal(pools[0], pools[1])
    assert not torch.equal(pools[0], pools[2])


class Asked(TorchDispatchMode):
    """Notes every operation whose result the host has to know before it can go on."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(name in func.__name__ for name in self.WAITS):
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "variant", [{}, {"denominator": "reference", "detach_norm": True}], ids=["paper", "reference"]
)
@pytest.mark.parametrize("bank", ["images", "views"])
def test_a_step_asks_the_device_nothing_so_that_the_host_runs_ahead(toy, variant, bank):
    settings = toy.settings(max_gradient=1.0)
    trainer = Trainer(toy.data(), *toy.networks("bottleneck", bank=bank, **variant), settings)
    trainer.prepare()
    trainer.begin_epoch(0)
    batches, draws = trainer._draw(0)
    with Asked() as asked:
        trainer._step(batches[0], draws[0], 0, torch.Generator())
    assert asked.found == []
    with Asked() as asked:
        bool(torch.ones(3).any())
    assert asked.found == ["_local_scalar_dense.default"], "or the test proves nothing"


def test_changing_one_label_changes_the_identity_of_a_run(toy):
    data = toy.data()
    labels = data.labels.copy()
    labels[np.flatnonzero(labels == 0)[0]] = 1
    other = TrainingData(pixels=data.pixels, labels=labels, validation=data.validation)
    first, second = (
        Trainer(each, *toy.networks(), toy.settings()).identity() for each in (data, other)
    )
    assert first["data"]["labels"] != second["data"]["labels"]
    assert {**first, "data": None} == {**second, "data": None}


def test_a_bank_of_views_has_two_rows_an_image(toy):
    networks = toy.networks(bank="views", denominator="reference")
    settings = toy.settings(epochs=2)
    trainer = Trainer(toy.data(), *networks, settings)
    trainer.prepare()
    trainer.begin_epoch(0)
    assert len(trainer.model.bank.rows) == 2 * 48
    assert math.isfinite(trainer.run_epoch(0)["loss"])


def test_the_learning_rate_falls_along_a_cosine():
    settings = TrainSettings(epochs=10, lr=0.2, min_lr=0.1)
    assert settings.lr_at(0) == 0.2
    assert settings.lr_at(5) == pytest.approx((0.2 + 0.02) / 2)
    assert settings.lr_at(10) == pytest.approx(0.02)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_gradient": 0},
        {"epochs": 0},
        {"batch_size": 1},
        {"lr": 0},
        {"lr": -1},
        {"lr": math.nan},
        {"min_lr": 2},
        {"momentum": 1},
        {"weight_decay": math.nan},
        {"seed": -1},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        TrainSettings(**bad)


@pytest.mark.parametrize("rows", [[0, 0, 1], [3, 48], [-1]])
def test_validation_rows_that_do_not_exist_are_refused(toy, rows):
    data = toy.data()
    with pytest.raises(DataError, match="validation: expected different rows"):
        TrainingData(pixels=data.pixels, labels=data.labels, validation=np.array(rows))


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")]
)
@pytest.mark.parametrize("place", ["prepare", "validate", "embed_all"])
def test_out_of_memory_anywhere_in_training_names_the_batch_size(toy, monkeypatch, place, error):
    def hungry(*_, **__):
        raise error

    monkeypatch.setattr(Trainer, place, hungry)
    with pytest.raises(ShoalError, match=r"out of memory; lower training\.batch_size \(now 8\)"):
        train(toy.data(), *toy.networks(), toy.settings())


def test_gradients_are_as_long_as_all_their_numbers_together():
    """3, 4 and 12: 13 in all."""
    gradients = [torch.tensor([[3.0, 4.0]]), torch.tensor([12.0])]
    assert float(cut_to_length(gradients, None)) == 13.0
    assert gradients[1].item() == 12.0


@pytest.mark.parametrize(("limit", "left"), [(6.5, 6.5), (26.0, 13.0)])
def test_longer_ones_are_cut_and_keep_their_direction_and_shorter_ones_are_left(limit, left):
    gradients = [torch.tensor([[3.0, 4.0]]), torch.tensor([12.0])]
    assert float(cut_to_length(gradients, limit)) == 13.0, "the length they had"
    assert float(cut_to_length(gradients, None)) == pytest.approx(left)
    assert float(gradients[0][0, 0] / gradients[1][0]) == pytest.approx(3 / 12)


def test_means_are_over_the_steps():
    totals = Totals(CPU)
    for step, loss in enumerate([1.0, 2.0, 6.0]):
        totals.add(step, {"loss": torch.tensor(loss), "gradient": torch.tensor(1.0)})
    assert totals.means() == {"loss": 3.0, "gradient": 1.0}
    totals.check_finite(epoch=1, lr=0.1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_first_step_with_a_loss_that_is_no_number_is_named(bad):
    totals = Totals(CPU)
    for step, loss in enumerate([1.0, bad, 2.0, bad]):
        totals.add(step, {"loss": torch.tensor(loss)})
    where = r"epoch 7, step 2: the loss or its gradient is not a finite number \(lr 0\.05\); "
    advice = (
        "lower lr, raise the temperature or bound training.max_gradient and start over "
        ".*--force.*: resuming would take"
    )
    with pytest.raises(ShoalError, match=where + advice):
        totals.check_finite(epoch=7, lr=0.05)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_overflows_in_the_last_step_is_noticed(bad):
    """The weights are no numbers from then on, but no loss of this epoch shows it."""
    totals = Totals(CPU)
    for step, gradient in enumerate([1.0, 1.0, bad]):
        totals.add(step, {"loss": torch.tensor(1.0), "gradient": torch.tensor(gradient)})
    with pytest.raises(ShoalError, match="epoch 1, step 3: the loss or its gradient"):
        totals.check_finite(epoch=1, lr=0.05)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_the_last_step_spoiled_are_noticed(bad):
    totals = Totals(CPU)
    for step in range(3):
        totals.add(step, {"loss": torch.tensor(1.0)})
    totals.check_weights([torch.ones(2), torch.ones(3)])
    totals.check_finite(epoch=1, lr=0.1)
    totals.check_weights([torch.ones(2), torch.tensor([1.0, bad])])
    with pytest.raises(ShoalError, match="epoch 1, step 3: "):
        totals.check_finite(epoch=1, lr=0.1)


def test_other_weights_under_the_same_name_are_another_encoder(toy):
    """The trunk's; the tail's own come from the checkpoint."""
    first = toy.encoder()
    second = toy.encoder()
    trained = toy.encoder()
    assert first.identity() == second.identity()
    with torch.no_grad():
        second.trunk[0].weight.add_(1e-3)
        trained.tail[0][1].weight.add_(1)
    assert first.identity()["weights"] != second.identity()["weights"]
    assert first.identity() == trained.identity()
