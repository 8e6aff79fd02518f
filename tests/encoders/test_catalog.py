import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from shoal.encoders.catalog import ENCODERS, is_available, load_encoder
from shoal.encoders.hub import build_dino
from shoal.encoders.splitting import split_model
from shoal.encoders.weights import rename_dino
from shoal.errors import MissingError, UnknownName, UsageError
from small_models import dino_weights, save_folder

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "encoders.md"


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """No weights but those in packages, and no network: a connection is a failure of the test."""
    monkeypatch.setenv("SHOAL_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    return tmp_path


def no_network(*args, **kwargs):
    raise OSError("no network in tests")


def dino_forward(weights, images, n_heads):
    """The DINO ViT written out, from its paper: pre-norm blocks, class token in front, eps 1e-6."""

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x, name):
        return F.layer_norm(
            x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-6
        )

    patch = weights["patch_embed.proj.weight"].shape[-1]
    x = F.conv2d(
        images, weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"], stride=patch
    )
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([weights["cls_token"].expand(len(x), -1, -1), x], dim=1) + weights["pos_embed"]
    n_blocks = sum(name.endswith("norm1.weight") for name in weights)
    for number in range(n_blocks):
        place = f"blocks.{number}"
        b, t, c = x.shape
        qkv = linear(norm(x, f"{place}.norm1"), f"{place}.attn.qkv").view(
            b, t, 3, n_heads, c // n_heads
        )
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.transpose(-1, -2)) * (c // n_heads) ** -0.5).softmax(dim=-1) @ v
        x = x + linear(mixed.transpose(1, 2).reshape(b, t, c), f"{place}.attn.proj")
        x = x + linear(
            F.gelu(linear(norm(x, f"{place}.norm2"), f"{place}.mlp.fc1")), f"{place}.mlp.fc2"
        )
    return norm(x, "norm")[:, 0]


def expect(monkeypatch, name, **shape):
    """Let small models pass for an encoder of the catalog."""
    monkeypatch.setitem(ENCODERS, name, replace(ENCODERS[name], shape=shape))


def test_dinos_own_weights_give_dinos_own_features():
    weights = dino_weights()
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    parts = split_model(build_dino(rename_dino(weights), "w.pth", n_heads=4), 32)
    with torch.no_grad():
        tokens = torch.nn.Sequential(parts.stem, *parts.blocks)(images)
        torch.testing.assert_close(
            parts.finish(tokens), dino_forward(weights, images, 4), rtol=0, atol=2e-6
        )


def test_a_dino_file_is_loaded_by_its_path_and_by_its_name(empty_machine, monkeypatch):
    expect(
        monkeypatch,
        "dino-vitb16",
        model_type="vit",
        hidden_size=64,
        num_hidden_layers=2,
        patch_size=8,
    )
    weights = dino_weights(width=64)  # one attention head of 64 channels, as in every DINO ViT
    folder = empty_machine / "weights"
    folder.mkdir()
    torch.save(weights, folder / "dino_vitbase16_pretrain.pth")
    by_path = load_encoder(str(folder / "dino_vitbase16_pretrain.pth"))
    assert is_available("dino-vitb16")
    by_name = load_encoder("dino-vitb16")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(
            by_path(images), dino_forward(weights, images, 1), rtol=0, atol=2e-6
        )
        assert torch.equal(by_path(images), by_name(images))
    assert by_name.n_tail_blocks == 1
    assert by_name.input_format == ENCODERS["dino-vitb16"].input_format


@pytest.mark.parametrize(
    "kind", ["vit", "dinov2", "dinov3", "clip", "siglip", "swin", "convnext", "resnet"]
)
def test_a_folder_saved_by_transformers_is_loaded(make_transformer, tmp_path, kind):
    model = make_transformer(kind)
    save_folder(model, tmp_path / "model")
    encoder = load_encoder(str(tmp_path / "model"), n_tail_blocks=2)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        out = model(images)
        own = (
            out.last_hidden_state[:, 0]
            if kind in ("vit", "dinov2", "dinov3")
            else out.pooler_output.flatten(1)
        )
        torch.testing.assert_close(encoder(images), own, rtol=0, atol=2e-6 * float(own.abs().max()))
    assert encoder.n_tail_blocks == 2
    assert encoder.input_format.size == 32
    assert encoder.input_format.mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_the_image_half_of_a_model_with_text_is_loaded(transformers, tmp_path, kind):
    small = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    config = getattr(transformers, f"{kind}Config")(
        text_config=small | {"vocab_size": 20},
        vision_config=small | {"image_size": 32, "patch_size": 8},
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    save_folder(model, tmp_path / "model")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        own = model.vision_model(images).pooler_output
        torch.testing.assert_close(
            load_encoder(str(tmp_path / "model"))(images), own, rtol=0, atol=1e-6
        )


def test_a_model_of_an_unknown_structure_is_loaded_whole(make_transformer, tmp_path):
    save_folder(make_transformer("pvt"), tmp_path / "model")
    encoder = load_encoder(str(tmp_path / "model"))
    assert encoder.n_tail_blocks == encoder.n_blocks == 0
    assert encoder(torch.randn(2, 3, 32, 32)).shape == (2, 32)


@pytest.mark.parametrize(
    ("preprocessor", "white"),
    [
        ({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}, 1.0),
        (
            {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "rescale_factor": 1 / 127.5},
            6.0,
        ),  # (2 - 0.5) / 0.25
        (
            {
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
                "rescale_factor": 1 / 127.5,
                "rescale_offset": True,
            },
            1.0,
        ),
        ({"image_mean": [127.5] * 3, "image_std": [127.5] * 3, "do_rescale": False}, 1.0),
        ({"do_normalize": False}, 1.0),
        ({"do_flip_channel_order": True}, 1.0),
        ({"image_processor": {"image_mean": [0.5] * 3, "image_std": [0.1] * 3}}, 5.0),
    ],
    ids=str,
)
def test_what_a_preprocessor_makes_of_white_is_what_the_encoder_sees(
    make_transformer, tmp_path, preprocessor, white
):
    model = make_transformer("vit")
    model.save_pretrained(tmp_path / "model")
    name = (
        "processor_config.json" if "image_processor" in preprocessor else "preprocessor_config.json"
    )
    (tmp_path / "model" / name).write_text(json.dumps(preprocessor))
    encoder = load_encoder(str(tmp_path / "model"))
    assert encoder.normalize(torch.ones(1, 3, 1, 1)).flatten().tolist() == pytest.approx(
        [white] * 3, rel=1e-5
    )
    assert encoder.input_format.is_bgr == ("do_flip_channel_order" in preprocessor)
    assert encoder.input_format.size == 32  # the model's own, where the preprocessor names none


def test_a_folder_without_an_input_format_is_refused(make_transformer, tmp_path):
    make_transformer("vit").save_pretrained(tmp_path / "model")
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))


