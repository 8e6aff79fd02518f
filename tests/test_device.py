from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.device import (
    _left_in_container,
    autocast_dtype,
    choose_device,
    computing_device,
    device_in_words,
    encoder_device,
    free_memory,
    seed_everything,
)
from shoal.errors import MissingError, UsageError


def test_auto_takes_cuda_where_there_is_one() -> None:
    # The CPU beside Apple's GPU too: that one runs encoders alone.
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_device().type == choose_device("auto").type == expected


def test_a_device_that_is_not_one_is_a_usage_error() -> None:
    for name in ("gpu", "meta", "cuda:x", []):
        with pytest.raises(UsageError):
            choose_device(name)


def test_a_cuda_device_that_is_absent_is_missing() -> None:
    with pytest.raises(MissingError, match=r"CUDA devices that torch \S+ sees: \d+"):
        choose_device("cuda:99")


def test_apples_gpu_is_missing_where_torch_sees_none() -> None:
    if not torch.backends.mps.is_available():
        with pytest.raises(MissingError):
            encoder_device("mps")


def test_apples_gpu_runs_encoders_and_the_cpu_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name in (None, "auto", "mps", torch.device("mps")):
        assert encoder_device(name).type == "mps"
        assert choose_device(name) == torch.device("cpu")
    assert encoder_device("cpu") == torch.device("cpu")
    assert device_in_words(encoder_device()).startswith("mps ")
    monkeypatch.setenv("WORLD_SIZE", "2")  # two processes would share it
    assert encoder_device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert encoder_device() == choose_device() == torch.device("cuda")


def test_other_devices_compute_themselves() -> None:
    for name in ("cpu", "cuda:1"):
        assert computing_device(torch.device(name)) == torch.device(name)


def test_networks_run_in_float32_on_the_cpu_and_bfloat16_on_cuda() -> None:
    assert autocast_dtype(torch.device("cpu")) is torch.float32
    assert autocast_dtype(torch.device("cuda")) is torch.bfloat16


def test_free_memory_is_what_an_allocation_can_take() -> None:
    assert 1 << 20 < free_memory(torch.device("cpu")) < 1 << 50


def test_the_memory_of_a_container_is_what_its_limit_leaves(tmp_path: Path) -> None:
    """A limit of 1,000 bytes, 700 used, 200 of them files that make room; without a limit there is
    no bound."""
    assert _left_in_container(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    assert _left_in_container(tmp_path) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert _left_in_container(tmp_path) == float("inf")


def test_free_memory_heeds_the_container_and_the_other_processes_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.device._left_in_container", lambda: 12345)
    assert free_memory(torch.device("cpu")) == 12345
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # as torchrun tells each of four processes
    assert free_memory(torch.device("cpu")) == 12345 // 4


def test_one_seed_seeds_numpy_and_torch() -> None:
    draws = []
    for seed in (1, 1, 2):
        seed_everything(seed)
        draws.append((np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_a_seed_that_numpy_would_not_take_is_refused(seed: int) -> None:
    with pytest.raises(UsageError, match=f"seed: found {seed}"):
        seed_everything(seed)
