"""A scan: the k nearest of all live clusters for some rows, proposed by matrix products, decided exactly.

The product of a block of rows with all points gives a height for every pair, off by at most what `bounds.py` allows.
The best k become the row's list, the next one bounds what is outside. A row whose winner that does not prove is scanned
again with more bits, at last in float64; where even float64 cannot tell candidates apart, all of those are measured.

M clusters, R rows of a block, C columns of a block, k entries of a list.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.ward.bounds import FLOAT64, Margins, Precision, lower, weight
from shoal.clustering.ward.exact import Geometry, move_to_front
from shoal.clustering.ward.lists import Decision, Lists, settle
from shoal.clustering.ward.points import ENCODE_ROWS, Block, MatmulPrecision, Points, top

WIDTH = {"cpu": 1 << 14, "cuda": 1 << 17}
"""Columns of a block at most: on the CPU their points stay in the cache while rows pass by."""

UNDERFLOW = 2.0**-120
"""More than one float32 product can lose to underflow or flushed denormals, entries being at most 2."""


@dataclass(slots=True)
class Proposal:
    """The best of some rows by products: (R, k+1) values and slots, and the points' measures, own (R,) and all (M,)."""

    value: Tensor
    index: Tensor
    own: Points
    half: Tensor
    reach: Tensor


