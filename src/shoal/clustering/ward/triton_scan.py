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
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from triton import JITFunction

BLOCK_R = 128
BLOCK_C = 128
BLOCK_D = 64

N_PROGRAMS = 528
"""Fewest programs, four per multiprocessor of a large GPU; the columns of few rows are split."""

IS_WANTED = True
"""Whether kernels are used if they can run; the tree is the same without them (for tests)."""


def is_available(device: torch.device) -> bool:
    """Return whether the kernel is used on this device."""
    is_interpreted = _is_interpreted()
    if not IS_WANTED or not (device.type == "cuda" or is_interpreted):
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
    _kernel()[(n_blocks, n_splits)](
        rows, points, *single, value, index, n_rows, n_columns, n_splits, tiles,
        N_DIMS=points.shape[1], KEPT=n_stored, BLOCK_R=BLOCK_R, BLOCK_C=BLOCK_C, BLOCK_D=BLOCK_D,
        num_warps=8, num_stages=3,
    )  # fmt: skip
    best = value.flatten(1).topk(min(n_best, n_columns), 1)
    return best.values, index.flatten(1).gather(1, best.indices).long()


@cache
def _kernel() -> "JITFunction":
    """Build the kernel on first use, so that this module can be imported without triton."""
    import triton
    import triton.language as tl

    # Sizes change in every round; a kernel specialized on them would be compiled again each time.
    varying = ["n_rows", "n_columns", "n_splits", "tiles"]

    @triton.jit(do_not_specialize=varying)  # type: ignore[untyped-decorator]
    def kernel(  # type: ignore[no-untyped-def]
        rows_at, points_at, half_at, sizes_at, inverse_at, value_at, index_at,
        n_rows, n_columns, n_splits, tiles,
        N_DIMS: tl.constexpr, KEPT: tl.constexpr,
        BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
    ):  # fmt: skip
        row_index = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
        is_row = row_index < n_rows
        row = tl.load(rows_at + row_index, mask=is_row, other=0)
        half = tl.load(half_at + row)
        size = tl.load(sizes_at + row)
        slots = tl.arange(0, KEPT)
        best = tl.full((BLOCK_R, KEPT), float("-inf"), tl.float32)
        best_index = tl.zeros((BLOCK_R, KEPT), tl.int32)
        dims = tl.arange(0, BLOCK_D)
        tile = tl.program_id(1) * tiles
        last = tile + tiles
        while tile < last:
            column = tile * BLOCK_C + tl.arange(0, BLOCK_C)
            is_column = column < n_columns
            safe = tl.where(is_column, column, 0)
            product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
            for start in range(0, N_DIMS, BLOCK_D):
                is_dim = start + dims < N_DIMS
                mine = tl.load(
                    points_at + row.to(tl.int64)[:, None] * N_DIMS + (start + dims)[None, :],
                    mask=is_dim[None, :], other=0.0,
                )  # fmt: skip
                theirs = tl.load(
                    points_at + safe.to(tl.int64)[None, :] * N_DIMS + (start + dims)[:, None],
                    mask=is_dim[:, None], other=0.0,
                )  # fmt: skip
                product = tl.dot(mine, theirs, product)
            other = tl.load(half_at + safe, mask=is_column, other=float("inf"))
            inverse = tl.load(inverse_at + safe, mask=is_column, other=1.0)
            value = (product - half[:, None] - other[None, :]) / (
                size[:, None] * inverse[None, :] + 1.0
            )
            value = tl.where(
                is_column[None, :] & (column[None, :] != row[:, None]), value, float("-inf")
            )
            largest = tl.max(value, axis=1)
            worst = tl.min(best, axis=1)
            while tl.max((largest > worst).to(tl.int32), axis=0) > 0:
                at = tl.argmax(value, axis=1)
                out = tl.argmin(best, axis=1)
                is_better = (largest > worst)[:, None] & (slots[None, :] == out[:, None])
                best = tl.where(is_better, largest[:, None], best)
                best_index = tl.where(
                    is_better, (tile * BLOCK_C + at)[:, None].to(tl.int32), best_index
                )
                value = tl.where(
                    tl.arange(0, BLOCK_C)[None, :] == at[:, None], float("-inf"), value
                )
                largest = tl.max(value, axis=1)
                worst = tl.min(best, axis=1)
            tile += 1
        target = (row_index.to(tl.int64)[:, None] * n_splits + tl.program_id(1)) * KEPT + slots[
            None, :
        ]
        tl.store(value_at + target, best, mask=is_row[:, None])
        tl.store(index_at + target, best_index, mask=is_row[:, None])

    return kernel
