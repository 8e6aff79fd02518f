"""Copies of rows: which rows of a matrix are among the first few of their value.

N rows, D columns.
"""

import torch
from torch import Tensor

from shoal.clustering.sums import halving_sum

CHUNK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Numbers compared or added up at once; on the CPU few enough to stay in the cache."""


def first_copies(bank: Tensor, n_copies: int) -> Tensor:
    """The rows, ascending, that are among the first `n_copies` of their value."""
    order, first = _grouped(_row_keys(bank))
    place = torch.arange(len(order), device=order.device)
    # Different rows may share a key, so a group is thinned only if each of its rows equals its first.
    is_pure = torch.ones(len(order), dtype=torch.bool, device=order.device)
    doubtful = (first != place).nonzero()[:, 0]
    step = max(1, CHUNK_ELEMENTS[bank.device.type] // bank.shape[1])
    for start in range(0, len(doubtful), step):
        part = doubtful[start : start + step]
        differs = (bank[order[part]] != bank[order[first[part]]]).any(dim=1)
        is_pure[first[part[differs]]] = False
    keep = torch.ones_like(is_pure)
    keep[order[(place - first >= n_copies) & is_pure[first]]] = False
    return keep.nonzero()[:, 0]


def _row_keys(bank: Tensor) -> Tensor:
    """A number per row, the same for equal rows and hardly ever for others."""
    d = bank.shape[1]
    weights = torch.rand(d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(bank.device)
    step = max(1, CHUNK_ELEMENTS[bank.device.type] // d)
    blocks = [slice(start, start + step) for start in range(0, len(bank), step)]
    return torch.cat([halving_sum(bank[rows].double() * weights) for rows in blocks])


def _grouped(keys: Tensor) -> tuple[Tensor, Tensor]:
    """An order that puts equal keys side by side, lowest row first, and where each one's group begins in it."""
    order = keys.argsort(stable=True)
    begins = torch.ones_like(order, dtype=torch.bool)
    begins[1:] = keys[order][1:] != keys[order][:-1]
    return order, begins.nonzero()[:, 0][begins.cumsum(0) - 1]
