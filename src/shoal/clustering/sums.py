"""Sums, lengths, similarities and unit rows, whose bits do not depend on the device, the threads or
a block's size.

Elementwise float64 operations round the same way everywhere, so sums are added along a halving tree
whose shape depends on the number of terms alone. The similarity of two rows is their inner product,
added up so.

N rows, D columns, Q queries, R rows of a chunk, M bank rows for each query.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from shoal.arrays import Floats, as_matrix, name_rows
from shoal.errors import DataError
from shoal.words import count

ROWS_AT_ONCE = 8192
"""Rows shifted or scaled together; any number gives the same bits, this one bounds the memory."""

BLOCK_ELEMENTS = 1 << 20
"""Entries rounded at once: 8 MiB each as a float64 and as a whole number."""

CHUNK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Products added up at once; on the CPU few enough to stay in the cache."""


def halving_sum(terms: Tensor) -> Tensor:
    """Add up the last dimension along a halving tree that only its length shapes; overwrites
    `terms`.

    Each addition is a separate elementwise one, which IEEE arithmetic rounds the same way
    everywhere; a call that sums would add in an order of its own.
    """
    width = terms.shape[-1]
    while width > 1:
        half = width // 2
        # += on a slice would also copy it onto itself.
        terms[..., :half].add_(terms[..., half : 2 * half])
        if width % 2:
            terms[..., 0].add_(terms[..., width - 1])
        width = half
    return terms[..., 0]


def row_lengths(rows: Tensor) -> Tensor:
    """(N,) the lengths of float64 rows (N, D)."""
    return root(halving_sum(rows.square()))


def unit_points(
    x: Tensor | ArrayLike,
    *,
    device: torch.device | str | None = None,
    name: str = "X",
    min_rows: int = 2,
) -> Tensor:
    """Check embeddings and scale their rows to length 1, the same bits on every device; a new (N,
    D) tensor.

    A memory map, float16 too, is read a block at a time, so that the tensor alone is held whole.
    """
    if not isinstance(x, Tensor):
        x = as_matrix(x, name=name, min_rows=min_rows)
    if x.ndim != 2 or len(x) < min_rows or x.shape[1] < 1:
        raise DataError(
            f"{name}: found shape {tuple(x.shape)}, expected (N, D) with at least "
            f"{count(min_rows, 'row')}"
        )
    points = _block(x[:0], device).new_empty(tuple(x.shape))
    is_finite = torch.empty(len(points), dtype=torch.bool, device=points.device)
    is_zero = torch.empty_like(is_finite)
    for start in range(0, len(points), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        rows = _block(x[part], device)
        largest = rows.abs().amax(dim=1, keepdim=True).double()
        wide = rows.double() / largest  # so that no square overflows or vanishes
        points[part] = (wide / row_lengths(wide)[:, None]).to(rows.dtype)
        is_finite[part] = rows.isfinite().all(dim=1)
        is_zero[part] = largest[:, 0] == 0
    for bad, problem, advice in (
        (~is_finite, "NaN or infinity in", "; remove or repair them"),
        (is_zero, "only zeros in", ", so no direction; remove them"),
    ):
        if bool(bad.any()):
            raise DataError(f"{name}: {problem} {name_rows(bad.cpu().numpy())}{advice}")
    return points


def _block(rows: Tensor | Floats, device: torch.device | str | None) -> Tensor:
    """Some rows on a device, in float32 or float64."""
    if not isinstance(rows, Tensor):
        # A copy: torch takes no read-only map, and no rows in reversed order.
        rows = torch.from_numpy(np.array(rows))
    rows = rows.detach().to(device)
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.float()
    return rows


@torch.no_grad()
def similarities(queries: Tensor, bank: Tensor, indices: Tensor) -> Tensor:
    """Inner products of query i with the bank rows `indices[i]`, float64, the same on every device:
    (Q, M)."""
    q, m = indices.shape
    step = max(1, CHUNK_ELEMENTS[queries.device.type] // (m * queries.shape[1]))
    out = torch.empty(q, m, dtype=torch.float64, device=queries.device)
    for start in range(0, q, step):
        rows = slice(start, start + step)
        products = bank[indices[rows]].double()  # (R, M, D)
        out[rows] = halving_sum(products.mul_(queries[rows, None].double()))
    return out


@torch.no_grad()
def grouped_sums(rows: Tensor, groups: Tensor, n_groups: int) -> Tensor:
    """(G, D) float64 sums of the rows (N, D) of each group, to the same bits in any order of rows.

    Entries must be below 2 in size, as those of unit rows are. They are rounded to multiples of
    2^-s, 2^-45 for 50,000 rows and finer for fewer: whole numbers add up to the same whatever the
    order, which a GPU does not even fix.
    """
    scale = 2.0 ** (61 - len(rows).bit_length())  # so that not even all rows together reach 2^63
    sums = torch.zeros(n_groups, rows.shape[1], dtype=torch.int64, device=rows.device)
    step = max(1, BLOCK_ELEMENTS // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        sums.index_add_(0, groups[part], (rows[part].double() * scale).round_().long())
    return sums.double() / scale


def root(squares: Tensor) -> Tensor:
    """The float64 nearest to each square root, differentiable.

    On a CPU torch takes roots by a library that misses the nearest float64 in about one of a
    hundred; numpy and CUDA round as IEEE arithmetic does.
    """
    values = squares.detach()
    if values.device.type == "cpu":
        roots = torch.from_numpy(np.sqrt(values.numpy()))
    else:
        roots = values.sqrt()
    if squares.requires_grad:
        roots = roots + (squares - values) / (2 * roots)  # adds 0, whose gradient is the root's
    return roots
