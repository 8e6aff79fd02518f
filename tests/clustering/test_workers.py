import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from shoal.clustering.products import all_workers
from shoal.clustering.ward import ward_linkage

CPU = torch.device("cpu")


def test_an_error_in_a_worker_reaches_the_caller_and_frees_the_threads():
    before = torch.get_num_threads()

    def work(item):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), all_workers(CPU) as workers:
        workers.map(work, range(4))
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_two_trees_at_once_are_those_grown_alone():
    """Both trees change torch's number of threads and matmul precision, which are settings of the
    whole process."""
    draw = torch.Generator().manual_seed(0)
    many = [torch.nn.functional.normalize(torch.randn(3200, 256, generator=draw)) for _ in range(2)]
    alone = [ward_linkage(rows) for rows in many]
    before = (torch.get_num_threads(), torch.get_float32_matmul_precision())
    with ThreadPoolExecutor(2) as pool:
        for found, expected in zip(pool.map(ward_linkage, many), alone, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


@pytest.mark.slow
def test_precisions_set_for_one_backend_are_left_as_they_were():
    program = """
import numpy as np, torch, shoal
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
shoal.ward_linkage(np.random.default_rng(0).normal(size=(3000, 64)))
print(torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cuda.matmul.fp32_precision)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["bf16", "none"], done.stderr
