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
from small_models import KINDS, VIT, dino_weights, save_folder

SOURCE = Path(__file__).resolve().parents[2] / "src"

CODE = """
from shoal.encoders.hub import import_transformers
t = import_transformers()
small = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
t.ViTModel(t.ViTConfig(image_size=16, **small))
"""


@pytest.mark.slow
def test_transformers_is_imported_past_a_torchvision_of_another_torch(tmp_path):
    """Such a torchvision fails half-way through its import, as the real one does when its operators
    are missing."""
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


@pytest.mark.parametrize(
    ("extra", "shape"),
    [
        ("blocks.0.ls1.gamma", (64,)),
        ("blocks.2.norm1.weight", (64,)),
        ("blocks.1.attn.q_norm.weight", (64,)),
        ("register_tokens", (1, 4, 64)),
        ("register_tokens.x", (1, 4, 64)),
        ("dist_token", (1, 1, 64)),
        ("fc_norm.weight", (64,)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_with_a_tensor_that_a_dino_vit_has_not_is_refused(tmp_path, extra, shape):
    """LayerScale, registers and the like: without them the features would be those of no model."""
    torch.save(dino_weights(width=64) | {extra: torch.ones(shape)}, tmp_path / "other.pth")
    with pytest.raises(MissingError) as caught:
        load_encoder(str(tmp_path / "other.pth"))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("along", ["mask_token", "head.weight", "head.mlp.0.bias"])
def test_what_no_feature_depends_on_may_lie_in_a_dino_file(tmp_path, along):
    weights = dino_weights(width=64)
    torch.save(weights, tmp_path / "plain.pth")
    torch.save(weights | {along: torch.ones(1, 64)}, tmp_path / "more.pth")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    plain, more = (
        load_encoder(str(tmp_path / name), input_size=32) for name in ("plain.pth", "more.pth")
    )
    assert torch.equal(plain(images), more(images))


def all_pieces():
    found = dino_weights(width=64, n_blocks=2)
    return [name for name in found if not name.startswith("blocks.") or name.endswith("weight")]


@pytest.mark.parametrize("piece", all_pieces())
def test_a_dino_file_without_any_one_piece_is_refused(tmp_path, piece):
    weights = dino_weights(width=64)
    del weights[piece]
    torch.save(weights, tmp_path / "dino.pth")
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "dino.pth"))


def change_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_classifiers_folder_with_more_blocks_than_its_config_says_is_refused(
    transformers, tmp_path
):
    """Its tensors carry a prefix, and its head may come along: that must not hide a block."""
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**VIT))
    save_folder(model, tmp_path / "model")
    assert load_encoder(str(tmp_path / "model")).n_blocks == 3
    change_config(tmp_path / "model", num_hidden_layers=2)
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))


@pytest.mark.parametrize(
    "extra", ["layers.0.layer_scale1.lambda1", "embeddings.register_tokens", "pre_layernorm.bias"]
)
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
        ("vit-mae", "ViTMAEForPreTraining"),
        ("swin", "SwinForMaskedImageModeling"),
        ("clip", "CLIPVisionModelWithProjection"),
        ("resnet", "ResNetForImageClassification"),
        ("mobilenet-v2", "MobileNetV2ForSemanticSegmentation"),
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


@pytest.mark.parametrize("kind", ["vit", "clip", "dinov2", "swin", "resnet"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_widened_and_split_as_others_are(
    make_transformer, tmp_path, kind, dtype
):
    save_folder(make_transformer(kind).to(dtype), tmp_path / "model")
    encoder = load_encoder(str(tmp_path / "model"))
    parameters = [*encoder.trunk.parameters(), *encoder.tail.parameters()]
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    assert any(parameter.requires_grad for parameter in encoder.tail.parameters())


def test_a_beit_pretrained_by_masking_has_the_mean_of_its_patches_for_a_feature(
    transformers, tmp_path
):
    """Its file has no pooler; the norm in it is then a plain one, which is not random. A broken one
    is refused."""
    _, config, sizes = KINDS["beit"]
    torch.manual_seed(0)
    model = transformers.BeitForMaskedImageModeling(getattr(transformers, config)(**sizes)).eval()
    save_folder(model, tmp_path / "model")
    encoder = load_encoder(str(tmp_path / "model"))
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        patches = model.beit(images).last_hidden_state[:, 1:]  # (B, T, C) without the class token
        expected = torch.nn.functional.layer_norm(
            patches.mean(1), patches.shape[-1:], eps=model.config.layer_norm_eps
        )
        torch.testing.assert_close(encoder(images), expected, rtol=1e-5, atol=1e-5)
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.endswith("layernorm_before.weight"))
    save_file(
        {key: value for key, value in weights.items() if key != name},
        file,
        metadata={"format": "pt"},
    )
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))
