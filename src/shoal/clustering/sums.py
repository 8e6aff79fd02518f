"""Sums, lengths, similarities, unit rows and equal rows with the same bits on every device, for any
number of threads and any block size.

Elementwise float64 operations round the same way everywhere, so terms are summed pairwise along a
tree that depends only on their number. The similarity of two rows is their inner product, summed
this way. Equal rows are found without comparing all pairs: they are grouped by a hash, their
similarity to a random row.

Shapes: N rows, D columns, Q queries, R rows per chunk, M bank rows for each query.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from shoal.arrays import Floats, as_matrix, name_rows
from shoal.device import AnyDevice
from shoal.errors import DataError

# Rows shifted or scaled per block; bounds the memory, and does not change the bits
BLOCK_ROWS = 8192

# Entries rounded per block: 8 MiB as float64, and 8 MiB as integers
BLOCK_ELEMENTS = 1 << 20

# Products summed per chunk; on the CPU a chunk fits into the cache
CHUNK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}


def halving_sum(terms: Tensor) -> Tensor:
    """Add up the last dimension along a halving tree, overwriting `terms`.

    Each addition is an elementwise operation, which IEEE arithmetic rounds the same way everywhere;
    `torch.sum` adds in an order that depends on the device.
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
    """Return the lengths (N,) of float64 rows (N, D)."""
    return root(halving_sum(rows.square()))


def unit_points(
    x: Tensor | ArrayLike,
    *,
    device: AnyDevice = None,
    name: str = "X",
    min_rows: int = 2,
) -> Tensor:
    """Check embeddings and return their rows scaled to length 1, a new (N, D) tensor.

    A memory map is read a block at a time, so that only the result is held in memory.
    """
    if not isinstance(x, Tensor):
        x = as_matrix(x, name=name, min_rows=min_rows)
    points = _block(x[:0], device).new_empty(tuple(x.shape))
    is_bad = torch.empty(len(points), dtype=torch.bool, device=points.device)
    for start in range(0, len(points), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        rows = _block(x[part], device)
        largest = rows.abs().amax(dim=1, keepdim=True).double()
        wide = rows.double() / largest  # so that no square overflows or vanishes
        points[part] = (wide / row_lengths(wide)[:, None]).to(rows.dtype)
        is_bad[part] = ~rows.isfinite().all(dim=1) | (largest[:, 0] == 0)
    if bool(is_bad.any()):
        raise DataError(
            f"{name}: NaN, infinity or only zeros in {name_rows(is_bad.cpu().numpy())}; remove or "
            "repair them"
        )
    return points


def _block(rows: Tensor | Floats, device: AnyDevice) -> Tensor:
    """Return rows on a device, as float32 or float64."""
    if not isinstance(rows, Tensor):
        # A copy: torch does not take read-only memory or negative strides.
        rows = torch.from_numpy(np.array(rows))
    rows = rows.detach().to(device)
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.float()
    return rows


@torch.no_grad()
def similarities(queries: Tensor, bank: Tensor, indices: Tensor) -> Tensor:
    """Return the inner products (Q, M), float64, of query i with the bank rows `indices[i]`."""
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
    """Return float64 sums (G, D) of the rows (N, D) of each group, with the same bits in any order
    of rows.

    Absolute values must be below 2, as those of unit rows are. They are rounded to multiples of a
    power of two, 2^-45 for 50,000 rows and finer for fewer, and added as integers, because a GPU
    adds in no fixed order.
    """
    scale = 2.0 ** (61 - len(rows).bit_length())  # so that not even all rows together reach 2^63
    sums = torch.zeros(n_groups, rows.shape[1], dtype=torch.int64, device=rows.device)
    step = max(1, BLOCK_ELEMENTS // rows.shape[1])
    for part, group in zip(torch.split(rows, step), torch.split(groups, step), strict=True):
        sums.index_add_(0, group, (part.double() * scale).round_().long())
    return sums.double() / scale


def grouped_means(rows: Tensor, groups: Tensor, n_groups: int) -> Tensor:
    """Return float64 means (G, D) of the rows (N, D) of each group, as `grouped_sums` adds them."""
    sums = grouped_sums(rows, groups, n_groups)
    return sums / torch.bincount(groups, minlength=n_groups)[:, None]


def root(squares: Tensor) -> Tensor:
    """Return the float64 nearest to each square root, differentiable.

    On the CPU, one in a hundred of torch's roots is not the nearest float64; numpy's and CUDA's
    are.
    """
    values = squares.detach()
    if values.device.type == "cpu":
        roots = torch.from_numpy(np.sqrt(values.numpy()))
    else:
        roots = values.sqrt()
    if squares.requires_grad:
        roots = roots + (squares - values) / (2 * roots)  # adds 0, with the gradient of the root
    return roots


def equal_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest row of each of the G groups of equal rows, (G,) ascending, and each row's
    group (N,)."""
    _, hashed = torch.unique(row_hashes(rows), return_inverse=True)
    positions = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(positions, len(rows)).scatter_reduce_(0, hashed, positions, "amin")
    first = first[hashed]  # (N,) the smallest row of equal hash
    candidates = (first != positions).nonzero()[:, 0]
    for part in torch.split(candidates, BLOCK_ROWS):
        differs = (rows[part] != rows[first[part]]).any(1)
        # A hash collision: the row becomes a separate group, which only costs time.
        first[part[differs]] = part[differs]
    firsts, group = torch.unique(first, return_inverse=True)
    return firsts, group


def row_hashes(rows: Tensor) -> Tensor:
    """Return hashes (N,) float64 that are equal for equal rows; -0.0 equals 0.0."""
    weights = torch.randn(1, rows.shape[1], generator=torch.Generator().manual_seed(0))
    only = torch.zeros(len(rows), 1, dtype=torch.int64, device=rows.device)
    return similarities(rows, weights.to(rows.device), only)[:, 0]


def earlier_copies(group: Tensor) -> Tensor:
    """Return how many rows of the same `group` (N,) come before each row: (N,)."""
    order = group.argsort(stable=True)
    sizes = torch.bincount(group)
    start = (sizes.cumsum(0) - sizes)[group[order]]  # where each row's group begins
    counts = torch.empty_like(order)
    counts[order] = torch.arange(len(order), device=order.device) - start
    return counts
