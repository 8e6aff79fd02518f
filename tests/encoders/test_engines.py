"""Engines: features equal torch's, bits do not depend on the batch, and the right engine is
chosen."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.encoders import engines
from shoal.encoders.catalog import load_encoder
from shoal.encoders.engines import (
    CHUNK,
    TORCH,
    choose_engine,
    compile_trunk,
    converted_file,
    use_engine,
    wanted_engine,
)
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.errors import MissingError, UsageError
from small_models import KINDS, make_model, make_tiny_encoder

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)
SIZE = 64


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE", str(folder))
        yield folder


def encoder_with(engine: str, n_tail_blocks: int = 1) -> Encoder:
    with use_engine(engine):
        return load_encoder("efficientnet-lite0", n_tail_blocks=n_tail_blocks, input_size=SIZE)


def images(n: int) -> Tensor:
    return torch.rand(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)) * 2 - 1


@torch.no_grad()
def features(encoder: Encoder, x: Tensor) -> Tensor:
    return F.normalize(encoder.tail(encoder.run_trunk(x)), dim=1)


@needs_openvino
@pytest.mark.parametrize("n_tail_blocks", [1, 16])
def test_features_are_those_of_torch(n_tail_blocks: int) -> None:
    ours = encoder_with("openvino", n_tail_blocks)
    theirs = encoder_with(TORCH, n_tail_blocks)
    assert (ours.engine, theirs.engine) == ("openvino", TORCH)
    assert (
        features(ours, images(CHUNK + 3)) - features(theirs, images(CHUNK + 3))
    ).abs().max() < 1e-5


@needs_openvino
def test_tokens_are_the_same_bits_in_every_batch_and_with_any_number_of_threads() -> None:
    x = images(2 * CHUNK + 1)
    before = torch.get_num_threads()
    tokens = encoder_with("openvino").run_trunk(x)
    try:
        torch.set_num_threads(1)
        alone = encoder_with("openvino")
        parts = [alone.run_trunk(part) for part in x.split([1, 2, CHUNK, len(x) - CHUNK - 3])]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat(parts), tokens)


@needs_openvino
def test_a_damaged_converted_trunk_is_converted_again() -> None:
    encoder = make_tiny_encoder("tiny")
    parts = (encoder.trunk, encoder.tail, 14, "openvino")
    assert compile_trunk(*parts) is not None
    weights = converted_file(encoder.trunk, 14).with_suffix(".bin")
    whole = weights.read_bytes()
    nan = np.full(len(whole) // 4, np.nan, np.float32).tobytes()
    for damaged in (
        whole[: len(whole) // 2],
        bytes(len(whole)),
        nan,
    ):  # unreadable; readable, but with other weights
        weights.write_bytes(damaged)
        engines._COMPILED.clear()
        assert compile_trunk(*parts) is not None
        assert weights.read_bytes() == whole
    assert (
        weights.parent.stat().st_mode == weights.parent.parent.stat().st_mode
    )  # readable by other users, like the cache


@needs_openvino
@pytest.mark.parametrize("is_full", [False, True])
def test_where_a_trunk_cannot_be_kept_it_runs_all_the_same(
    is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("basic_ios::clear: iostream error")  # OpenVINO's error on a full disk

    (tmp_path / "file").touch()
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / ("cache" if is_full else "file/cache")))
    if is_full:
        monkeypatch.setattr("openvino.save_model", fail)
    engines._COMPILED.clear()
    encoder = make_tiny_encoder("tiny")
    trunk = compile_trunk(encoder.trunk, encoder.tail, 14, "openvino")
    assert trunk is not None
    given = torch.rand(2, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = encoder.trunk(given)
    assert (trunk(given).reshape(expected.shape) - expected).abs().max() < 1e-4
    assert not list((tmp_path / "cache").rglob("*.xml"))


@needs_openvino
def test_a_converted_trunk_is_kept_by_weights_split_and_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = encoder_with("openvino")
    assert encoder.engine == "openvino"
    file = converted_file(encoder.trunk, SIZE)
    assert file.is_file()
    assert (
        len(
            {
                file,
                converted_file(encoder.trunk, 96),
                converted_file(encoder_with(TORCH, 2).trunk, SIZE),
            }
        )
        == 3
    )
    assert not [path for path in file.parent.parent.iterdir() if path.name.startswith(".")]

    def convert(*_: object) -> None:
        raise AssertionError("it is there already")

    monkeypatch.setattr(engines, "convert", convert)
    assert encoder_with("openvino").engine == "openvino"
    with torch.no_grad():
        next(encoder.trunk.buffers()).add_(1)
    assert converted_file(encoder.trunk, SIZE) != file


@needs_openvino
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "vit-mae"])  # it is refused
def test_trunks_of_every_architecture_are_converted(kind: str) -> None:
    parts = split_model(make_model(pytest.importorskip("transformers"), kind), 32)
    plain = InputFormat(size=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    encoder = Encoder(kind, parts, plain, min(1, len(parts.blocks)))
    assert compile_trunk(encoder.trunk, encoder.tail, 32, "openvino") is not None


@needs_openvino
def test_a_trunk_that_openvino_cannot_run_is_left_to_torch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (
                x.mean((2, 3)) if x.shape[0] == CHUNK else x.amax((2, 3))
            )  # traced with a chunk, probed with two

    assert compile_trunk(Odd(), nn.Identity(), SIZE, "openvino") is None
    assert "so torch does" in caplog.text


def test_the_engine_is_chosen_by_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_ENGINE", TORCH)
    assert choose_engine()[0] == TORCH
    monkeypatch.delenv("SHOAL_ENGINE")
    monkeypatch.setattr(engines, "has_openvino", lambda: True)
    for machine, has_float16, engine in (
        ("x86_64", False, "openvino"),
        ("x86_64", True, "openvino"),
        ("aarch64", False, "openvino"),
        ("aarch64", True, "openvino-f16"),
    ):
        monkeypatch.setattr(engines.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(engines, "has_float16", lambda answer=has_float16: answer)
        assert choose_engine()[0] == engine
    monkeypatch.setattr(engines.platform, "machine", lambda: "riscv64")
    assert choose_engine()[0] == TORCH
    monkeypatch.setattr(engines, "has_openvino", lambda: False)
    assert choose_engine()[0] == TORCH
    assert "pip install openvino" in choose_engine()[1]
    with use_engine("openvino"), pytest.raises(MissingError):
        wanted_engine()
    with use_engine("tensorrt"), pytest.raises(UsageError):
        wanted_engine()
