import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shoal.encoders.catalog import load_encoder
from shoal.errors import MissingError
from small_models import KINDS, VIT, save_folder

SOURCE = Path(__file__).resolve().parents[2] / "src"

CODE = """
from shoal.encoders.hub import import_transformers
t = import_transformers()
small = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
t.ViTModel(t.ViTConfig(image_size=16, **small))
"""


@pytest.mark.slow
def test_transformers_is_imported_past_a_torchvision_of_another_torch(tmp_path):
    """A torchvision built for another torch fails in the middle of its import, because its
    operators are missing."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import torchvision.ops\nraise RuntimeError('torchvision::nms does not exist')"
    )
    (package / "ops.py").write_text("")
    env = dict(os.environ, PYTHONPATH=f"{tmp_path}{os.pathsep}{SOURCE}")
    ran = subprocess.run(
        [sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def change_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_classifiers_folder_with_more_blocks_than_its_config_says_is_refused(
    transformers, tmp_path
):
    """A classifier's tensors have a prefix and include a head; neither must hide a surplus
    block."""
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**VIT))
    save_folder(model, tmp_path / "model")
    assert load_encoder(str(tmp_path / "model")).n_blocks == 3
    change_config(tmp_path / "model", num_hidden_layers=2)
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))


@pytest.mark.parametrize("extra", ["layers.0.layer_scale1.lambda1", "embeddings.register_tokens"])
def test_a_folder_with_a_tensor_that_the_model_has_not_is_refused(
    make_transformer, tmp_path, extra
):
    save_folder(make_transformer("vit"), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    save_file(load_file(file) | {extra: torch.ones(32)}, file, metadata={"format": "pt"})
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        ("vit", "ViTForImageClassification"),
        ("vit", "ViTForMaskedImageModeling"),
        ("deit", "DeiTForImageClassificationWithTeacher"),
        ("clip", "CLIPVisionModelWithProjection"),
        ("resnet", "ResNetForImageClassification"),
        ("pvt", "PvtV2ForImageClassification"),
    ],
)
def test_what_a_model_was_trained_with_may_lie_in_its_folder(transformers, tmp_path, kind, whole):
    _, config, sizes = KINDS[kind]
    torch.manual_seed(0)
    save_folder(
        getattr(transformers, whole)(getattr(transformers, config)(**sizes)), tmp_path / "model"
    )
    assert load_encoder(str(tmp_path / "model")).feature_dim > 0


def test_a_folder_with_weights_of_another_width_is_refused(make_transformer, tmp_path):
    save_folder(make_transformer("vit"), tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": 64}))
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))


@pytest.mark.parametrize("kind", ["vit", "clip", "dinov2"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_widened_and_split_as_others_are(
    make_transformer, tmp_path, kind, dtype
):
    save_folder(make_transformer(kind).to(dtype), tmp_path / "model")
    encoder = load_encoder(str(tmp_path / "model"))
    parameters = [*encoder.trunk.parameters(), *encoder.tail.parameters()]
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    assert any(parameter.requires_grad for parameter in encoder.tail.parameters())
