"""A scan: the k nearest of all live clusters for some rows, proposed by matrix products, decided
exactly.

The product of a block of rows with all points gives a height for every pair, off by at most what
`bounds.py` allows. The best k become the row's list, the next one bounds what is outside. Rows
whose winner that does not prove are scanned again with more bits, at last in float64, and where
even that cannot tell candidates apart, these are measured.

Several processes that link the same rows scan a share of them each, and all are given all lists and
nearest clusters. Every process holds all clusters and does all merges. Its lists may differ from
another's by roundings, its nearest clusters may not: they are certain, so there is one answer
(`bounds.py`). The processes agree which rows must be scanned, because that depends on the lists.

M clusters, R rows of a block, C columns of a block, k entries of a list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shoal.clustering.products import (
    ENCODE_ROWS,
    FLOAT64,
    TENSOR_BFLOAT16,
    Points,
    Precision,
)
from shoal.clustering.ward import triton_scan
from shoal.clustering.ward.bounds import ClusterExtremes, Margins, product_low, weight
from shoal.clustering.ward.exact import Geometry, move_to_front
from shoal.clustering.ward.lists import Decision, Lists, nearest_rival, settle
from shoal.clustering.workers import Scratch, Workers, matmul_precision
from shoal.distributed import any_over_processes, gather_rows, rank, world_size

WIDTH = {"cpu": 1 << 14, "cuda": 1 << 17}
"""Columns of a block at most: on the CPU their points stay in the cache while rows pass by."""

ENCODE_COLUMNS = {"cpu": 1 << 11, "cuda": 1 << 17}
"""The same where points are made on the way: each worker holds several copies of them."""

ELEMENT_BYTES = 24
"""Memory for each element of a block: values of 8 bytes, and what finding the best takes; half in
float32."""

SHARED_PRODUCTS = 1e8
"""Products of a scan that are worth being shared by processes; fewer take less time than sending
what they give."""

FUSED_ELEMENTS = 1 << 12
"""What a row of the fused scan takes, in elements of a block: its lists in every split and their
bounds."""

MEASURED_BYTES = 128
"""Memory for each pair of rows and clusters whose low is computed on its own, and what measuring it
takes."""

TIED_SHARE = 0.5
"""A share of all clusters that may be the nearest from which on a table of all distances costs
less."""

GROUP = 8
"""Columns whose maximum stands for them in the first stage of `top`; a power of two."""


Accept = Callable[[Tensor, Lists, Decision], None]
"""Takes rows, their lists and their certain nearest."""


@dataclass(slots=True)
class Proposal:
    """The best of some rows by products: (R, k+1) values and slots, and the points' measures, own
    (R,) and all (M,)."""

    value: Tensor
    index: Tensor
    own: Points
    half: Tensor
    reach: Tensor


class Scanner:
    """Scans live clusters; keeps their points in the first of `precisions` and makes the others
    when needed."""

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
        self.is_uniform = bool((geometry.sizes == geometry.sizes[0]).all())  # until the first merge

    @cached_property
    def center(self) -> Tensor:
        """(D,) what points are about."""
        return self.geometry.middle()

    @cached_property
    def points(self) -> Points:
        """Those of all clusters; made when they are first asked for, which a table of few clusters
        never does."""
        return Points.of_all(self.geometry.centroids, self.center, self.precisions[0], self.workers)

    def merge(self, kept: Tensor, gone: Tensor) -> None:
        """Renew the points of merged clusters and drop the absorbed ones."""
        self.points.renew(
            kept, self.geometry.centroids, self.center, self.precisions[0], self.workers
        )
        self.is_live[gone] = False
        self.is_uniform = False

    def keep(self, slots: Tensor) -> None:
        """Forget all but the given slots (ascending)."""
        move_to_front(self.points.points, slots, ENCODE_ROWS[slots.device.type], self.workers)
        front = slice(len(slots))
        self.points = Points(
            self.points.points[front], self.points.half[slots], self.points.reach[slots]
        )
        self.is_live = self.is_live[slots]

    def scan(self, rows: Tensor, accept: Accept, may_leave: bool = False) -> Tensor:
        """Find lists and nearest clusters of `rows`, all certain, and hand them to `accept` as they
        come.

        Returns those that are left, where any may be, because most clusters are tied for their
        nearest. Several processes that link the same rows scan a share each, where that is much,
        and are given all.
        """
        if not self.is_shared:
            return self.scan_here(rows, accept, may_leave)
        if len(rows) * self.geometry.centroids.numel() < SHARED_PRODUCTS:
            # Each for itself: another might leave others.
            return self.scan_here(rows, accept, may_leave=False)
        lists, left = share_rows(
            rows, lambda mine, keep: self.scan_here(mine, keep, may_leave), self.k
        )
        accept(*lists)
        return left

    def scan_here(self, rows: Tensor, accept: Accept, may_leave: bool) -> Tensor:
        """The same by this process alone."""
        _ = self.points  # made here, by all workers: one of them must not wait for the others
        for precision in self.precisions:
            if not len(rows):
                return rows
            rows = self._scan(rows, precision, accept)
        if not len(rows):
            return rows
        at_most = self.memory // (MEASURED_BYTES * self.workers.n * len(self.is_live))

        def work(block: Tensor) -> Tensor:
            return self._measure_block(block, accept, may_leave)

        return self._by_blocks(rows, self.workers.share(len(rows), max(1, at_most)), work)

    def _scan(self, rows: Tensor, precision: Precision, accept: Accept) -> Tensor:
        """Scan with one precision; returns the rows it leaves open.

        Rows are taken by size: those of a size have the same weights.
        """
        rows = rows[self.geometry.sizes[rows].argsort(stable=True)]
        step = self._block_rows(len(rows), precision)
        n_products = min(step, len(rows)) * self.geometry.centroids.numel()

        def work(block: Tensor) -> Tensor:
            return self._scan_block(block, precision, accept)

        with matmul_precision(precision.matmul, n_products):
            return self._by_blocks(rows, step, work)

    def _by_blocks(self, rows: Tensor, step: int, work: Callable[[Tensor], Tensor]) -> Tensor:
        """The rows that `work` leaves open. If it leaves most of the first blocks, it would most of
        all."""
        blocks = torch.split(rows, step)
        first = blocks[: self.workers.n]
        rest = blocks[self.workers.n :]
        left = torch.cat(self.workers.map(work, first))
        if rest and 2 * len(left) > sum(map(len, first)):
            return torch.cat([left, *rest])
        return torch.cat([left, *self.workers.map(work, rest)])

    def _block_rows(self, n_rows: int, precision: Precision) -> int:
        """Rows scanned at once: what the memory allows each worker, and a share for every
        worker."""
        per_row = min(self.width, len(self.is_live))
        if precision is TENSOR_BFLOAT16:
            per_row = min(per_row, FUSED_ELEMENTS)
        element_bytes = ELEMENT_BYTES * precision.value_dtype.itemsize // 8
        at_most = max(1, self.memory // (element_bytes * self.workers.n * per_row))
        n_blocks = -(-n_rows // self.workers.share(n_rows, at_most))
        # Blocks of one size, so that no worker waits for another's last.
        n_turns = -(-n_blocks // self.workers.n)
        return self.workers.share(-(-n_rows // n_turns), at_most)

    def _scan_block(self, rows: Tensor, precision: Precision, accept: Accept) -> Tensor:
        lists, is_hopeful = self._listed(rows, self._propose(rows, precision), precision)
        tried = is_hopeful.nonzero()[:, 0]
        lists = lists.take(tried)
        decision = settle(self.geometry, self.margins, rows[tried], lists)
        sure = decision.is_certain.nonzero()[:, 0]
        accept(rows[tried[sure]], lists.take(sure), decision.take(sure))
        is_open = torch.ones_like(rows, dtype=torch.bool)
        is_open[tried[sure]] = False
        return rows[is_open]

    def _measure_block(self, rows: Tensor, accept: Accept, may_leave: bool) -> Tensor:
        """Measure all clusters that products in float64 do not rule out; leaves all rows open or
        none."""
        low = self._lows(rows)
        best = self.geometry.distances(rows, low.argmin(1))
        is_rival = ~self.margins.certain(best[:, None], low)
        n_pairs = len(rows) * int(self.is_live.sum())
        if may_leave and int(is_rival.sum()) > TIED_SHARE * n_pairs:
            return rows
        decision, measured = nearest_rival(self.geometry, rows, is_rival)
        low[is_rival] = self.margins.low(measured)
        low, index = low.topk(min(self.k + 1, low.shape[1]), 1, largest=False)
        if index.shape[1] <= self.k:
            lists = self._padded(rows, index, low)
        else:
            lists = Lists(index[:, : self.k], low[:, : self.k].contiguous(), low[:, self.k])
        accept(rows, lists, decision)
        return rows[:0]

    def _lows(self, rows: Tensor) -> Tensor:
        """(R, M) lows by products in float64, inf for a row itself and the dead."""
        own = self._points(rows, FLOAT64)
        sizes = self.geometry.sizes
        low = own.half.new_empty(len(rows), len(sizes))
        width = min(self.width, ENCODE_COLUMNS[rows.device.type])
        for start in range(0, len(sizes), width):
            columns = slice(start, start + width)
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

    def _propose(self, rows: Tensor, precision: Precision) -> Proposal:
        """The k+1 best columns of each row, by the value (p·q - |p|²/2 - |q|²/2)·c/(s+c), which is
        -δ/4s."""
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
        width = (
            self.width
            if precision is self.precisions[0]
            else min(self.width, ENCODE_COLUMNS[rows.device.type])
        )
        for start in range(0, len(self.is_live), width):
            columns = slice(start, min(start + width, len(self.is_live)))
            theirs = self._points(columns, precision)
            best, at = top(
                self._values(rows, own, columns, theirs, precision), n_best, self.scratch
            )
            value = torch.cat([value, best], 1)
            index = torch.cat([index, at + start], 1)
            if start:
                value, order = value.topk(min(n_best, value.shape[1]), 1)
                index = index.gather(1, order)
            half.append(theirs.half)
            reach.append(theirs.reach)
        return Proposal(
            value / 2 if self.is_uniform else value, index, own, torch.cat(half), torch.cat(reach)
        )

    def _values(
        self, rows: Tensor, own: Points, columns: slice, theirs: Points, precision: Precision
    ) -> Tensor:
        """(R, C) values of a block, twice that if all sizes are equal; -inf for a row's own column
        and for the dead."""
        dtype = precision.value_dtype
        shape = (len(rows), len(theirs.half))
        values = self.scratch.array("values", shape, dtype)
        alive = torch.where(self.is_live[columns], -theirs.half, -torch.inf).to(dtype)
        torch.add(-own.half[:, None].to(dtype), alive, out=values)
        values.addmm_(own.points, theirs.points.T)
        # Else the weight is the same for all, and `_propose` applies it to the best.
        if not self.is_uniform:
            sizes = self.geometry.sizes[columns]
            distinct, counts = torch.unique_consecutive(
                self.geometry.sizes[rows], return_counts=True
            )
            for s, part in zip(distinct, torch.split(values, counts.tolist()), strict=True):
                part.mul_((sizes / (s + sizes)).to(dtype))
        is_own = (rows >= columns.start) & (rows < columns.stop)
        values[is_own.nonzero()[:, 0], rows[is_own] - columns.start] = -torch.inf
        return values

    def _listed(
        self, rows: Tensor, proposal: Proposal, precision: Precision
    ) -> tuple[Lists, Tensor]:
        """Lists with lows, and which rows they may settle: where the best height is below what is
        outside."""
        sizes = self.geometry.sizes
        s = sizes[rows, None]
        height = proposal.value.double() * (-4 * s)  # (R, k+1), inf: nobody
        low = product_low(
            height,
            (s, sizes[proposal.index]),
            (proposal.own.half[:, None], proposal.half[proposal.index]),
            proposal.own.reach[:, None] + proposal.reach[proposal.index],
            self.geometry.centroids.shape[1],
            precision,
        )
        if proposal.index.shape[1] <= self.k:
            return self._padded(rows, proposal.index, low), torch.ones_like(rows, dtype=torch.bool)
        extremes = ClusterExtremes.of(sizes, proposal.half, proposal.reach, self.is_live)
        n_columns = self.geometry.centroids.shape[1]
        outside = extremes.low(
            height[:, -1], sizes[rows], proposal.own.half, proposal.own.reach, n_columns, precision
        )
        return Lists(proposal.index[:, : self.k], low[:, : self.k].contiguous(), outside), height[
            :, 0
        ] < outside

    def _padded(self, rows: Tensor, index: Tensor, low: Tensor) -> Lists:
        """Lists that hold everyone, filled up with void entries."""
        missing = self.k - index.shape[1]
        index = torch.cat([index, rows[:, None].expand(-1, missing)], 1)
        low = torch.nn.functional.pad(low, (0, missing), value=torch.inf)
        return Lists(index, low, torch.full_like(low[:, 0], torch.inf))


def top(values: Tensor, k: int, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (R, C), descending, and their columns.

    The k largest lie in the k groups of the largest maxima, so only those are searched.
    """
    n_rows, n_columns = values.shape
    n_groups = n_columns // GROUP
    if n_groups < 2 * k:
        best = values.topk(min(k, n_columns), 1)
        return best.values, best.indices
    width = n_groups * GROUP // 2  # group g holds the columns g, g + n_groups, g + 2·n_groups, …
    heads = scratch.array("heads", (n_rows, width), values.dtype)
    torch.maximum(values[:, :width], values[:, width : 2 * width], out=heads)
    while width > n_groups:
        width //= 2
        torch.maximum(heads[:, :width], heads[:, width : 2 * width], out=heads[:, :width])
    groups = heads[:, :n_groups].topk(k, 1, sorted=False).indices  # (R, k)
    offsets = torch.arange(0, n_groups * GROUP, n_groups, device=values.device)
    rest = torch.arange(n_groups * GROUP, n_columns, device=values.device)
    columns = torch.cat([(groups[:, :, None] + offsets).flatten(1), rest.expand(n_rows, -1)], 1)
    best = values.gather(1, columns).topk(k, 1)
    return best.values, columns.gather(1, best.indices)


