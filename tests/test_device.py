from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.device import (
    _left_in_container,
    choose_device,
    seed_everything,
)
from shoal.errors import MissingError, UsageError


def test_auto_takes_cuda_where_there_is_one() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_device().type == choose_device("auto").type == expected


def test_a_device_that_is_not_one_is_a_usage_error() -> None:
    for name in ("gpu", "meta", "mps", "cuda:x", []):
        with pytest.raises(UsageError):
            choose_device(name)


def test_a_cuda_device_that_is_absent_is_missing() -> None:
    with pytest.raises(MissingError):
        choose_device("cuda:99")


def test_the_memory_of_a_container_is_what_its_limit_leaves(tmp_path: Path) -> None:
    """Of a limit of 1,000 bytes, 700 are used, 200 of them by cached files that can be evicted.
    Without a limit, memory is unbounded."""
    assert _left_in_container(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\n")
    assert _left_in_container(tmp_path) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert _left_in_container(tmp_path) == float("inf")


def test_one_seed_seeds_numpy_and_torch() -> None:
    draws = []
    for seed in (1, 1, 2):
        seed_everything(seed)
        draws.append((np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_a_seed_that_numpy_would_not_take_is_refused(seed: int) -> None:
    with pytest.raises(UsageError):
        seed_everything(seed)
