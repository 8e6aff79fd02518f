"""The fused kernels in Triton's interpreter, in a separate process because the switch is read when
triton is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import numpy as np, torch
from shoal.clustering.ward import linkage, scan, triton_rounds, triton_scan
from shoal.clustering.products import TENSOR_BFLOAT16
from shoal.clustering.ward.linkage import precisions, ward_linkage

torch.set_num_threads(1)  # the interpreter serves one thread
# Neither a table nor scipy: every row is scanned.
scan.FEW["cpu"] = linkage.FEW_PRODUCTS = linkage.MAX_TIED = 0
device = torch.device("cpu")
is_available = triton_scan.is_available
assert precisions(device)[0] is TENSOR_BFLOAT16
rng = np.random.default_rng(0)

# 1. The kernel's lists are those of a plain product: odd sizes, dead columns, weights, some rows.
for n, d, n_best in [(300, 70, 4), (131, 5, 16), (1030, 16, 2)]:
    points = torch.as_tensor(rng.normal(size=(n, d)) / d**0.5).bfloat16()
    half = points.double().square().sum(1) / 2
    half[rng.integers(n, size=9)] = torch.inf
    sizes = torch.as_tensor(rng.integers(1, 6, size=n)).double()
    rows = torch.as_tensor(rng.permutation(n)[: n // 2])
    value, index = triton_scan.best_columns(rows, points, half, sizes, n_best)
    wide = points.double()
    expected = wide[rows] @ wide.T - half.nan_to_num(posinf=0)[rows, None] - half
    expected /= sizes[rows, None] / sizes + 1
    expected[torch.arange(len(rows)), rows] = -torch.inf
    live = torch.isfinite(half[rows])
    best = expected.topk(n_best, 1).values
    torch.testing.assert_close(value[live].double(), best[live], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(expected.gather(1, index)[live], best[live], rtol=1e-5, atol=1e-6)

# 2. Trees are the same to the bit with and without kernels, ties and duplicates included: by scans
#    alone, by a table of all clusters, by a table that takes over, and where the number of columns
#    is not one of the table's.
plain = rng.normal(size=(50, 20))
grid = rng.integers(0, 3, size=(40, 3)).astype(float)
for rows in (plain, grid, np.concatenate([plain, plain[:10]]), np.eye(24), plain[:, :11]):
    triton_scan.is_available = lambda device: False
    assert precisions(device)[0] is not TENSOR_BFLOAT16
    expected = ward_linkage(rows)
    triton_scan.is_available = is_available
    for most in (0, 8192, 15):
        triton_rounds.MOST_CLUSTERS = most
        assert np.array_equal(ward_linkage(rows), expected), (rows.shape, most)

# Rows that are equally far apart but for rounding: a cluster may keep a nearest that another one
# has undercut.
triton_rounds.MOST_CLUSTERS = 8192
draws = np.random.default_rng(0)
for draw in range(12):
    rows = np.linalg.qr(draws.normal(size=(40, 40)))[0]
    # Of which two had another tree, and one none, when only unions told their nearest.
    if draw in (1, 8, 9):
        triton_scan.is_available = lambda device: False
        expected = ward_linkage(rows)
        triton_scan.is_available = is_available
        assert np.array_equal(ward_linkage(rows), expected), draw

# 3. The table adds squares as everything else does: one block of leaves to seven, one chunk to 16.
triton_rounds.MOST_CLUSTERS = 8192
for d in (1, 2, 7 * 4, 3 * 64, 5 * 16, 256):
    rows = rng.normal(size=(12, d))
    fused = ward_linkage(rows)
    triton_scan.is_available = lambda device: False
    assert np.array_equal(ward_linkage(rows), fused), d
    triton_scan.is_available = is_available
print("same")
"""


@pytest.mark.slow
def test_fused_kernels_propose_what_a_product_does_and_change_no_bit():
    pytest.importorskip("triton")
    source = str(Path(__file__).resolve().parents[2] / "src")
    path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("same\n")
