import json
from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.encoders.vision import Encoder, InputFormat, Parts
from shoal.errors import DataError, UsageError
from shoal.training import checkpoint as module
from shoal.training.checkpoint import (
    Checkpoint,
    Journal,
    check_identity,
    read_checkpoint,
    write_checkpoint,
)
from shoal.training.model import Model, TaskShape
from shoal.training.sgd import Sgd
from shoal.training.train_settings import TrainSettings
from shoal.training.validation import Validation

IDENTITY = {"training": {"lr": 0.1, "epochs": 3}, "data": {"images": "abc"}}


class Linear(Model):
    """One layer, which is all that is trained."""

    def __init__(self, n_in=3):
        parts = Parts(
            stem=nn.Identity(),
            blocks=[nn.Linear(n_in, 2)],
            finish=nn.Identity(),
            is_finish_trained=False,
            feature_dim=2,
        )
        encoder = Encoder("linear", parts, InputFormat(size=8, mean=(0,) * 3, std=(1,) * 3), 1)
        super().__init__(encoder, None, TaskShape(n_images=4, n_known=0, n_clusters=None))

    @property
    def weight(self):
        return self.encoder.tail[0].weight

    def forward(self, inputs):
        return {"features": self.represent(inputs)}

    def loss(self, batch):
        return {"loss": batch.outputs["features"].sum()}


def make_journal(folder, seed=0):
    torch.manual_seed(seed)
    network = Linear()
    optimizer = Sgd(network.trained_parameters(), momentum=0.9, weight_decay=0.0)
    optimizer.lr = 0.1
    return Journal(folder, network, optimizer), network, optimizer


def step(network, optimizer, seed=0):
    optimizer.zero_grad()
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
    network.represent(inputs).square().sum().backward()
    optimizer.step()


def scored(accuracy, n_clusters=4):
    return Validation(accuracy=accuracy, n_clusters=n_clusters)


def test_tensors_and_json_come_back_as_they_were(tmp_path):
    tensors = {"a": torch.randn(3, 2), "b": torch.arange(4), "c": torch.ones(2, 3).T.half()}
    write_checkpoint(
        tmp_path / "c.safetensors", Checkpoint(tensors=tensors, about={"epoch": 3, "x": [1, None]})
    )
    found = read_checkpoint(tmp_path / "c.safetensors")
    assert found.about == {"epoch": 3, "x": [1, None]}
    assert all(torch.equal(found.tensors[name], value) for name, value in tensors.items())


def test_the_same_checkpoint_is_the_same_bytes(tmp_path):
    files = [tmp_path / f"{i}.safetensors" for i in range(16)]
    for file in files:
        tensors = {"a": torch.ones(3), "b": torch.arange(4), "c": torch.ones(2, 3)}
        write_checkpoint(file, Checkpoint(tensors=tensors, about={"epoch": 3, "best_epoch": 2}))
    assert len({file.read_bytes() for file in files}) == 1


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_file_cut_short_is_refused(tmp_path, share):
    file = tmp_path / "c.safetensors"
    write_checkpoint(file, Checkpoint(tensors={"a": torch.ones(100)}, about={}))
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError):
        read_checkpoint(file)


def test_a_snapshot_that_is_gone_is_missed(tmp_path):
    journal, _, _ = make_journal(tmp_path)
    journal.begin(IDENTITY)
    journal.write(scored(0.5), {}, is_best=True)
    (tmp_path / "best-1.safetensors").unlink()
    with pytest.raises(DataError):
        make_journal(tmp_path)[0].resume(IDENTITY)


def test_a_file_of_another_kind_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "c.safetensors")
    with pytest.raises(DataError):
        read_checkpoint(tmp_path / "c.safetensors")


@pytest.mark.parametrize(
    "dies_at", ["best-3.safetensors", "checkpoint.safetensors", "metrics.jsonl"]
)
def test_killed_between_any_two_files_the_run_goes_on_from_a_whole_state(
    tmp_path, monkeypatch, dies_at
):
    """Epoch 3 is the best so far; whichever of its files is not written any more, epoch 2 or 3 is
    resumed whole."""
    journal, _, _ = make_journal(tmp_path)
    journal.begin(IDENTITY)
    for epoch in (1, 2):
        journal.write(scored(0.1 * epoch), {"epoch": epoch}, is_best=True)

    class Killed(Exception):
        pass

    original = module.atomic_file

    def dying(path: Path):
        if path.name == dies_at:
            raise Killed
        return original(path)

    monkeypatch.setattr(module, "atomic_file", dying)
    monkeypatch.setattr(module, "write_text", lambda path, text: dying(path))
    with pytest.raises(Killed):
        journal.write(scored(0.9), {"epoch": 3}, is_best=True)
    monkeypatch.undo()
    resumed, _, _ = make_journal(tmp_path)
    resumed.resume(IDENTITY)
    done = resumed.n_epochs
    assert done == (3 if dies_at == "metrics.jsonl" else 2)
    assert resumed.best.validation.accuracy == pytest.approx(0.9 if done == 3 else 0.2)
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == list(range(1, done + 1)), (
        "3 may have been the last epoch"
    )
    assert [file.name for file in tmp_path.glob("best-*")] == [f"best-{done}.safetensors"]


def test_metrics_are_valid_json_even_where_a_value_is_missing(tmp_path):
    journal, _, _ = make_journal(tmp_path)
    journal.begin(IDENTITY)
    journal.write(
        scored(float("nan")), {"epoch": 1, "validation_accuracy": float("nan")}, is_best=True
    )
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "epoch": 1,
        "validation_accuracy": None,
        "is_best": True,
    }


def test_starting_anew_forgets_an_older_run(tmp_path):
    journal, _, _ = make_journal(tmp_path)
    journal.begin(IDENTITY)
    journal.write(scored(0.5), {}, is_best=True)
    make_journal(tmp_path)[0].begin(IDENTITY)
    assert not list(tmp_path.iterdir())


def test_a_run_made_with_other_settings_is_refused_and_every_difference_listed():
    other = {"training": {"lr": 0.2, "epochs": 3}, "data": {"images": "xyz"}, "rule": "pairs"}
    with pytest.raises(UsageError) as caught:
        check_identity(IDENTITY, other, Path("c.safetensors"))
    message = str(caught.value)
    assert "training.lr: 0.1, was 0.2" in message
    assert "data.images: 'abc', was 'xyz'" in message
    assert "rule: None, was 'pairs'" in message
    assert "epochs" not in message


def test_weights_of_another_network_are_refused(tmp_path):
    journal, _, _ = make_journal(tmp_path)
    journal.begin(IDENTITY)
    journal.write(scored(0.5), {}, is_best=True)
    network = Linear(4)
    other = Journal(tmp_path, network, network.make_optimizer(TrainSettings()))
    with pytest.raises(DataError):
        other.resume(IDENTITY)
