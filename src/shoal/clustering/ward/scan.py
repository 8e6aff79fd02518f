"""A scan: the k nearest live clusters of some rows, found by matrix products, verified exactly.

The product of a block of rows with all points gives a height for every pair, with an error bounded
by `bounds.py`. The best k are the row's list, and the next one bounds the clusters outside. Rows
whose nearest cluster is not proven are scanned again with more bits, finally in float64; if even
that cannot distinguish candidates, their distances are computed exactly.

Several processes that link the same rows scan a share of them each and exchange the lists and
nearest clusters. Every process holds all clusters and makes all merges. Lists may differ between
processes by rounding, but nearest clusters are proven, so they cannot (`bounds.py`). Which rows
are scanned depends on the lists, so the processes agree on them.

Shapes: M clusters, R rows per block, C columns per block, k entries per list.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.products import (
    ENCODE_ROWS,
    FLOAT64,
    TENSOR_BFLOAT16,
    Points,
    Precision,
    largest_columns,
)
from shoal.clustering.ward import triton_scan
from shoal.clustering.ward.bounds import Margins, product_low, weight
from shoal.clustering.ward.exact import Geometry, moved_to_front
from shoal.clustering.ward.lists import Decision, Lists, nearest_rival, settle
from shoal.clustering.workers import Scratch, Workers, matmul_precision
from shoal.distributed import any_over_processes, gather_rows, rank, world_size

WIDTH = {"cpu": 1 << 14, "cuda": 1 << 17}
"""Largest number of columns of a block; on the CPU their points fit into the cache."""

ENCODE_COLUMNS = {"cpu": 1 << 11, "cuda": 1 << 17}
"""Largest number of columns of a block if points are not stored: each worker makes several
copies."""

ELEMENT_BYTES = 24
"""Memory per element of a block, for values of 8 bytes and the search of the best; half in
float32."""

SHARED_PRODUCTS = 1e8
"""Products from which a scan is shared by processes; for fewer, sending results takes longer."""

FUSED_ELEMENTS = 1 << 12
"""Memory of a row of the fused scan, in elements of a block: its lists in every split and their
bounds."""

MEASURED_BYTES = 128
"""Memory per pair of a row and a cluster when single lows are computed and measured."""


Accept = Callable[[Tensor, Lists, Decision], None]
"""Takes rows, their lists and their nearest clusters."""


@dataclass(slots=True)
class Proposal:
    """The best columns of some rows by products: (R, k+1) values and slots; the rows' own points;
    half squared lengths and reach of all points, (M,) each."""

    value: Tensor
    index: Tensor
    own: Points
    half: Tensor
    reach: Tensor


class Scanner:
    """Scans more than `k` live clusters; stores their points in the first of `precisions`."""

    def __init__(
        self,
        geometry: Geometry,
        precisions: tuple[Precision, ...],
        margins: Margins,
        k: int,
        memory: int,
        workers: Workers,
        is_shared: bool = False,
    ) -> None:
        self.geometry = geometry
        self.precisions = precisions
        self.margins = margins
        self.k = k
        self.workers = workers
        self.is_shared = is_shared
        device = geometry.sizes.device
        self.width = WIDTH[device.type]
        self.memory = memory
        self.scratch = Scratch(device)
        self.is_live = torch.ones(len(geometry.sizes), dtype=torch.bool, device=device)
        self.center = geometry.middle()
        self.points = Points.of_all(geometry.centroids, self.center, precisions[0], workers)

    def use_only_float64(self) -> None:
        """Store float64 points from now on, for `nearest`."""
        self.precisions = (FLOAT64,)
        self.points = Points.of_all(self.geometry.centroids, self.center, FLOAT64, self.workers)

    def merge(self, kept: Tensor, gone: Tensor) -> None:
        """Update the points of merged clusters and drop the absorbed ones."""
        self.points.update(
            kept, self.geometry.centroids, self.center, self.precisions[0], self.workers
        )
        self.is_live[gone] = False

    def keep(self, slots: Tensor) -> None:
        """Drop all but the given slots (ascending)."""
        points = moved_to_front(self.points.points, slots, ENCODE_ROWS[slots.device.type])
        self.points = Points(points, self.points.half[slots], self.points.reach[slots])
        self.is_live = self.is_live[slots]

    def rows_of_all(self, candidates: Tensor, rows: Tensor) -> Tensor:
        """Return the `candidates` that are among the `rows` of any process, in the same order in
        all."""
        if not self.is_shared:
            return rows
        is_wanted = torch.zeros_like(self.is_live)
        is_wanted[rows] = True
        return candidates[any_over_processes(is_wanted[candidates])]

    def scan(self, rows: Tensor, accept: Accept) -> None:
        """Find the lists and nearest clusters of `rows` and pass them to `accept`, in several
        calls.

        Several processes share a scan of many products.
        """
        n_products = len(rows) * self.geometry.centroids.numel()
        if not self.is_shared or n_products < SHARED_PRODUCTS:
            self._scan_here(rows, accept)
            return
        mine = rows[rank() :: world_size()]
        place = torch.empty_like(self.is_live, dtype=torch.int64)
        place[mine] = torch.arange(len(mine), device=mine.device)
        lists = Lists.empty(mine, self.k)
        decision = Decision(mine.clone(), lists.outside.clone())

        def store(part: Tensor, found: Lists, nearest: Decision) -> None:
            lists.put(place[part], found)
            decision.put(place[part], nearest)

        self._scan_here(mine, store)
        accept(
            gather_rows(mine),
            Lists(gather_rows(lists.index), gather_rows(lists.low), gather_rows(lists.outside)),
            Decision(gather_rows(decision.nearest), gather_rows(decision.distance)),
        )

    def nearest(self, rows: Tensor) -> tuple[Decision, Tensor]:
        """Return the nearest cluster of each row, measuring all that float64 products do not rule
        out, and lows (R, M), inf for a row itself and dead slots."""
        low = self._lows(rows)
        best = self.geometry.distances(rows, low.argmin(1))
        is_rival = ~self.margins.certain(best[:, None], low)
        decision, measured = nearest_rival(self.geometry, rows, is_rival)
        low[is_rival] = self.margins.low(measured)
        return decision, low

    def rows_at_once(self) -> int:
        """Return the number of rows that a worker passes to one call of `nearest`."""
        return max(1, self.memory // (MEASURED_BYTES * self.workers.n * len(self.is_live)))

    def _scan_here(self, rows: Tensor, accept: Accept) -> None:
        for precision in self.precisions:
            if len(rows):
                rows = self._scan(rows, precision, accept)

        def work(block: Tensor) -> None:
            decision, low = self.nearest(block)
            low, index = low.topk(self.k + 1, 1, largest=False)
            accept(block, Lists.of_best(index, low, low[:, -1]), decision)

        if len(rows):
            self.workers.map_rows(work, rows, at_most=self.rows_at_once())

    def _scan(self, rows: Tensor, precision: Precision, accept: Accept) -> Tensor:
        """Scan with one precision; return the rows that it does not decide.

        Rows are sorted by size, because rows of one size have the same weights. If most rows of the
        first blocks are undecided, the other blocks are left to the next precision.
        """
        rows = rows[self.geometry.sizes[rows].argsort(stable=True)]
        step = self._block_rows(len(rows), precision)
        n_products = min(step, len(rows)) * self.geometry.centroids.numel()
        blocks = torch.split(rows, step)
        first = blocks[: self.workers.n]
        rest = blocks[self.workers.n :]

        def work(block: Tensor) -> Tensor:
            return self._scan_block(block, precision, accept)

        with matmul_precision(precision.matmul, n_products):
            left = torch.cat(self.workers.map(work, first))
            if 2 * len(left) <= sum(map(len, first)):
                rest = tuple(self.workers.map(work, rest))
        return torch.cat([left, *rest])

    def _block_rows(self, n_rows: int, precision: Precision) -> int:
        """Return the rows of a block, limited by the memory of each worker."""
        per_row = min(self.width, len(self.is_live))
        if precision is TENSOR_BFLOAT16:
            per_row = min(per_row, FUSED_ELEMENTS)
        element_bytes = ELEMENT_BYTES * precision.value_dtype.itemsize // 8
        at_most = max(1, self.memory // (element_bytes * self.workers.n * per_row))
        # Blocks of equal size, so that the workers finish together.
        n_blocks = -(-n_rows // self.workers.chunk_rows(n_rows, at_most))
        n_turns = -(-n_blocks // self.workers.n)
        return self.workers.chunk_rows(-(-n_rows // n_turns), at_most)

    def _scan_block(self, rows: Tensor, precision: Precision, accept: Accept) -> Tensor:
        lists, is_hopeful = self._listed(rows, self._propose(rows, precision), precision)
        tried = is_hopeful.nonzero()[:, 0]
        lists = lists.take(tried)
        decision, is_certain = settle(self.geometry, self.margins, rows[tried], lists)
        sure = is_certain.nonzero()[:, 0]
        accept(rows[tried[sure]], lists.take(sure), decision.take(sure))
        is_open = torch.ones_like(is_hopeful)
        is_open[tried[sure]] = False
        return rows[is_open]

    def _lows(self, rows: Tensor) -> Tensor:
        """Return lows (R, M) by float64 products, inf for a row itself and dead slots."""
        own = self._points(rows, FLOAT64)
        sizes = self.geometry.sizes
        low = own.half.new_empty(len(rows), len(sizes))
        for columns in self._column_blocks(FLOAT64):
            theirs = self._points(columns, FLOAT64)
            half = (own.half[:, None], theirs.half)
            both = (sizes[rows, None], sizes[columns])
            heights = (half[0] + half[1]).addmm_(own.points, theirs.points.T, alpha=-1)
            heights.mul_(2 * weight(*both))
            reach = own.reach[:, None] + theirs.reach
            low[:, columns] = product_low(heights, both, half, reach, own.points.shape[1], FLOAT64)
        low.masked_fill_(~self.is_live, torch.inf)
        return low.scatter_(1, rows[:, None], torch.inf)

    def _points(self, where: Tensor | slice, precision: Precision) -> Points:
        if precision is self.precisions[0]:
            return self.points.take(where)
        return Points.of(self.geometry.centroids[where], self.center, precision)

    def _column_blocks(self, precision: Precision) -> list[slice]:
        width = self.width
        if precision is not self.precisions[0]:
            width = min(width, ENCODE_COLUMNS[self.is_live.device.type])
        n = len(self.is_live)
        return [slice(start, min(start + width, n)) for start in range(0, n, width)]

    def _propose(self, rows: Tensor, precision: Precision) -> Proposal:
        """Return the k+1 best columns of each row by the value (p·q - |p|²/2 - |q|²/2)·c/(s+c),
        which is -δ/4s."""
        own = self._points(rows, precision)
        n_best = self.k + 1
        if precision is TENSOR_BFLOAT16:
            alive = self.points.half.masked_fill(~self.is_live, torch.inf)
            best, at = triton_scan.best_columns(
                rows, self.points.points, alive, self.geometry.sizes, n_best
            )
            return Proposal(best, at, own, self.points.half, self.points.reach)
        value = own.half.new_empty(len(rows), 0)
        index = rows.new_empty(len(rows), 0)
        half = []
        reach = []
        for columns in self._column_blocks(precision):
            theirs = self._points(columns, precision)
            values = self._values(rows, own, columns, theirs, precision)
            best, at = largest_columns(values, n_best, self.scratch)
            value = torch.cat([value, best], 1)
            index = torch.cat([index, at + columns.start], 1)
            if columns.start:
                value, order = value.topk(min(n_best, value.shape[1]), 1)
                index = index.gather(1, order)
            half.append(theirs.half)
            reach.append(theirs.reach)
        return Proposal(value, index, own, torch.cat(half), torch.cat(reach))

    def _values(
        self, rows: Tensor, own: Points, columns: slice, theirs: Points, precision: Precision
    ) -> Tensor:
        """Return the values (R, C) of a block, -inf for a row's own column and dead slots."""
        dtype = precision.value_dtype
        values = self.scratch.array("values", (len(rows), len(theirs.half)), dtype)
        alive = torch.where(self.is_live[columns], -theirs.half, -torch.inf).to(dtype)
        torch.add(-own.half[:, None].to(dtype), alive, out=values)
        values.addmm_(own.points, theirs.points.T)
        sizes = self.geometry.sizes[columns]
        distinct, counts = torch.unique_consecutive(self.geometry.sizes[rows], return_counts=True)
        for s, part in zip(distinct, torch.split(values, counts.tolist()), strict=True):
            part.mul_((sizes / (s + sizes)).to(dtype))
        is_own = (rows >= columns.start) & (rows < columns.stop)
        values[is_own.nonzero()[:, 0], rows[is_own] - columns.start] = -torch.inf
        return values

    def _listed(
        self, rows: Tensor, proposal: Proposal, precision: Precision
    ) -> tuple[Lists, Tensor]:
        """Return lists with lows, and which rows they may decide: where the best height is below
        the low for clusters outside."""
        sizes = self.geometry.sizes
        own = proposal.own
        n_columns = self.geometry.centroids.shape[1]
        height = proposal.value.double() * (-4 * sizes[rows, None])  # (R, k+1), inf: no cluster
        low = product_low(
            height,
            (sizes[rows, None], sizes[proposal.index]),
            (own.half[:, None], proposal.half[proposal.index]),
            own.reach[:, None] + proposal.reach[proposal.index],
            n_columns,
            precision,
        )
        outside = product_low(
            height[:, -1],
            (sizes[rows], sizes.amax()),
            (own.half, proposal.half.amax()),
            own.reach + proposal.reach.amax(),
            n_columns,
            precision,
        )
        return Lists.of_best(proposal.index, low, outside), height[:, 0] < outside
