import pytest
import torch

from shoal.training import trainer
from shoal.training.loop import train
from shoal.training.train_settings import ViewSettings


@pytest.mark.gpu
def test_recorded_steps_equal_unrecorded_steps(toy, monkeypatch):
    recorded = []
    record = trainer.RecordedStep
    monkeypatch.setattr(
        trainer, "RecordedStep", lambda *given: recorded.append(1) or record(*given)
    )
    weights = []
    losses = []
    for fewest in (2, 1000):
        monkeypatch.setattr(trainer, "MIN_STEPS", fewest)
        (model,) = (network.to("cuda") for network in toy.networks())
        trained = train(toy.data(), model, toy.settings(epochs=3, views=ViewSettings(pool=3)))
        weights.append([value.detach().clone() for value in model.parameters()])
        losses.append([(row["loss"], row["gradient"]) for row in trained.metrics])
    assert len(recorded) == 3  # once per epoch, and only in the first training run
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    assert losses[0] == losses[1]


def test_without_memory_for_a_graph_steps_are_not_recorded(toy, monkeypatch):
    weights = []
    asked = []

    def refuse(step, rows, drawn, before):
        asked.append(len(rows))
        raise torch.OutOfMemoryError

    monkeypatch.setattr(trainer, "RecordedStep", refuse)
    monkeypatch.setattr(trainer, "MIN_STEPS", 2)
    for is_recordable in (True, False):
        monkeypatch.setattr(trainer, "is_recordable", lambda *_, value=is_recordable: value)
        (model,) = toy.networks()
        train(toy.data(), model, toy.settings(epochs=2, views=ViewSettings(pool=3)))
        weights.append([value.detach().clone() for value in model.parameters()])
    assert len(asked) == 2
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
