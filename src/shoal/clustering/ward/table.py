"""Few clusters: a table of all their heights, kept up to date through merges, instead of lists and scans.

An entry is computed in float64 by a matrix product and stays true until one of its two clusters merges. As in a scan
(`bounds.py`) it only proposes: the nearest is certain when its directly computed D is below the low of the second entry
of its row, and where it is not, every cluster that the entries do not rule out is measured. So the tree is the one that
lists and scans give, bit for bit.

M slots, of which some are dead until they are renumbered; R rows at work.
"""

import torch
from torch import Tensor

from shoal.clustering.ward.bounds import FLOAT64, Margins, lower, weight
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import LAST, Decision
from shoal.clustering.ward.points import Points
from shoal.clustering.ward.workers import Workers

TABLE_BYTES = 32
"""Memory per pair of clusters: the table and what building it takes."""

CHUNK_ROWS = {"cpu": 1 << 8, "cuda": 1 << 18}
"""Rows of the table at work at once, for each worker."""


class Table:
    """Heights of all pairs of live clusters: (M, M), inf on the diagonal and for the dead."""

    def __init__(self, geometry: Geometry, margins: Margins, workers: Workers) -> None:
        self.geometry, self.margins, self.workers = geometry, margins, workers
        self.center = geometry.centroids.mean(0)
        self.points = Points.of(geometry.centroids, self.center, FLOAT64)
        self.is_live = torch.ones(len(geometry.sizes), dtype=torch.bool, device=geometry.sizes.device)
        self.heights = self._all_heights(torch.arange(len(self.is_live), device=self.is_live.device))

    def merge(self, kept: Tensor, gone: Tensor) -> None:
        """Compute the rows of merged clusters anew and drop the absorbed ones."""
        self.is_live[gone] = False
        self.heights[gone] = torch.inf
        self.heights[:, gone] = torch.inf
        fresh = Points.of(self.geometry.centroids[kept], self.center, FLOAT64)
        self.points.points[kept], self.points.half[kept], self.points.reach[kept] = (
            fresh.points,
            fresh.half,
            fresh.reach,
        )
        rows = self._all_heights(kept)  # (R, M)
        self.heights[kept] = rows
        self.heights[:, kept] = rows.T

    def keep(self, slots: Tensor) -> None:
        """Forget all but the given slots (ascending)."""
        self.heights = self.heights[slots][:, slots]
        self.points, self.is_live = self.points.take(slots), self.is_live[slots]

    def nearest(self, rows: Tensor) -> Decision:
        """The certain nearest cluster of each row, the lowest slot among equals."""
        parts = self.workers.map(self._nearest, self._chunks(rows))
        return Decision(*(torch.cat([getattr(part, name) for part in parts]) for name in Decision.__slots__))

    def _nearest(self, rows: Tensor) -> Decision:
        two = self.heights[rows].topk(2, 1, largest=False)
        first = two.indices[:, 0]
        distance = self.geometry.distances(rows, first)
        is_certain = self.margins.certain(distance, self._low_of_rest(rows, two.values[:, 1]), self._sizes(rows), 0)
        decision = Decision(first, distance, torch.ones_like(is_certain))
        unsure = (~is_certain).nonzero()[:, 0]
        if len(unsure):
            decision.put(unsure, self._compare(rows[unsure], distance[unsure]))
        return decision

    def _chunks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, CHUNK_ROWS[rows.device.type])

    def _all_heights(self, rows: Tensor) -> Tensor:
        return torch.cat(self.workers.map(self._heights, self._chunks(rows)))

    def _heights(self, rows: Tensor) -> Tensor:
        """(R, M) heights of some rows with everyone: 2·weight·(|p|²/2 + |q|²/2 - p·q)."""
        half = self.points.half
        found = torch.addmm(half[rows, None] + half, self.points.points[rows], self.points.points.T, alpha=-1)
        found.mul_(weight(self.geometry.sizes[rows, None], self.geometry.sizes)).mul_(2)
        found[:, ~self.is_live] = torch.inf
        found[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        return found

    def _low_of_rest(self, rows: Tensor, second: Tensor) -> Tensor:
        """(R,) a low of everyone but the first: the largest weight, error and reach serve for all."""
        half, reach = self.points.half[self.is_live].max(), self.points.reach[self.is_live].max()
        return self._low(rows, second, self.geometry.sizes[self.is_live].max(), half, reach)

    def _low(self, rows: Tensor, height: Tensor, sizes: Tensor, half: Tensor, reach: Tensor) -> Tensor:
        shape = (len(rows),) + (1,) * (height.ndim - 1)
        own_half, own_reach = self.points.half[rows].view(shape), self.points.reach[rows].view(shape)
        magnitude = 2 * (own_half * half).sqrt() + own_half + half
        error = 2.0001 * FLOAT64.gamma(self.geometry.centroids.shape[1]) * magnitude
        least = height * (1 - 16 * FLOAT64.unit)
        low = lower(least, weight(self._sizes(rows).view(shape), sizes), error, own_reach + reach)
        return torch.where(torch.isinf(height), torch.inf, low)

    def _compare(self, rows: Tensor, distance: Tensor) -> Decision:
        """Measure, for each row, every cluster whose entry does not put it beyond `distance`."""
        low = self._low(rows, self.heights[rows], self.geometry.sizes, self.points.half, self.points.reach)  # (R, M)
        is_out = self.margins.certain(distance[:, None], low, self._sizes(rows)[:, None], 0)
        row, other = (~is_out).nonzero(as_tuple=True)
        measured = self.geometry.distances(rows[row], other)
        least = torch.full_like(distance, torch.inf).scatter_reduce(0, row, measured, "amin")
        ties = torch.where(measured == least[row], other, LAST)
        nearest = torch.full_like(rows, LAST).scatter_reduce(0, row, ties, "amin")
        return Decision(nearest, least, torch.ones_like(rows, dtype=torch.bool))

    def _sizes(self, rows: Tensor) -> Tensor:
        return self.geometry.sizes[rows]
