import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.encoders.vision import to_device
from shoal.errors import Diverged, UsageError
from shoal.settings import from_dict
from shoal.training.train_settings import TrainSettings
from shoal.training.trainer import Trainer, clip_gradients


def test_the_bank_contains_the_training_images_in_order(toy):
    trainer = Trainer(toy.data(), *toy.networks(), toy.settings())
    trainer.prepare()
    training = torch.from_numpy(toy.data().training)
    trainer.begin_epoch(0)
    assert torch.equal(trainer.model.bank, trainer.embed_all()[training])


class Asked(TorchDispatchMode):
    """Records every operation whose result the host waits for."""

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
def test_a_step_does_not_synchronize_with_the_device(toy, variant, bank):
    settings = toy.settings(max_gradient=1.0)
    trainer = Trainer(toy.data(), *toy.networks("bottleneck", bank=bank, **variant), settings)
    trainer.prepare()
    trainer.pixels = to_device(trainer.pixels, torch.device("cpu"))  # as on a GPU
    trainer.begin_epoch(0)
    batches, parameters = trainer.sampler.steps(0)
    with Asked() as asked:
        trainer.step(batches[0], parameters[0], 0, torch.Generator())
    assert asked.found == []
    with Asked() as asked:
        bool(torch.ones(3).any())
    assert asked.found == ["_local_scalar_dense.default"], "or the test proves nothing"


def test_the_learning_rate_follows_a_cosine():
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
        from_dict(TrainSettings, bad)


@pytest.mark.parametrize(("limit", "left"), [(6.5, 6.5), (26.0, 13.0)])
def test_gradients_are_clipped_to_the_norm_and_keep_their_direction(limit, left):
    gradients = [torch.tensor([[3.0, 4.0]]), torch.tensor([12.0])]
    assert float(clip_gradients(gradients, limit)) == 13.0, "the length they had"
    assert float(clip_gradients(gradients, None)) == pytest.approx(left)
    assert float(gradients[0][0, 0] / gradients[1][0]) == pytest.approx(3 / 12)


def test_encoders_with_other_weights_have_another_identity(toy):
    first = toy.encoder()
    second = toy.encoder()
    assert first.identity() == second.identity()
    with torch.no_grad():
        second.trunk[0].weight.add_(1e-3)
    assert first.identity()["weights"] != second.identity()["weights"]


def test_an_epoch_with_an_infinite_gradient_is_named(toy):
    trainer = Trainer(toy.data(), *toy.networks(), toy.settings())
    fine = {"epoch": 7, "lr": 0.05, "loss": 1.0, "gradient": 1.0}
    trainer._check_finite(fine)
    with pytest.raises(Diverged, match="epoch 7"):
        trainer._check_finite({**fine, "gradient": math.inf})


def test_nan_weights_after_the_last_step_are_detected(toy):
    trainer = Trainer(toy.data(), *toy.networks(), toy.settings())
    with torch.no_grad():
        trainer.parameters[-1].fill_(math.nan)
    with pytest.raises(Diverged, match="epoch 1"):
        trainer._check_finite({"epoch": 1, "lr": 0.1, "loss": 1.0, "gradient": 1.0})