class Scanner:
    """Scans live clusters; keeps their points in the first of `precisions` and makes the others when needed."""

    def __init__(
        self, geometry: Geometry, precisions: tuple[Precision, ...], margins: Margins, k: int, memory: int
    ) -> None:
        self.geometry, self.precisions, self.margins, self.k = geometry, precisions, margins, k
        device = geometry.sizes.device
        self.width = WIDTH[device.type]
        self.block = Block(memory, device)
        self.center = geometry.centroids.mean(0)
        self.is_live = torch.ones(len(geometry.sizes), dtype=torch.bool, device=device)
        self.points = Points.of_all(geometry.centroids, self.center, precisions[0])

    def merge(self, kept: Tensor, gone: Tensor) -> None:
        """Renew the points of merged clusters and drop the absorbed ones."""
        for part in torch.split(kept, ENCODE_ROWS):
            fresh = Points.of(self.geometry.centroids[part], self.center, self.precisions[0])
            self.points.points[part] = fresh.points
            self.points.half[part], self.points.reach[part] = fresh.half, fresh.reach
        self.is_live[gone] = False

    def keep(self, slots: Tensor) -> None:
        """Forget all but the given slots (ascending)."""
        move_to_front(self.points.points, slots, ENCODE_ROWS)
        front = slice(len(slots))
        self.points = Points(self.points.points[front], self.points.half[slots], self.points.reach[slots])
        self.is_live = self.is_live[slots]

    @property
    def block_rows(self) -> int:
        """Rows scanned at once."""
        return max(1, self.block.n_elements // min(self.width, len(self.is_live)))

    def scan(self, rows: Tensor, n_rounds: int, level: int = 0) -> tuple[Lists, Decision, int]:
        """Lists and certain nearest clusters of a block of rows.

        `level` says which precision to begin with; the level returned skips those that failed most of these rows.
        """
        lists, decision = _blank(rows, self.k)
        todo = torch.arange(len(rows), device=rows.device)
        for depth in range(level, len(self.precisions)):
            n_before = len(todo)
            todo = todo[~self._attempt(rows, todo, depth, lists, decision, n_rounds)]
            if 2 * len(todo) > n_before and depth == level:
                level += 1
            if not len(todo):
                break
        return lists, decision, level

    def _attempt(
        self, rows: Tensor, todo: Tensor, depth: int, lists: Lists, decision: Decision, n_rounds: int
    ) -> Tensor:
        """Scan rows[todo] with one precision; fills in what is certain and says which rows are: (len(todo),)."""
        precision = self.precisions[depth]
        found, is_hopeful = self._listed(rows[todo], self._propose(rows[todo], precision), precision)
        is_last = precision is FLOAT64
        tried = torch.arange(len(todo), device=todo.device) if is_last else is_hopeful.nonzero()[:, 0]
        found, at = found.take(tried), rows[todo[tried]]
        verdict = settle(self.geometry, self.margins, at, found, n_rounds)
        if is_last:
            self._exhaust(at, verdict, n_rounds)
        sure = verdict.is_certain.nonzero()[:, 0]
        where = todo[tried[sure]]
        lists.put(where, found.take(sure))
        decision.put(where, verdict.take(sure))
        is_done = torch.zeros(len(todo), dtype=torch.bool, device=todo.device)
        is_done[tried[sure]] = True
        return is_done

    def _points(self, where: Tensor | slice, precision: Precision) -> Points:
        if precision is self.precisions[0]:
            return self.points.take(where)
        return Points.of(self.geometry.centroids[where], self.center, precision)

    def _propose(self, rows: Tensor, precision: Precision) -> Proposal:
        """The k+1 best columns of each row, by the value (p·q - |p|²/2 - |q|²/2)·c/(s+c), which is -δ/4s."""
        own = self._points(rows, precision)
        n_best = self.k + 1
        value = index = None
        half, reach = [], []
        for start in range(0, len(self.is_live), self.width):
            columns = slice(start, min(start + self.width, len(self.is_live)))
            theirs = self._points(columns, precision)
            values = self._values(rows, own, columns, theirs, precision)
            best, at = top(values, n_best, self.block)
            at = at + start
            if value is not None and index is not None:
                best, at = torch.cat([value, best], 1), torch.cat([index, at], 1)
                best, order = best.topk(min(n_best, best.shape[1]), 1)
                at = at.gather(1, order)
            value, index = best, at
            half.append(theirs.half)
            reach.append(theirs.reach)
        assert value is not None
        assert index is not None
        return Proposal(value, index, own, torch.cat(half), torch.cat(reach))

    def _values(self, rows: Tensor, own: Points, columns: slice, theirs: Points, precision: Precision) -> Tensor:
        """(R, C) values of a block; -inf for a row's own column and for the dead."""
        dtype, shape = precision.value_dtype, (len(rows), len(theirs.half))
        values = self.block.array("values", shape, dtype)
        alive = torch.where(self.is_live[columns], -theirs.half, -torch.inf).to(dtype)
        torch.add(-own.half[:, None].to(dtype), alive, out=values)
        with MatmulPrecision(precision):
            values.addmm_(own.points, theirs.points.T)
        ratio = self.block.array("heads", shape, dtype)
        inverse = (1 / self.geometry.sizes[columns]).to(dtype)
        torch.mul(self.geometry.sizes[rows, None].to(dtype), inverse, out=ratio)
        values.div_(ratio.add_(1))
        is_own = (rows >= columns.start) & (rows < columns.stop)
        values[is_own.nonzero()[:, 0], rows[is_own] - columns.start] = -torch.inf
        return values

    def _listed(self, rows: Tensor, proposal: Proposal, precision: Precision) -> tuple[Lists, Tensor]:
        """Lists with lows, and which rows they may settle: where the best height is below what is outside."""
        sizes = self.geometry.sizes
        s = sizes[rows, None]
        height = proposal.value.double() * (-4 * s)  # (R, k+1), inf: nobody
        least = height * (1 - 16 * precision.unit)  # the weight's own roundings
        half, reach = proposal.own.half[:, None], proposal.own.reach[:, None]
        error = self._error(half, proposal.half[proposal.index], precision)
        low = lower(least, weight(s, sizes[proposal.index]), error, reach + proposal.reach[proposal.index])
        low = torch.where(torch.isinf(height), torch.inf, low)
        if proposal.index.shape[1] <= self.k:
            return self._padded(rows, proposal.index, low), torch.ones_like(height[:, 0], dtype=torch.bool)
        most = weight(s, sizes[self.is_live].max())
        error = self._error(half, proposal.half[self.is_live].max(), precision)
        outside = lower(least[:, -1:], most, error, reach + proposal.reach[self.is_live].max())
        outside = torch.where(torch.isinf(height[:, -1:]), torch.inf, outside)[:, 0]
        return Lists(proposal.index[:, : self.k], low[:, : self.k].contiguous(), outside), height[:, 0] < outside

    def _padded(self, rows: Tensor, index: Tensor, low: Tensor) -> Lists:
        """Lists that hold everyone, filled up with void entries."""
        missing = self.k - index.shape[1]
        index = torch.cat([index, rows[:, None].expand(-1, missing)], 1)
        low = torch.nn.functional.pad(low, (0, missing), value=torch.inf)
        return Lists(index, low, torch.full_like(low[:, 0], torch.inf))

    def _error(self, half: Tensor, other: Tensor, precision: Precision) -> Tensor:
        """E: how far the squared distance of two points may be off in a product of `precision`."""
        n_columns = self.geometry.centroids.shape[1]
        magnitude = 2 * (half * other).sqrt() + half + other
        return 2.0001 * precision.gamma(n_columns) * magnitude + n_columns * UNDERFLOW

    def _exhaust(self, rows: Tensor, verdict: Decision, n_rounds: int) -> None:
        """Measure, for each uncertain row, every cluster that float64 products cannot rule out."""
        sizes = self.geometry.sizes
        for at in (~verdict.is_certain).nonzero()[:, 0].tolist():
            row = rows[at : at + 1]
            own = self._points(row, FLOAT64)
            rivals = []
            for start in range(0, len(self.is_live), ENCODE_ROWS):
                columns = slice(start, min(start + ENCODE_ROWS, len(self.is_live)))
                theirs = self._points(columns, FLOAT64)
                height = self._values(row, own, columns, theirs, FLOAT64)[0] * (-4 * sizes[row])
                error = self._error(own.half, theirs.half, FLOAT64)
                least = height * (1 - 16 * FLOAT64.unit)
                low = lower(least, weight(sizes[row], sizes[columns]), error, own.reach + theirs.reach)
                is_out = torch.isinf(height) | self.margins.certain(verdict.distance[at], low, sizes[row], n_rounds)
                rivals.append((~is_out).nonzero()[:, 0] + start)
            others = torch.cat(rivals)
            distance = self.geometry.distances(row.expand(len(others)), others)
            verdict.distance[at] = distance.min()
            verdict.nearest[at] = others[distance == distance.min()].min()
        verdict.is_certain[:] = True


def _blank(rows: Tensor, k: int) -> tuple[Lists, Decision]:
    index = rows[:, None].repeat(1, k)
    low = torch.full(index.shape, torch.inf, dtype=torch.float64, device=rows.device)
    decision = Decision(rows.clone(), low[:, 0].clone(), torch.ones_like(rows, dtype=torch.bool))
    return Lists(index, low, low[:, 0].clone()), decision
