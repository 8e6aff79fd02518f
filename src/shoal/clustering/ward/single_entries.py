"""Rows with one entry that is not zero, one-hot rows for example: their distances without going over all columns.

A distance is a sum along a halving tree (`sums.py`). Against a row of one entry all squares but one are
those of the other cluster alone, whose tree is summed up once; what differs is the way from that entry to the root. The
additions are the same, so the bits are.

M clusters, D columns, S of the clusters with one entry.
"""

import torch
from torch import Tensor

ROWS = 256
"""Rows whose entries are looked at at once."""

MOST = 0.5
"""A share of all rows with one entry from which on looking for them pays."""


class SingleEntries:
    """Which clusters have one entry, its column and value, (M,) each; what it is added to on each level of the tree."""

    def __init__(self, centroids: Tensor) -> None:
        self.column = torch.zeros(len(centroids), dtype=torch.int64, device=centroids.device)
        self.is_single = torch.zeros_like(self.column, dtype=torch.bool)
        for start in range(0, len(centroids), ROWS):
            is_entry = centroids[start : start + ROWS] != 0
            self.is_single[start : start + ROWS] = is_entry.sum(1) == 1
            self.column[start : start + ROWS] = is_entry.to(torch.uint8).argmax(1)
        self.value = centroids.gather(1, self.column[:, None])[:, 0]
        self.steps = _steps(self.column, centroids.shape[1])

    @property
    def are_many(self) -> bool:
        """Whether most clusters have one entry."""
        return int(self.is_single.sum()) > MOST * len(self.column)

    def merge(self, kept: Tensor) -> None:
        """Take the unions of clusters for what has several entries."""
        self.is_single[kept] = False

    def keep(self, slots: Tensor) -> None:
        """Forget all but the given slots."""
        self.column = self.column[slots]
        self.value = self.value[slots]
        self.is_single = self.is_single[slots]
        self.steps = [
            (beside[slots], None if last is None else last[slots]) for beside, last in self.steps
        ]

    def squares(self, point: Tensor, columns: slice) -> Tensor:
        """(C,) squared distances of a point (D,) and the clusters of a slice, true of those that have one entry."""
        tree = point.square()
        squares = (point[self.column[columns]] - self.value[columns]).square_()
        for beside, last in self.steps:
            half = len(tree) // 2
            folded = tree[:half] + tree[half : 2 * half]
            if last is None:
                squares += tree[beside[columns]]
            else:
                whole = torch.cat([tree, folded[:1], tree.new_zeros(1)])
                squares = (squares + whole[beside[columns]]) + whole[last[columns]]
                folded[0] += tree[-1]
            tree = folded
        return squares


def _steps(at: Tensor, width: int) -> list[tuple[Tensor, Tensor | None]]:
    """What an entry, or the sum that it has become, is added to on each level: two positions, one where it is even.

    An odd level adds its last term to the sum of the first two: behind its terms stand that sum, and zero.
    """
    steps: list[tuple[Tensor, Tensor | None]] = []
    while width > 1:
        half = width // 2
        is_last = at == width - 1
        parent = torch.where(at < half, at, at - half)
        beside = torch.where(at < half, at + half, at - half)
        last = None
        if width % 2:
            parent = parent.masked_fill(is_last, 0)
            beside = beside.masked_fill(is_last, width)
            last = torch.where(is_last | (parent != 0), width + 1, width - 1)
        steps.append((beside, last))
        at = parent
        width = half
    return steps
