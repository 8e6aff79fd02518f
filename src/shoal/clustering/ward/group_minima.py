"""The smallest entries of a table of distances by groups of columns, for rows that are all equally far apart.

There, each merge takes away what was nearest to most of the others, and looking for their next one in whole rows would
take N³ reads. So the smallest entry of each row is kept for every group of columns: a merge changes few groups, and a
search reads the minima of a row and then one group.

M slots, G groups of W columns, R rows at work.
"""

import torch
from torch import Tensor

from shoal.clustering.ward.lists import LAST

WIDTH = 64
"""Columns of a group."""


class GroupMinima:
    """(M, G) smallest entries of `heights` (M, M) in each group of columns; `dead` (M,) is inf for those left out."""

    def __init__(self, heights: Tensor, dead: Tensor) -> None:
        self.heights = heights
        self.dead = dead
        self.minima = heights.new_empty(len(dead), -(-len(dead) // WIDTH))
        for group in range(self.minima.shape[1]):
            self._renew_group(group)

    def renew(self, kept: Tensor, gone: Tensor) -> None:
        """Look again at what a round of merges has changed: the rows of `kept`, and the columns of both."""
        for group in torch.unique(torch.cat([kept, gone]) // WIDTH).tolist():
            self._renew_group(group)
        rows = self.heights.index_select(0, kept).add_(self.dead)
        rows = torch.nn.functional.pad(
            rows, (0, self.minima.shape[1] * WIDTH - len(self.dead)), value=torch.inf
        )
        self.minima[kept] = rows.view(len(kept), -1, WIDTH).amin(2)

    def first(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest entry of each row, the lowest slot among equals: (R,) slots and values."""
        minima = self.minima.index_select(0, rows)  # (R, G)
        least = minima.amin(1)
        groups = torch.arange(minima.shape[1], device=rows.device)
        group = torch.where(minima == least[:, None], groups, LAST).amin(1)
        columns = group[:, None] * WIDTH + torch.arange(WIDTH, device=rows.device)  # (R, W)
        columns.clamp_(
            max=len(self.dead) - 1
        )  # the last group may be shorter: its last column stands for the rest
        entries = self.heights[rows[:, None], columns] + self.dead[columns]
        return torch.where(entries == least[:, None], columns, LAST).amin(1), least

    def _renew_group(self, group: int) -> None:
        columns = slice(group * WIDTH, (group + 1) * WIDTH)
        self.minima[:, group] = (self.heights[:, columns] + self.dead[columns]).amin(1)
