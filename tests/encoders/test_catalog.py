import json
import os
import socket

import pytest
import torch

from shoal.encoders.catalog import load_encoder
from shoal.errors import MissingError, UnknownName, UsageError
from small_models import save_folder


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """A machine with no weights but those in packages, and no network: connecting fails the
    test."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    return tmp_path


def no_network(*args, **kwargs):
    raise OSError("no network in tests")


@pytest.mark.parametrize("kind", ["vit", "dinov2", "dinov3", "clip", "siglip"])
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


def test_what_a_preprocessor_makes_of_white_is_what_the_encoder_sees(make_transformer, tmp_path):
    model = make_transformer("vit")
    model.save_pretrained(tmp_path / "model")
    preprocessor = {"image_processor": {"image_mean": [0.5] * 3, "image_std": [0.1] * 3}}
    (tmp_path / "model" / "processor_config.json").write_text(json.dumps(preprocessor))
    encoder = load_encoder(str(tmp_path / "model"))
    white = encoder.normalize(torch.ones(1, 3, 1, 1)).flatten().tolist()
    assert white == pytest.approx([5.0] * 3, rel=1e-5)
    assert encoder.input_format.size == 32  # the model's own, since the preprocessor names none


def test_a_folder_without_an_input_format_is_refused(make_transformer, tmp_path):
    make_transformer("vit").save_pretrained(tmp_path / "model")
    with pytest.raises(MissingError):
        load_encoder(str(tmp_path / "model"))


@pytest.mark.parametrize(
    "change",
    [
        {"do_flip_channel_order": True},
        {"rescale_offset": True},
        {"do_normalize": False},
        {"do_rescale": False},
        {"rescale_factor": 1 / 127.5},
    ],
    ids=str,
)
def test_an_input_format_with_other_changes_is_refused(make_transformer, tmp_path, change):
    save_folder(make_transformer("vit"), tmp_path / "model", **change)
    with pytest.raises(MissingError, match=next(iter(change))):
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


def test_an_empty_name_is_refused_and_not_taken_for_the_current_folder():
    for name in ("", "  "):
        with pytest.raises(UsageError):
            load_encoder(name)


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(UnknownName):
        load_encoder("dino-vitb8")


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
