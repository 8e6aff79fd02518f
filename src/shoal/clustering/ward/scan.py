"""A scan: the k nearest live clusters of some rows, found by matrix products, verified exactly.

The product of a block of rows with all points gives a height for every pair, with an error bounded
by `bounds.py`. The best k are the row's list, and the next one bounds the clusters outside. Rows
whose nearest cluster is not proven are scanned again with more bits, finally in float64; if even
that cannot distinguish candidates, their distances are computed exactly.

Shapes: M clusters, R rows per block, C columns per block, k entries per list.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.products import (
    ENCODE_ROWS,
    FLOAT64,
    TENSOR_BFLOAT16,
    Points,
    Precision,
    Scratch,
    Workers,
    largest_columns,
    matmul_precision,
)
from shoal.clustering.ward import triton_scan
from shoal.clustering.ward.bounds import Margins, product_low, weight
from shoal.clustering.ward.exact import Geometry, moved_to_front
from shoal.clustering.ward.lists import Decision, Lists, settle

# Largest number of columns of a block; on the CPU their points fit into the cache
WIDTH = {"cpu": 1 << 14, "cuda": 1 << 17}

# Largest number of columns of a block if points are not stored: each worker makes several copies
ENCODE_COLUMNS = {"cpu": 1 << 11, "cuda": 1 << 17}

# Memory per element of a block, for values of 8 bytes and the search of the best; half in float32
ELEMENT_BYTES = 24

# Memory of a row of the fused scan, in elements of a block: its lists in every split and their
# bounds
FUSED_ELEMENTS = 1 << 12

# Memory per pair of a row and a cluster when single lows are computed and measured
MEASURED_BYTES = 128

# Sample size of the median of the centroids
N_MIDDLE = 255

# Clusters up to which comparing all of them in float64 costs less than lists
FEW = {"cpu": 400, "cuda": 2048}

# Largest number of rows whose lists are updated together
CHUNK_ROWS = {"cpu": 1 << 10, "cuda": 1 << 16}


@dataclass
class Clusters:
    """The clusters, the nearest of each and, unless they are few, its list; `points` are the
    centroids in the first of `precisions`, `nodes` (M,) their nodes in the tree, `floors` (M,) lows
    for all other clusters, from the distance of the nearest."""

    geometry: Geometry
    nodes: Tensor
    precisions: tuple[Precision, ...]
    margins: Margins
    lists: Lists
    memory: int
    workers: Workers

    def __post_init__(self) -> None:
        geometry = self.geometry
        # D at which each cluster was made
        self.heights = torch.zeros_like(geometry.sizes)
        self.n_live = len(geometry.sizes)
        self.k = self.lists.index.shape[1]
        device = geometry.sizes.device
        self.chunk_rows = CHUNK_ROWS[device.type]
        self.scratch = Scratch(device)
        self.is_live = torch.ones_like(geometry.sizes, dtype=torch.bool)
        self.floors = torch.zeros_like(geometry.sizes)
        slots = torch.arange(self.n_live, device=device)
        self.decision = Decision(slots, self.floors.clone())
        every = max(1, self.n_live // N_MIDDLE)
        # A point amid the centroids that outliers do not move.
        self.center = geometry.centroids[::every].median(0).values
        self._store_points()

    def _store_points(self) -> None:
        self.points = Points.of_all(
            self.geometry.centroids, self.center, self.precisions[0], self.workers
        )

    @property
    def are_few(self) -> bool:
        """Whether clusters are compared with all others, without lists."""
        return self.n_live <= max(FEW[self.is_live.device.type], self.k + 1)

    def merge(self, kept: Tensor, gone: Tensor) -> None:
        """Merge clusters, without their lists and nearest."""
        self.workers.map_rows(self.geometry.merge, kept, gone, at_most=self.geometry.step)
        self.points.update(
            kept, self.geometry.centroids, self.center, self.precisions[0], self.workers
        )
        self.is_live[gone] = False
        self.n_live -= len(gone)

    def close_gaps(self) -> Tensor:
        """Renumber the live slots without gaps, in order; return the new number of every slot."""
        live = self.is_live.nonzero()[:, 0]
        # Slot 0 is always live, so that a dead slot has the number of a live one, never -1.
        number = self.is_live.cumsum(0) - 1
        self.geometry.keep(live)
        points = moved_to_front(self.points.points, live, ENCODE_ROWS[live.device.type])
        self.points = Points(points, self.points.half[live], self.points.reach[live])
        self.is_live = self.is_live[live]
        decision = self.decision.take(live)
        self.decision = Decision(number[decision.nearest], decision.distance)
        lists = self.lists.take(live)
        self.lists = Lists(number[lists.index], lists.low, lists.outside)
        self.floors = self.floors[live]
        self.nodes = self.nodes[live]
        self.heights = self.heights[live]
        return number

    def find(self, rows: Tensor) -> None:
        """Find the nearest of some clusters, from their lists if these prove it."""
        if not self.are_few:
            unproven = self.workers.map_rows(
                lambda part: self._settle(part, self.lists.take(part)),
                rows,
                at_most=self.chunk_rows,
            )
            self._scan(torch.cat(unproven))
            return
        if self.precisions[0] is not FLOAT64:
            self.precisions = (FLOAT64,)
            self._store_points()
        self.workers.map_rows(
            lambda part: self.decision.put(part, self._nearest(part)[0]),
            rows,
            at_most=self._rows_at_once(),
        )

    def _accept(self, rows: Tensor, lists: Lists, decision: Decision) -> None:
        self.lists.put(rows, lists)
        self.decision.put(rows, decision)
        self.floors[rows] = self.margins.low(decision.distance)

    def _settle(self, rows: Tensor, lists: Lists) -> Tensor:
        """Accept the nearest clusters that the lists prove; return the other rows."""
        decision, is_certain = settle(self.geometry, self.margins, rows, lists)
        sure = is_certain.nonzero()[:, 0]
        self._accept(rows[sure], lists.take(sure), decision.take(sure))
        return rows[~is_certain]

    def _scan(self, rows: Tensor) -> None:
        for precision in self.precisions:
            if len(rows):
                rows = self._undecided(rows, precision)

        def work(block: Tensor) -> None:
            decision, low = self._nearest(block)
            slots = torch.arange(low.shape[1], device=low.device)
            self._accept(block, Lists.of_lowest(slots.expand_as(low), low, self.k), decision)

        if len(rows):
            self.workers.map_rows(work, rows, at_most=self._rows_at_once())

    def _undecided(self, rows: Tensor, precision: Precision) -> Tensor:
        """Scan with one precision; return the rows that it does not decide.

        Rows are sorted by size, because rows of one size have the same weights. If most rows of the
        first blocks are undecided, the other blocks are left to the next precision.
        """
        rows = rows[self.geometry.sizes[rows].argsort(stable=True)]
        step = self._block_rows(len(rows), precision)
        blocks = torch.split(rows, step)
        first = blocks[: self.workers.n]
        rest = blocks[self.workers.n :]

        def work(block: Tensor) -> Tensor:
            return self._settle(block, self._listed(block, precision))

        with matmul_precision(precision.matmul, len(first[0]) * self.geometry.centroids.numel()):
            left = torch.cat(self.workers.map(work, first))
            if 2 * len(left) <= sum(map(len, first)):
                rest = tuple(self.workers.map(work, rest))
        return torch.cat([left, *rest])

    def _block_rows(self, n_rows: int, precision: Precision) -> int:
        """Return the rows of a block, limited by the memory of each worker."""
        per_row = min(WIDTH[self.is_live.device.type], len(self.is_live))
        if precision is TENSOR_BFLOAT16:
            per_row = min(per_row, FUSED_ELEMENTS)
        row_bytes = per_row * ELEMENT_BYTES * precision.value_dtype.itemsize // 8
        return self.workers.chunk_rows(n_rows, max(1, self.memory // (row_bytes * self.workers.n)))

    def _rows_at_once(self) -> int:
        """Return the number of rows that a worker passes to one call of `_nearest`."""
        return max(1, self.memory // (MEASURED_BYTES * self.workers.n * len(self.is_live)))

    def _nearest(self, rows: Tensor) -> tuple[Decision, Tensor]:
        """Return the nearest cluster of each row, ties to the lowest slot, measuring all that
        float64 products do not rule out, and lows (R, M), inf for a row itself and dead slots."""
        low = self._lows(rows)
        best = self.geometry.distances(rows, low.argmin(1))
        is_rival = best[:, None] >= self.margins.bar(low)
        row, other = is_rival.nonzero(as_tuple=True)
        measured = torch.full_like(low, torch.inf)
        measured[row, other] = self.geometry.distances(rows[row], other)
        distance, nearest = measured.min(1)  # of equal ones the first
        torch.where(is_rival, self.margins.low(measured), low, out=low)
        return Decision(nearest, distance), low

    def _lows(self, rows: Tensor) -> Tensor:
        """Return lows (R, M) by float64 products, inf for a row itself and dead slots."""
        row_points = self._points(rows, FLOAT64)
        sizes = self.geometry.sizes
        own_sizes = sizes[rows]
        low = row_points.half.new_empty(len(rows), len(sizes))
        for columns in self._column_blocks(FLOAT64):
            theirs = self._points(columns, FLOAT64)
            heights = (row_points.half[:, None] + theirs.half).addmm_(
                row_points.points, theirs.points.T, alpha=-1
            )
            heights.mul_(2 * weight(own_sizes[:, None], sizes[columns]))
            low[:, columns] = product_low(
                heights, row_points, own_sizes, theirs.half, theirs.reach, sizes[columns], FLOAT64
            )
        low.masked_fill_(~self.is_live, torch.inf)
        return low.scatter_(1, rows[:, None], torch.inf)

    def _points(self, where: Tensor | slice, precision: Precision) -> Points:
        if precision is self.precisions[0]:
            return self.points.take(where)
        return Points.of(self.geometry.centroids[where], self.center, precision)

    def _column_blocks(self, precision: Precision) -> list[slice]:
        device_type = self.is_live.device.type
        n = len(self.is_live)
        width = WIDTH[device_type]
        if precision is TENSOR_BFLOAT16:
            width = n
        elif precision is not self.precisions[0]:
            width = min(width, ENCODE_COLUMNS[device_type])
        return [slice(start, min(start + width, n)) for start in range(0, n, width)]

    def _listed(self, rows: Tensor, precision: Precision) -> Lists:
        """Return lists of rows by products of one precision."""
        row_points = self._points(rows, precision)
        parts = [
            self._listed_in_block(rows, row_points, columns, precision)
            for columns in self._column_blocks(precision)
        ]
        lists = Lists.of_lowest(
            torch.cat([part.index for part in parts], 1),
            torch.cat([part.low for part in parts], 1),
            self.k,
        )
        outside = torch.stack([lists.outside, *(part.outside for part in parts)]).amin(0)
        return Lists(lists.index, lists.low, outside)

    def _listed_in_block(
        self, rows: Tensor, row_points: Points, columns: slice, precision: Precision
    ) -> Lists:
        """Return lists of the k + 1 best columns of each row in a block, by the value
        (p·q - |p|²/2 - |q|²/2)·c/(s+c), which is -δ/4s."""
        theirs = self._points(columns, precision)
        sizes = self.geometry.sizes[columns]
        own_sizes = self.geometry.sizes[rows]
        if precision is TENSOR_BFLOAT16:
            half = theirs.half.masked_fill(~self.is_live, torch.inf)
            value, index = triton_scan.best_columns(rows, theirs.points, half, sizes, self.k + 1)
        else:
            values = self._values(rows, row_points, columns, theirs, precision)
            value, index = largest_columns(values, self.k + 1)
        height = value.double() * (-4 * own_sizes[:, None])  # inf: no cluster
        low = product_low(
            height,
            row_points,
            own_sizes,
            theirs.half[index],
            theirs.reach[index],
            sizes[index],
            precision,
        )
        outside = product_low(
            height[:, -1:],
            row_points,
            own_sizes,
            theirs.half.amax(),
            theirs.reach.amax(),
            sizes.amax(),
            precision,
        )
        return Lists(index + columns.start, low, outside[:, 0])

    def _values(
        self, rows: Tensor, row_points: Points, columns: slice, theirs: Points, precision: Precision
    ) -> Tensor:
        """Return the values (R, C) of a block, -inf for a row's own column and dead slots."""
        dtype = precision.value_dtype
        values = self.scratch.array("values", (len(rows), len(theirs.half)), dtype)
        alive = torch.where(self.is_live[columns], -theirs.half, -torch.inf).to(dtype)
        torch.add(-row_points.half[:, None].to(dtype), alive, out=values)
        values.addmm_(row_points.points, theirs.points.T)
        sizes = self.geometry.sizes[columns]
        distinct, counts = torch.unique_consecutive(self.geometry.sizes[rows], return_counts=True)
        for s, part in zip(distinct, torch.split(values, counts.tolist()), strict=True):
            part.mul_((sizes / (s + sizes)).to(dtype))
        is_own = (rows >= columns.start) & (rows < columns.stop)
        values[is_own.nonzero()[:, 0], rows[is_own] - columns.start] = -torch.inf
        return values
