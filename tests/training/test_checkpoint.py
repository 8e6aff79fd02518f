import json
from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.encoders.vision import Encoder, InputFormat, Parts
from shoal.errors import DataError
from shoal.training import loop as module
from shoal.training.loop import Checkpointer, read_checkpoint, write_checkpoint
from shoal.training.model import Model, TaskShape
from shoal.training.trainer import Sgd
from shoal.training.validation import Validation

IDENTITY = {"training": {"lr": 0.1, "epochs": 3}, "data": {"images": "abc"}}


class Linear(Model):
    """A model with one trained layer."""

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


def make_checkpointer(folder, *, resume=False, network=None, identity=IDENTITY):
    network = network or Linear()
    optimizer = Sgd(list(network.encoder.tail.parameters()), momentum=0.9, weight_decay=0.0)
    return Checkpointer(folder, network, optimizer, identity, resume=resume)


def scored(accuracy, n_clusters=4):
    return Validation(accuracy=accuracy, n_clusters=n_clusters)


def test_tensors_and_json_survive_a_checkpoint(tmp_path):
    tensors = {"a": torch.randn(3, 2), "b": torch.arange(4), "c": torch.ones(2, 3).T.half()}
    write_checkpoint(tmp_path / "c.safetensors", tensors, {"epoch": 3, "x": [1, None]})
    found, about = read_checkpoint(tmp_path / "c.safetensors")
    assert about == {"epoch": 3, "x": [1, None]}
    assert all(torch.equal(found[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_truncated_file_is_refused(tmp_path, share):
    file = tmp_path / "c.safetensors"
    write_checkpoint(file, {"a": torch.ones(100)}, {})
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError):
        read_checkpoint(file)


def test_a_missing_snapshot_is_reported(tmp_path):
    checkpointer = make_checkpointer(tmp_path)
    checkpointer.write(scored(0.5), {}, is_best=True)
    (tmp_path / "best-1.safetensors").unlink()
    with pytest.raises(DataError):
        make_checkpointer(tmp_path, resume=True)


def test_a_file_of_another_format_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "c.safetensors")
    with pytest.raises(DataError):
        read_checkpoint(tmp_path / "c.safetensors")


@pytest.mark.parametrize(
    "dies_at", ["best-3.safetensors", "checkpoint.safetensors", "metrics.jsonl"]
)
def test_a_run_killed_between_two_files_resumes_from_a_complete_epoch(
    tmp_path, monkeypatch, dies_at
):
    """Epoch 3 is the best so far; whichever of its files is missing, epoch 2 or 3 is resumed
    completely."""
    checkpointer = make_checkpointer(tmp_path)
    for epoch in (1, 2):
        checkpointer.write(scored(0.1 * epoch), {"epoch": epoch}, is_best=True)

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
        checkpointer.write(scored(0.9), {"epoch": 3}, is_best=True)
    monkeypatch.undo()
    resumed = make_checkpointer(tmp_path, resume=True)
    done = len(resumed.metrics)
    assert done == (3 if dies_at == "metrics.jsonl" else 2)
    assert resumed.best.validation.accuracy == pytest.approx(0.9 if done == 3 else 0.2)
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == list(range(1, done + 1)), (
        "3 may have been the last epoch"
    )
    assert [file.name for file in tmp_path.glob("best-*")] == [f"best-{done}.safetensors"]


def test_a_new_run_removes_the_files_of_an_older_one(tmp_path):
    checkpointer = make_checkpointer(tmp_path)
    checkpointer.write(scored(0.5), {}, is_best=True)
    make_checkpointer(tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_of_another_network_are_refused(tmp_path):
    checkpointer = make_checkpointer(tmp_path)
    checkpointer.write(scored(0.5), {}, is_best=True)
    with pytest.raises(DataError):
        make_checkpointer(tmp_path, resume=True, network=Linear(4))
