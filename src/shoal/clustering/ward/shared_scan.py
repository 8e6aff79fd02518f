"""A scan by several processes: each scans a share of the rows, and all are given all lists and nearest clusters.

Every process holds all clusters and does all merges. Its lists may differ from another's by roundings, its nearest
clusters may not: they are certain, so there is one answer (`bounds.py`). The processes agree which
rows must be scanned, because that depends on the lists.

R rows at work, k entries of a list.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.clustering.ward.lists import Decision, Lists
from shoal.clustering.ward.local_scan import Accept
from shoal.distributed import any_over_processes, gather_rows, rank, world_size

Found = tuple[Tensor, Lists, Decision]
"""Rows, their lists, and their nearest clusters."""


def share_rows(
    rows: Tensor, scan: Callable[[Tensor, Accept], Tensor], k: int
) -> tuple[Found, Tensor]:
    """Scan this process's share of `rows`; what all processes found, in every one, and the rows that they left."""
    parts = [torch.empty(0, 2 * k + 4, dtype=torch.int64, device=rows.device)]

    def keep(part: Tensor, lists: Lists, decision: Decision) -> None:
        parts.append(_pack(part, lists, decision))  # from several threads, in any order

    left = scan(rows[rank() :: world_size()], keep)
    return _unpack(gather_rows(torch.cat(parts)), k), gather_rows(left)


def agree_on_rows(candidates: Tensor, rows: Tensor, n_slots: int) -> Tensor:
    """The `candidates` that are among the `rows` of any process, in the same order in all; rows are candidates."""
    is_wanted = torch.zeros(n_slots, dtype=torch.bool, device=rows.device)
    is_wanted[rows] = True
    return candidates[any_over_processes(is_wanted[candidates])]


def _pack(rows: Tensor, lists: Lists, decision: Decision) -> Tensor:
    """(R, 2k + 4) whole numbers that hold the bits of all of it, to be sent at once."""
    floats = torch.cat(
        [lists.low, lists.outside[:, None], decision.distance[:, None]], 1
    )  # (R, k + 2)
    return torch.cat(
        [rows[:, None], decision.nearest[:, None], lists.index, floats.view(torch.int64)], 1
    )


def _unpack(packed: Tensor, k: int) -> Found:
    rows = packed[:, 0]
    nearest = packed[:, 1]
    index = packed[:, 2 : k + 2]
    floats = packed[:, k + 2 :].contiguous().view(torch.float64)
    lists = Lists(index, floats[:, :k], floats[:, k])
    return rows, lists, Decision(nearest, floats[:, k + 1], torch.ones_like(rows, dtype=torch.bool))
