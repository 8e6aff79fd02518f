import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from shoal.clustering.ward import ward_linkage
from shoal.clustering.workers import SharedSetting


def unit_rows(n: int, seed: int) -> np.ndarray:
    """So many rows in 256 columns that bfloat16 products come first and float32 ones after them."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n // 20, 256))[rng.integers(n // 20, size=n)] + 0.3 * rng.normal(
        size=(n, 256)
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_the_strictest_value_is_in_force_and_the_last_user_restores_the_first() -> None:
    held = ["high"]
    setting = SharedSetting(lambda: held[-1], held.append, ("highest", "high", "medium"))
    assert setting.acquire("medium") == "high"
    assert setting.acquire("highest") == "high"  # what it was before all users
    assert setting.acquire("medium") == "high"
    setting.release("medium")
    setting.release("highest")
    setting.release("medium")
    assert held == ["high", "medium", "highest", "highest", "highest", "medium", "high"]


@pytest.mark.slow
def test_two_trees_at_once_are_those_grown_alone() -> None:
    """Both change the number of torch's threads and the precision of its products, which are the
    whole process's."""
    many = [unit_rows(3200, seed) for seed in (0, 1)]
    alone = [ward_linkage(rows) for rows in many]
    before = (torch.get_num_threads(), torch.get_float32_matmul_precision())
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            for found, expected in zip(pool.map(ward_linkage, many), alone, strict=True):
                np.testing.assert_array_equal(found, expected)
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


@pytest.mark.slow
def test_precisions_set_for_one_backend_are_left_as_they_were() -> None:
    program = """
import numpy as np, torch, shoal
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
rows = np.random.default_rng(0).normal(size=(3000, 64))
shoal.ward_linkage(rows)
print(torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cuda.matmul.fp32_precision)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["bf16", "none"], done.stderr
