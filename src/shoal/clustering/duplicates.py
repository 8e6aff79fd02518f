"""Equal rows, found without comparing all pairs.

Rows are grouped by a hash: the bits of a row's numbers as integers, times fixed odd weights, summed
modulo 2^64. Integer sums do not depend on their order, so every device computes the same hash.

Shapes: N rows, D columns, M groups of equal rows.
"""

import torch
from torch import Tensor

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Numbers hashed or compared per chunk."""


def equal_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest row of each group of equal rows, (M,) ascending, and each row's group
    (N,)."""
    _, hashed = torch.unique(row_hashes(rows), return_inverse=True)
    positions = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(positions, len(rows)).scatter_reduce_(0, hashed, positions, "amin")
    first = first[hashed]  # (N,) the smallest row of equal hash
    candidates = (first != positions).nonzero()[:, 0]
    for part in torch.split(candidates, _chunk_rows(rows)):
        differs = (rows[part] != rows[first[part]]).any(1)
        # A hash collision: the row becomes a separate group, which only costs time.
        first[part[differs]] = part[differs]
    firsts, group = torch.unique(first, return_inverse=True)
    return firsts, group


def row_hashes(rows: Tensor) -> Tensor:
    """Return hashes (N,) int64 that are equal for equal rows; -0.0 equals 0.0."""
    generator = torch.Generator().manual_seed(0)
    n_words = rows.shape[1] * rows.element_size() // 4
    weights = torch.randint(-(1 << 63), (1 << 63) - 1, (n_words,), generator=generator) | 1
    weights = weights.to(rows.device)
    parts = torch.split(rows, _chunk_rows(rows))
    bits = ((part + 0.0).contiguous().view(torch.int32) for part in parts)
    return torch.cat([(part.long() * weights).sum(1) for part in bits])


def earlier_copies(group: Tensor) -> Tensor:
    """Return how many rows of the same `group` (N,) come before each row: (N,)."""
    order = group.argsort(stable=True)
    sizes = torch.bincount(group)
    start = (sizes.cumsum(0) - sizes)[group[order]]  # where each row's group begins
    counts = torch.empty_like(order)
    counts[order] = torch.arange(len(order), device=order.device) - start
    return counts


def _chunk_rows(rows: Tensor) -> int:
    return max(1, CHUNK_ELEMENTS[rows.device.type] // rows.shape[1])