def test_a_folder_with_truncated_weights_is_refused(make_transformer, tmp_path):
    save_folder(make_transformer("vit"), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))


class Bomb:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_folder_whose_weights_would_run_code_is_refused_and_runs_nothing(
    make_transformer, tmp_path
):
    save_folder(make_transformer("vit"), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({"a": Bomb(tmp_path / "it-ran")}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))
    assert not (tmp_path / "it-ran").exists()
    torch.load(tmp_path / "model" / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "it-ran").is_dir(), (
        "the file must be a working attack, or this test proves nothing"
    )


def test_a_folder_with_code_of_its_own_is_refused_and_runs_nothing(make_transformer, tmp_path):
    save_folder(make_transformer("vit"), tmp_path / "model")
    (tmp_path / "model" / "own.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')\n")
    config = tmp_path / "model" / "config.json"
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    config.write_text(json.dumps(json.loads(config.read_text()) | own))
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))
    assert not (tmp_path / "it-ran").exists()


def test_weights_that_are_no_numbers_are_refused(make_transformer, tmp_path):
    model = make_transformer("vit")
    with torch.no_grad():
        model.layernorm.bias[0] = float("nan")
    save_folder(model, tmp_path / "model")
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))


def test_a_file_that_is_no_dino_vit_is_refused(tmp_path):
    torch.save({"conv1.weight": torch.zeros(3)}, tmp_path / "resnet.pth")
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "resnet.pth"))


def test_a_small_vit_under_the_name_of_a_large_one_is_refused(empty_machine):
    (empty_machine / "weights").mkdir()
    torch.save(
        dino_weights(width=64, patch=16), empty_machine / "weights" / "dino_vitbase16_pretrain.pth"
    )
    with pytest.raises(MissingError):
        load_encoder("dino-vitb16")
    assert (
        load_encoder(str(empty_machine / "weights" / "dino_vitbase16_pretrain.pth")).n_blocks == 2
    )


def test_an_empty_name_is_refused_and_not_taken_for_the_current_folder():
    for name in ("", "  "):
        with pytest.raises(UsageError):
            load_encoder(name)


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(UnknownName):
        load_encoder("dino-vitb8")
    with pytest.raises(UnknownName):
        is_available("efficientnet-lite1")


def test_a_downloaded_model_is_loaded_by_its_hub_id_when_the_hub_cannot_be_reached(
    make_transformer, empty_machine
):
    place = empty_machine / "cache" / "models--someone--some-model"
    save_folder(make_transformer("vit"), place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    assert load_encoder("someone/some-model").feature_dim == 32


def test_the_input_size_and_the_tail_are_settings():
    encoder = load_encoder("efficientnet-lite0", n_tail_blocks=2, input_size=128)
    assert encoder.input_format.size == 128
    assert encoder.n_tail_blocks == 2
    with pytest.raises(UsageError):
        load_encoder("efficientnet-lite0", n_tail_blocks=40)
