"""Equal rows, found without comparing every pair.

A hash proposes: the bits of a row's numbers as integers, times fixed odd weights, summed modulo
2^64. Integer sums do not depend on their order, so every device finds the same hash.

N rows, D columns, M groups of equal rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Numbers hashed or compared at once."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Which rows are equal."""

    first: Tensor
    """(M,) the smallest row of each group, ascending."""
    member: Tensor
    """(N,) each row's group."""

    def earlier_copies(self) -> Tensor:
        """(N,) how many equal rows come before each row."""
        order = self.member.argsort(stable=True)
        sizes = torch.bincount(self.member)
        start = (sizes.cumsum(0) - sizes)[self.member[order]]  # where each row's group begins
        counts = torch.empty_like(order)
        counts[order] = torch.arange(len(order), device=order.device) - start
        return counts


def row_hashes(rows: Tensor) -> Tensor:
    """(N,) int64, equal for equal rows; -0.0 counts as 0.0."""
    generator = torch.Generator().manual_seed(0)
    n_words = rows.shape[1] * rows.element_size() // 4
    weights = torch.randint(-(1 << 63), (1 << 63) - 1, (n_words,), generator=generator) | 1
    weights = weights.to(rows.device)
    parts = torch.split(rows, max(1, CHUNK_ELEMENTS[rows.device.type] // rows.shape[1]))
    bits = ((part + 0.0).contiguous().view(torch.int32) for part in parts)
    return torch.cat([(part.long() * weights).sum(1) for part in bits])


def equal_rows(rows: Tensor) -> Groups:
    """Group the equal rows; a hash only proposes, the numbers decide."""
    _, hashed = torch.unique(row_hashes(rows), return_inverse=True)
    everyone = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(everyone, len(rows)).scatter_reduce_(0, hashed, everyone, "amin")
    first = first[hashed]  # (N,) the smallest row of equal hash
    twins = (first != everyone).nonzero()[:, 0]
    for part in torch.split(twins, max(1, CHUNK_ELEMENTS[rows.device.type] // rows.shape[1])):
        differs = (rows[part] != rows[first[part]]).any(1)
        first[part[differs]] = part[differs]  # a collision: left alone, which costs time only
    firsts, member = torch.unique(first, return_inverse=True)
    return Groups(firsts, member)
