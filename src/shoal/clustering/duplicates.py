"""Equal rows, found without comparing all pairs.

Rows are grouped by a hash: their similarity to a random row has the same bits for equal rows.

Shapes: N rows, D columns, M groups of equal rows.
"""

import torch
from torch import Tensor

from shoal.clustering.sums import BLOCK_ROWS, similarities


def equal_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest row of each group of equal rows, (M,) ascending, and each row's group
    (N,)."""
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
