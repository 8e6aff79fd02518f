import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from shoal.encoders.weights import (
    read_weights,
    rename_dino,
)
from shoal.errors import MissingError

WEIGHTS = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2)}


def same(found, expected):
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


@pytest.mark.parametrize("name", ["w.pth", "w.pt", "w.bin"])
def test_torch_files_are_read(tmp_path, name):
    torch.save(WEIGHTS, tmp_path / name)
    assert same(read_weights(tmp_path / name), WEIGHTS)


def test_wrappers_and_prefixes_of_training_checkpoints_are_taken_off(tmp_path):
    wrapped = {f"module.backbone.{name}": value for name, value in WEIGHTS.items()}
    torch.save({"teacher": wrapped, "epoch": 3}, tmp_path / "w.pth")
    assert same(read_weights(tmp_path / "w.pth"), WEIGHTS)


class Bomb:
    """A pickle that makes a folder when it is opened carelessly."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("way", ["torch", "pickle"])
def test_a_file_that_runs_code_is_refused_and_runs_nothing(tmp_path, way):
    file = tmp_path / "w.pth"
    trace = tmp_path / "it-ran"
    content = {"a.weight": Bomb(trace)}
    if way == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(MissingError):
        read_weights(file)
    assert not trace.exists()
    torch.load(file, weights_only=False) if way == "torch" else pickle.loads(file.read_bytes())
    assert trace.is_dir(), "the file must be a working attack, or this test proves nothing"


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_cut_short_is_refused(tmp_path, name, share):
    file = tmp_path / name
    torch.save(WEIGHTS, file) if name.endswith("pth") else save_file(WEIGHTS, file)
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(MissingError):
        read_weights(file)


@pytest.mark.parametrize(
    "content", [torch.ones(3), {"epoch": 3}, {}], ids=["tensor", "number", "nothing"]
)
def test_a_file_without_named_tensors_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(MissingError):
        read_weights(tmp_path / "w.pth")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(MissingError):
        read_weights(tmp_path / "w.pth")


def test_dino_names_become_those_of_transformers():
    qkv = torch.arange(12.0).view(6, 2)
    found = rename_dino(
        {
            "cls_token": torch.zeros(1, 1, 2),
            "patch_embed.proj.weight": torch.zeros(2, 3, 4, 4),
            "blocks.11.attn.qkv.weight": qkv,
            "blocks.0.mlp.fc2.bias": torch.zeros(2),
            "norm.weight": torch.ones(2),
            "head.mlp.0.weight": torch.zeros(1),
        }
    )
    place = "encoder.layer.11.attention.attention"
    assert list(found) == [
        "embeddings.cls_token",
        "embeddings.patch_embeddings.projection.weight",
        *(f"{place}.{role}.weight" for role in ("query", "key", "value")),
        "encoder.layer.0.output.dense.bias",
        "layernorm.weight",
    ]
    assert torch.equal(found[f"{place}.key.weight"], qkv[2:4])
