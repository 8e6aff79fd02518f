"""Rows that are very near each other, compared about a center among them.

The error of a product grows with the points' lengths (`bounds.py`), so rows a millionth apart and far from the center
of all are not told apart even in float64. About one of themselves their lengths are as small as their distances, and
the same product tells them apart. What is tied even then is measured.

M clusters, R rows of a block, C columns, k entries of a list.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.clustering.products import FLOAT64, Points
from shoal.clustering.ward.bounds import Margins, lower, product_error, weight
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import Decision, Lists, nearest_rival, settle
from shoal.clustering.workers import Workers

COLUMNS = {"cpu": 1 << 11, "cuda": 1 << 16}
"""Clusters whose points are made at once."""

ELEMENT_BYTES = 128
"""Memory for each pair of a block: its low, and what measuring it takes where everything is tied."""

NEAR = 4
"""Clusters that may be no further than this multiple of the nearest one's squared height are compared again."""

TIED_SHARE = 0.5
"""A share of all clusters that are tied for the nearest from which on comparing all pairs at once costs less."""

Accept = Callable[[Tensor, Lists, Decision], None]
"""Takes rows, their lists and their certain nearest."""


class LocalScanner:
    """Finds lists and nearest clusters of rows that products about the center of all leave open."""

    def __init__(
        self,
        geometry: Geometry,
        margins: Margins,
        is_live: Tensor,
        center: Tensor,
        k: int,
        memory: int,
        workers: Workers,
    ) -> None:
        self.geometry = geometry
        self.margins = margins
        self.center = center
        self.k = k
        self.memory = memory
        self.workers = workers
        self.dead = torch.where(is_live, 0.0, torch.inf).double()
        self.half = torch.empty_like(geometry.sizes)
        self.reach = torch.empty_like(geometry.sizes)
        self.width = COLUMNS[is_live.device.type]
        workers.map(self._measure, self._columns())

    def scan(self, rows: Tensor, accept: Accept, may_leave: bool = False) -> Tensor:
        """Find lists and nearest clusters of `rows`, all certain, and hand them to `accept` as they come.

        Rows that are as far from most clusters as from the nearest are returned, if they may be.
        """
        at_most = self.memory // (ELEMENT_BYTES * self.workers.n * len(self.dead))
        blocks = torch.split(rows, self.workers.share(len(rows), max(1, at_most)))
        first = blocks[: self.workers.n]
        rest = blocks[self.workers.n :]

        def work(block: Tensor) -> Tensor:
            lists = self._scan_rows(block, may_leave)
            if lists is None:
                return block
            accept(block, *lists)
            return block[:0]

        left = torch.cat(self.workers.map(work, first))
        return torch.cat([left, *rest] if len(left) else [left, *self.workers.map(work, rest)])

    def _scan_rows(self, rows: Tensor, may_leave: bool) -> tuple[Lists, Decision] | None:
        """Lists and nearest clusters; None where rows may be left and most clusters are tied for the nearest."""
        low, limit = self._lows(rows)
        sharpen(self.geometry, rows, low, low <= limit[:, None])
        n_best = min(self.k + 1, low.shape[1])
        best, index = low.topk(n_best, 1, largest=False)
        missing = self.k + 1 - n_best
        best = torch.nn.functional.pad(best, (0, missing), value=torch.inf)
        index = torch.cat([index, rows[:, None].expand(-1, missing)], 1)
        lists = Lists(
            index[:, : self.k].contiguous(),
            best[:, : self.k].contiguous(),
            best[:, self.k].contiguous(),
        )
        decision = settle(self.geometry, self.margins, rows, lists)
        unsure = (~decision.is_certain).nonzero()[:, 0]
        is_rival = ~self.margins.certain(decision.distance[unsure, None], low[unsure])
        if may_leave and int(is_rival.sum()) > TIED_SHARE * len(rows) * int((self.dead == 0).sum()):
            return None
        decision.put(unsure, nearest_rival(self.geometry, rows[unsure], is_rival))
        return lists, decision

    def _lows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(R, M) lows about the center of all, inf for a row itself and the dead; (R,) what may be near, in heights."""
        own = self._points(rows)
        low = own.half.new_empty(len(rows), len(self.dead))
        limit = own.half.new_full((len(rows),), torch.inf)
        for columns in self._columns():
            theirs = self._points(columns)
            sizes = self.geometry.sizes
            low[:, columns], high = pair_bounds(own, theirs, sizes[rows], sizes[columns])
            is_own = (rows >= columns.start) & (rows < columns.stop)
            high[is_own.nonzero()[:, 0], rows[is_own] - columns.start] = torch.inf
            limit = torch.minimum(limit, high.add_(self.dead[columns]).amin(1))
        low.add_(self.dead)
        return low.scatter_(1, rows[:, None], torch.inf), NEAR * limit

    def _points(self, where: Tensor | slice) -> Points:
        return Points(
            self.geometry.centroids[where] - self.center, self.half[where], self.reach[where]
        )

    def _measure(self, columns: slice) -> None:
        points = Points.of(self.geometry.centroids[columns], self.center, FLOAT64)
        self.half[columns] = points.half
        self.reach[columns] = points.reach

    def _columns(self) -> list[slice]:
        n = len(self.dead)
        return [slice(start, min(start + self.width, n)) for start in range(0, n, self.width)]


def sharpen(geometry: Geometry, rows: Tensor, low: Tensor, is_near: Tensor) -> None:
    """Raise the lows (R, M) of rows and clusters near them, (R, M) too, by products about one of the rows; in place.

    A row is taken with those that are near it. Any center gives true lows, this one good ones.
    """
    sizes = geometry.sizes
    width = COLUMNS[rows.device.type]
    left = torch.arange(len(rows), device=rows.device)
    while len(left):
        is_with = is_near[left[0], rows[left]]
        is_with[0] = True
        members = left[is_with]
        center = geometry.centroids[rows[left[0]]]
        left = left[~is_with]
        own = Points.of(geometry.centroids[rows[members]], center, FLOAT64)
        for columns in torch.split(is_near[members].any(0).nonzero()[:, 0], width):
            theirs = Points.of(geometry.centroids[columns], center, FLOAT64)
            bounds, _ = pair_bounds(own, theirs, sizes[rows[members]], sizes[columns])
            at = members[:, None], columns
            low[at] = torch.maximum(low[at], bounds)


def pair_bounds(
    own: Points, theirs: Points, sizes: Tensor, other_sizes: Tensor
) -> tuple[Tensor, Tensor]:
    """(R, C) lows of pairs by products in float64, and about how high they may be at most."""
    weights = weight(sizes[:, None], other_sizes)
    error = product_error(own.half[:, None], theirs.half, own.points.shape[1], FLOAT64)
    height = (
        (own.half[:, None] + theirs.half)
        .addmm_(own.points, theirs.points.T, alpha=-1)
        .mul_(2)
        .mul_(weights)
    )
    low = lower(height * (1 - 16 * FLOAT64.unit), weights, error, own.reach[:, None] + theirs.reach)
    return low, error.mul_(weights).add_(height)
