"""The scan of `scan.py` as one fused kernel: tile product, Ward weight and running top-k, without a
matrix of R x M values.

Each program takes BLOCK_R rows and a share of the columns. It multiplies tiles of bfloat16 points,
adds in float32, turns products into values and holds the best K of each row in registers: as long
as a row has a value above the worst of these, its largest value replaces that one. After a few
tiles this is rare, so the kernel is as fast as the products. The values are those of
`Scanner._values` up to rounding, which the bounds of TENSOR_BFLOAT16 cover.

Needs triton, which CUDA builds of torch include. With TRITON_INTERPRET=1 the kernel runs on the
CPU, for tests.
"""

import os

import torch
from torch import Tensor

BLOCK_R = 128
BLOCK_C = 128
BLOCK_D = 64

# Fewest programs, four per multiprocessor of a large GPU; the columns of few rows are split
N_PROGRAMS = 528


def is_available(device: torch.device) -> bool:
    is_interpreted = _is_interpreted()
    if device.type != "cuda" and not is_interpreted:
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return is_interpreted or torch.cuda.get_device_capability(device) >= (8, 0)


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def best_columns(
    rows: Tensor, points: Tensor, half: Tensor, sizes: Tensor, n_best: int
) -> tuple[Tensor, Tensor]:
    """Return the `n_best` largest values of each row in `rows` (R,), descending, and their columns:
    (R, n_best) each.

    `points` (M, D) bfloat16, `half` (M,) half their squared lengths, inf for dead slots, `sizes`
    (M,). If fewer columns are live, the others have the value -inf.
    """
    from triton import next_power_of_2

    from shoal.clustering.ward import kernels

    n_rows = len(rows)
    n_columns = len(points)
    n_stored = max(2, next_power_of_2(n_best))
    n_blocks = -(-n_rows // BLOCK_R)
    n_tiles = -(-n_columns // BLOCK_C)
    n_splits = max(1, min(n_tiles // 8, -(-N_PROGRAMS // n_blocks)))
    tiles = -(-n_tiles // n_splits)
    value = torch.empty(n_rows, n_splits, n_stored, dtype=torch.float32, device=rows.device)
    index = torch.empty(n_rows, n_splits, n_stored, dtype=torch.int32, device=rows.device)
    if _is_interpreted():
        # The interpreter multiplies bfloat16 as integers; float32 holds the same numbers.
        points = points.float()
    single = (half.float(), sizes.float(), (1 / sizes).float())
    kernels.scan[(n_blocks, n_splits)](
        rows, points, *single, value, index, n_rows, n_columns, n_splits, tiles,
        N_DIMS=points.shape[1], KEPT=n_stored, BLOCK_R=BLOCK_R, BLOCK_C=BLOCK_C, BLOCK_D=BLOCK_D,
        num_warps=8, num_stages=3,
    )  # fmt: skip
    best = value.flatten(1).topk(min(n_best, n_columns), 1)
    return best.values, index.flatten(1).gather(1, best.indices).long()
