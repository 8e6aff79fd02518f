"""Nearest clusters of few: a table of the squared distances of all centroids, kept up to date through merges.

The table is made by a matrix product and carried through merges by Lance and Williams' formula for centroids,

    S(A+B, C) = (a·S(A,C) + b·S(B,C))/(a+b) - ab/(a+b)²·S(A,B),

where S(A,B) is taken from the directly computed D. The first two terms average the errors of S(A,C) and S(B,C), so an
entry is off by what the product was, plus what a round adds: by no more than E. Weighted, S - E and S + E are a
low and a high of δ (`bounds.py`). The nearest is certain when its high is below the low of everyone else, and where
that does not show, every cluster that its low does not rule out is measured. So the tree is the one that lists and
scans give, bit for bit.

Of each row a few smallest entries are remembered, and a low of the others, which outlives merges; while the nearest is
among them the row need not be looked through again.

M slots, of which some are dead until they are renumbered; R rows at work; k entries remembered.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.ward.bounds import FLOAT32, FLOAT64, Margins, Precision, weight
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import LAST, Decision, Pairs
from shoal.clustering.ward.points import ENCODE_ROWS, UNDERFLOW, MatmulPrecision, Points, top
from shoal.clustering.ward.search import Accept
from shoal.clustering.ward.workers import Scratch, Workers

FEW = {"cpu": 1 << 11, "cuda": 1 << 16}
"""Clusters in a table at most: with more, lists and scans cost less."""

SHARE = 0.8
"""Of the memory, what the table itself may take; the rest is for the rows at work."""

CHUNK_ROWS = {"cpu": 1 << 6, "cuda": 1 << 11}
"""Rows of the table at work at once, for each worker."""

BUILD_ROWS = {"cpu": 1 << 8, "cuda": 1 << 11}
"""Rows of a product: more, since it makes up for them."""

MIRROR_ROWS = {"cpu": 1 << 8, "cuda": 1 << 16}
"""Rows whose columns are written at once."""

MIRRORED_ROWS = {"cpu": 1 << 10, "cuda": 1 << 11}
"""Rows copied into columns at once."""

SETTLE_ROWS = {"cpu": 1 << 11, "cuda": 1 << 18}
"""Rows whose remembered entries are looked at at once."""

N_REMEMBERED = 7
"""Smallest entries of a row that are remembered."""

N_PROBED = 32
"""Clusters whose nearest is looked at to choose a precision."""

SHARP = 200
"""A precision will do if most nearest clusters are so many times farther than its error: neighbors differ by 1 %."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many clusters there is room for in a table of either precision."""

    float32: int
    float64: int

    @classmethod
    def of(cls, memory: int, device: torch.device) -> "Room":
        """From the bytes that a block may take."""
        most = FEW[device.type]
        return cls(*(min(most, math.isqrt(int(SHARE * memory) // n_bytes)) for n_bytes in (4, 8)))


def sharp_precision(geometry: Geometry, live: Tensor) -> Precision:
    """float32 where its error leaves most nearest clusters apart, judged by a few rows; else float64."""
    rows = live[:: max(1, len(live) // N_PROBED)]
    centroids = geometry.centroids
    half = torch.linalg.vector_norm(centroids, dim=1).square() / 2
    squared = 2 * (half[rows, None] + half - centroids[rows] @ centroids.T)
    squared[torch.arange(len(rows), device=rows.device), rows] = torch.inf
    nearest = squared[:, live].amin(1)
    is_sharp = nearest.median() > SHARP * _error_of_products(half[live].max(), 0.0, centroids.shape[1], FLOAT32)
    return FLOAT32 if bool(is_sharp) else FLOAT64


class Table:
    """Squared distances of the centroids of all pairs: (M, M); columns of the dead and the diagonal mean nothing."""

    def __init__(self, geometry: Geometry, margins: Margins, workers: Workers, precision: Precision) -> None:
        self.geometry, self.margins, self.workers = geometry, margins, workers
        self.unit, self.dtype = precision.unit, precision.value_dtype
        self.scratch = Scratch(geometry.sizes.device)
        self.is_live = torch.ones_like(geometry.sizes, dtype=torch.bool)
        n = len(self.is_live)
        self.squared = geometry.sizes.new_empty(n, n, dtype=self.dtype)
        self.index = torch.zeros(n, N_REMEMBERED, dtype=torch.int64, device=self.is_live.device)
        self.outside = torch.zeros_like(geometry.sizes)
        self.lows = torch.zeros_like(geometry.sizes)
        self.n_rounds = 0
        self._fill(precision)

    def floor(self) -> Tensor:
        """(M,) a low of each cluster's distance to every other."""
        return self.lows

    def nearest(self, rows: Tensor, limit: float, n_rounds: int, accept: Accept) -> None:
        """Find the nearest cluster of each row, the smallest key among equals, or that it has none within the limit.

        D is computed only where it decides; elsewhere the distance is nan.
        """

        rows = self._settle(rows, limit, accept)
        if not len(rows):
            return
        self.workers.map(self._look_through, torch.split(rows, CHUNK_ROWS[rows.device.type]))
        rows = self._settle(rows, limit, accept)
        if not len(rows):
            return
        self.workers.map(
            lambda part: accept(part, self._measured(part)), torch.split(rows, CHUNK_ROWS[rows.device.type])
        )

    def _settle(self, rows: Tensor, limit: float, accept: Accept) -> Tensor:
        """Accept what the entries remembered make certain; returns the other rows."""

        def work(part: Tensor) -> Tensor:
            decision = self._remembered(part, limit)
            sure = decision.is_certain.nonzero()[:, 0]
            accept(part[sure], decision.take(sure))
            return part[~decision.is_certain]

        return torch.cat([rows[:0], *self.workers.map(work, torch.split(rows, SETTLE_ROWS[rows.device.type]))])

    def merge(self, pairs: Pairs) -> None:
        """Carry the table through a round of merges."""
        step = CHUNK_ROWS[pairs.kept.device.type]
        parts = [pairs.take(slice(start, start + step)) for start in range(0, len(pairs.kept), step)]
        self.workers.map(self._merge_rows, parts)
        self.workers.map(lambda part: self._merge_columns(part, pairs), parts)
        for part in torch.split(pairs.kept, MIRRORED_ROWS[pairs.kept.device.type]):
            self._mirror(part)
        heir = torch.arange(len(self.is_live), device=self.is_live.device)
        heir[pairs.gone] = pairs.kept
        self.index = heir[self.index]
        self.is_live[pairs.gone] = False
        self.lows[pairs.kept] = self.outside[pairs.kept] = 0
        self.n_rounds += 1
        self.error += self.error_of_round

    def keep(self, slots: Tensor, number: Tensor) -> None:
        """Forget all but the given slots (ascending); in place, a chunk at a time: nothing unread is overwritten."""
        n, step = len(slots), CHUNK_ROWS[slots.device.type]
        storage, old = self.squared.view(-1), self.squared
        for start in range(0, n, step):
            part = slots[start : start + step]
            whole = self.scratch.array("values", (len(part), old.shape[1]), self.dtype)
            torch.index_select(old, 0, part, out=whole)
            torch.index_select(whole, 1, slots, out=storage[start * n : (start + len(part)) * n].view(-1, n))
        self.squared = storage[: n * n].view(n, n)
        self.index = number[self.index[slots]]
        self.is_live, self.lows, self.outside = self.is_live[slots], self.lows[slots], self.outside[slots]

    def _fill(self, precision: Precision) -> None:
        """Compute all entries, those above the diagonal by products, and what they may be off by."""
        geometry, n = self.geometry, len(self.squared)
        center = geometry.centroids.mean(0)
        points = Points.blank(geometry.centroids, precision)
        kind = geometry.sizes.device.type

        def encode(start: int) -> None:
            part = slice(start, start + ENCODE_ROWS[kind])
            points.put(part, Points.of(geometry.centroids[part], center, precision))

        def multiply(start: int) -> None:
            part, rest = slice(start, start + BUILD_ROWS[kind]), slice(start, n)
            half = points.half.to(self.dtype)
            block = torch.addmm(half[part, None] + half[rest], points.points[part], points.points[rest].T, alpha=-1)
            self.squared[part, rest] = block.mul_(2)
            self.squared[rest, part] = block.T

        self.workers.map(encode, range(0, n, ENCODE_ROWS[kind]))
        with MatmulPrecision(precision):
            self.workers.map(multiply, range(0, n, BUILD_ROWS[kind]))
        longest = points.half.max()
        self.error = float(_error_of_products(longest, points.reach.max(), geometry.centroids.shape[1], precision))
        self.error_of_round = self._error_of_round(float(longest), precision)

    def _error_of_round(self, half: float, precision: Precision) -> float:
        """What a round may add to E: two steps of the formula, and centroids that rounding moves by κ.

        A step has eight roundings at most, each of a number no larger than the squared diameter, and a quarter of a D
        that is off by a factor of 1 ± η.
        """
        diameter = 2 * math.sqrt(2 * half)
        steps = 2 * (8 * precision.unit + self.margins.eta / 4) * 1.01 * diameter**2
        return steps + 2.02 * diameter * self.margins.kappa + self.margins.kappa**2

    def _remembered(self, rows: Tensor, limit: float) -> Decision:
        """The nearest of the entries remembered, and whether that is certain; renews the rows' lows."""
        index, sizes = self.index[rows], self.geometry.sizes[rows]  # (R, k)
        squared = self.squared[rows[:, None], index].double()
        weights = weight(sizes[:, None], self.geometry.sizes[index])
        is_void = (index == rows[:, None]) | ~self.is_live[index]
        low = (weights * (squared - self.error)).clamp_(min=0).masked_fill_(is_void, torch.inf)
        least, lead = low.min(1)
        nearest = index.gather(1, lead[:, None])  # (R, 1)
        rest = torch.minimum(low.masked_fill(index == nearest, torch.inf).amin(1), self.outside[rows])
        high = (weights * (squared + self.error)).gather(1, lead[:, None])[:, 0].clamp_(min=0)
        high = self.margins.high(high, sizes, self.n_rounds).masked_fill_(torch.isinf(least), torch.inf)
        self.lows[rows] = torch.minimum(least, rest)
        is_far = self.margins.certain(torch.full_like(least, limit), self.lows[rows], sizes, self.n_rounds)
        is_certain = is_far | (self.margins.certain(high, rest, sizes, self.n_rounds) & (high <= limit))
        distance = torch.where(is_far, torch.inf, torch.nan)
        return Decision(nearest[:, 0], distance.to(least), is_certain)

    def _look_through(self, rows: Tensor) -> None:
        """Remember the smallest entries of some rows, and a low of the others."""
        k, n = self.index.shape[1], len(self.is_live)
        lows, index = top(self._values(rows), min(k + 1, n), self.scratch)
        self.index[rows, : min(k, n)] = index[:, :k]
        self.index[rows, min(k, n) :] = rows[:, None]
        sizes = self.geometry.sizes[rows]
        self.outside[rows] = self._low(lows[:, k], sizes) if n > k else torch.full_like(sizes, torch.inf)

    def _values(self, rows: Tensor) -> Tensor:
        """(R, M) for the lows of each row, -low/2s; -inf for itself and for the dead. Overwritten next time."""
        shape = (len(rows), len(self.is_live))
        values, ratio = (self.scratch.array(name, shape, self.dtype) for name in ("values", "heads"))
        torch.index_select(self.squared, 0, rows, out=values)
        values.add_(torch.full_like(self.outside, -self.error).masked_fill_(~self.is_live, torch.inf).to(self.dtype))
        torch.mul(-self.geometry.sizes[rows, None].to(self.dtype), (1 / self.geometry.sizes).to(self.dtype), out=ratio)
        values.div_(ratio.sub_(1))
        values[torch.arange(len(rows), device=rows.device), rows] = -torch.inf
        return values

    def _low(self, values: Tensor, sizes: Tensor) -> Tensor:
        return (values.double() * (-2 * sizes)).clamp_(min=0) * (1 - 16 * self.unit)  # the weight's own roundings

    def _measured(self, rows: Tensor) -> Decision:
        """The nearest by D of every cluster whose low does not put it beyond the nearest remembered one."""
        sizes = self.geometry.sizes[rows, None]
        distance = self.geometry.distances(rows, self.index[rows, 0])
        is_out = self.margins.certain(distance[:, None], self._low(self._values(rows), sizes), sizes, self.n_rounds)
        row, other = (~is_out).nonzero(as_tuple=True)
        measured = self.geometry.distances(rows[row], other)
        least = torch.full_like(distance, torch.inf).scatter_reduce(0, row, measured, "amin")
        keys = self.geometry.tie_keys(rows[row], other).masked_fill_(measured != least[row], LAST)
        is_first = keys == torch.full_like(rows, LAST).scatter_reduce(0, row, keys, "amin")[row]
        nearest = torch.empty_like(rows).scatter_(0, row[is_first], other[is_first])
        self.lows[rows] = self.margins.low(least)
        return Decision(nearest, least, torch.ones_like(rows, dtype=torch.bool))

    def _merge_rows(self, pairs: Pairs) -> None:
        """The formula along the columns: rows of merged clusters as everyone was before the round."""
        share, taken = self._coefficients(pairs)
        left, right = self.squared[pairs.kept], self.squared[pairs.gone]
        self.squared[pairs.kept] = torch.lerp(left, right, share[:, None]).sub_(taken[:, None])

    def _merge_columns(self, rows: Pairs, pairs: Pairs) -> None:
        """The formula along these rows, for everyone who merged."""
        share, taken = self._coefficients(pairs)
        whole = self.squared[rows.kept]  # (R, M)
        left, right = whole.index_select(1, pairs.kept), whole.index_select(1, pairs.gone)
        whole.index_copy_(1, pairs.kept, torch.lerp(left, right, share).sub_(taken))
        self.squared[rows.kept] = whole

    def _coefficients(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        a, b = pairs.kept_sizes, pairs.gone_sizes
        share = b / (a + b)
        taken = share * (1 - share) * (pairs.distance / weight(a, b))
        return share.to(self.dtype), taken.to(self.dtype)

    def _mirror(self, slots: Tensor) -> None:
        """Copy the rows of some slots into their columns."""
        rows = self.squared[slots]
        step = MIRROR_ROWS[slots.device.type]

        def work(start: int) -> None:
            part = slice(start, start + step)
            self.squared[part].index_copy_(1, slots, rows[:, part].T.contiguous())

        self.workers.map(work, range(0, len(self.squared), step))


def _error_of_products(half: Tensor, reach: Tensor | float, n_columns: int, precision: Precision) -> Tensor:
    """E for points of half squared length `half` at most, moved by no more than `reach`."""
    products = 2.0001 * precision.gamma(n_columns) * 4 * half
    if precision is not FLOAT64:
        products = products + n_columns * UNDERFLOW
    return products + 8.0001 * reach * ((2 * half).sqrt() + reach)