Found = tuple[Tensor, Lists, Decision]
"""Rows, their lists, and their nearest clusters."""


def share_rows(
    rows: Tensor, scan: Callable[[Tensor, Accept], Tensor], k: int
) -> tuple[Found, Tensor]:
    """Scan this process's share of `rows`; what all processes found, in every one, and the rows
    that they left."""
    parts = [torch.empty(0, 2 * k + 4, dtype=torch.int64, device=rows.device)]

    def keep(part: Tensor, lists: Lists, decision: Decision) -> None:
        parts.append(_pack(part, lists, decision))  # from several threads, in any order

    left = scan(rows[rank() :: world_size()], keep)
    return _unpack(gather_rows(torch.cat(parts)), k), gather_rows(left)


def agree_on_rows(candidates: Tensor, rows: Tensor, n_slots: int) -> Tensor:
    """The `candidates` that are among the `rows` of any process, in the same order in all; rows are
    candidates."""
    is_wanted = torch.zeros(n_slots, dtype=torch.bool, device=rows.device)
    is_wanted[rows] = True
    return candidates[any_over_processes(is_wanted[candidates])]


def _pack(rows: Tensor, lists: Lists, decision: Decision) -> Tensor:
    """(R, 2k + 4) whole numbers that hold the bits of all of it, to be sent at once."""
    # (R, k + 2)
    floats = torch.cat([lists.low, lists.outside[:, None], decision.distance[:, None]], 1)
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
