"""Equal rows, found without comparing every pair; and the hash of a matrix.

Both rest on one hash: the bits of a row's numbers as integers, times fixed odd weights, summed
modulo 2^64. Integer sums do not depend on their order, so every device finds the same hash.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Numbers hashed or compared at once."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Which rows are equal: `first` (M,) the smallest row of each group, ascending, `member` (N,)
    each row's group."""

    first: Tensor
    member: Tensor

    def earlier_copies(self) -> Tensor:
        """(N,) how many equal rows come before each row."""
        order = torch.argsort(self.member, stable=True)
        in_order = self.member[order]
        at = torch.arange(len(order), device=order.device)
        is_first = torch.ones_like(at, dtype=torch.bool)
        is_first[1:] = in_order[1:] != in_order[:-1]
        counts = torch.empty_like(order)
        counts[order] = at - at[is_first][is_first.cumsum(0) - 1]
        return counts


def row_hashes(rows: Tensor) -> Tensor:
    """(N,) int64, equal for equal rows; -0.0 counts as 0.0."""
    weights = _weights(rows.shape[1] * rows.element_size() // 4, rows.device)
    step = max(1, CHUNK_ELEMENTS[rows.device.type] // rows.shape[1])
    hashes = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    for start in range(0, len(rows), step):
        # (R, D) or (R, 2D)
        bits = (rows[start : start + step] + 0.0).contiguous().view(torch.int32)
        hashes[start : start + step] = (bits.long() * weights).sum(1).add_(rows.element_size())
    return hashes


def equal_rows(rows: Tensor) -> Groups:
    """Group the equal rows; a hash only proposes, the numbers decide."""
    hashes = row_hashes(rows)
    n = len(rows)
    order = torch.argsort(hashes, stable=True)  # equal hashes in ascending row order
    in_order = hashes[order]
    is_new = torch.ones(n, dtype=torch.bool, device=rows.device)
    is_new[1:] = in_order[1:] != in_order[:-1]
    first = torch.empty_like(order)
    first[order] = order[is_new][is_new.cumsum(0) - 1]  # (N,) the smallest row of equal hash
    twins = (first != torch.arange(n, device=rows.device)).nonzero()[:, 0]
    same = _equal_pairs(rows, twins, first[twins])
    first[twins[~same]] = twins[~same]  # a collision: left alone, which costs time and nothing else
    firsts, member = torch.unique(first, return_inverse=True)
    return Groups(firsts, member)


def _equal_pairs(rows: Tensor, left: Tensor, right: Tensor) -> Tensor:
    step = max(1, CHUNK_ELEMENTS[rows.device.type] // rows.shape[1])
    same = torch.empty(len(left), dtype=torch.bool, device=rows.device)
    for start in range(0, len(left), step):
        part = slice(start, start + step)
        same[part] = (rows[left[part]] == rows[right[part]]).all(1)
    return same


def _weights(n: int, device: torch.device) -> Tensor:
    """(n,) fixed odd 64-bit numbers (a Weyl sequence, mixed), the same on every device."""
    return (
        _mixed(torch.arange(1, n + 1, dtype=torch.int64, device=device) * -7046029254386353131) | 1
    )


def _mixed(x: Tensor) -> Tensor:
    """Scatter 64-bit numbers: every bit of the result hangs on many of the number's, and on no sum
    of them."""
    x = (x ^ (x >> 30)) * -4658895280553007687
    x = (x ^ (x >> 27)) * -7723592293110705685
    return x ^ (x >> 31)
