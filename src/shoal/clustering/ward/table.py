"""Few clusters: a table of all their heights, kept up to date through merges, instead of lists and
scans.

An entry is computed in float32 by a matrix product and stays true until one of its two clusters
merges. As in a scan (`bounds.py`) it only proposes: the nearest is certain when its directly
computed D is below the low of the second entry of its row. Where it is not, every cluster that the
entries do not rule out is measured; where that leaves many, the row's heights are first computed
again in float64, and where it happens to many rows, the whole table is. It is filled with D itself
where ties have made it measure as many distances as it holds, and where so few clusters are left
that a GPU only waits for its next kernel. So the tree is the one that lists and scans give, bit for
bit.

M slots, of which some are dead until they are renumbered; R rows at work; C columns.
"""

import torch
from torch import Tensor

from shoal.clustering.products import FLOAT32, FLOAT64, Points, Precision
from shoal.clustering.ward.bounds import ClusterExtremes, Margins, product_low
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import LAST, Decision, nearest_rival
from shoal.clustering.workers import Workers, matmul_precision

TABLE_BYTES = {"cpu": 10, "cuda": 16}
"""Memory per pair of clusters, in float64: the table and the rows at work."""

FILL_ROWS = {"cpu": 1 << 8, "cuda": 1 << 13}
"""Rows of the table computed at once, for each worker."""

FIND_ROWS = {"cpu": 1 << 9, "cuda": 1 << 12}
"""Rows searched at once, for each worker."""

SHARED_ROWS = 256
"""Rows searched by a worker at least: fewer are done before another thread has begun."""

MANY = 64
"""Rivals of a row that cost as much to measure as its heights in float64."""

UNSURE_SHARE = 0.25
"""A float32 table that leaves more than this share of its rows open is computed again in
float64."""

FEW_EXACT = {"cpu": 0, "cuda": 2048}
"""With no more clusters than this, computing D for all pairs costs less than deciding by
heights."""


class HeightTable:
    """Heights of all pairs of clusters: (M, M), inf on the diagonal; `dead` (M,) adds inf to
    columns of the dead."""

    def __init__(
        self,
        geometry: Geometry,
        margins: Margins,
        workers: Workers,
        is_live: Tensor,
        is_tied: bool = False,
    ) -> None:
        self.geometry = geometry
        self.margins = margins
        self.workers = workers
        self.center = geometry.middle()
        self.dead = torch.where(is_live, 0.0, torch.inf)
        self.points: dict[Precision, Points] = {}
        self.heights = torch.empty(0, 0)
        self._fill(
            None if is_tied or len(self.dead) <= FEW_EXACT[self.dead.device.type] else FLOAT32
        )

    def merge(self, kept: Tensor, gone: Tensor) -> None:
        """Compute the rows and columns of merged clusters anew and drop the absorbed ones."""
        self.dead[gone] = torch.inf
        for precision, points in self.points.items():
            points.renew(kept, self.geometry.centroids, self.center, precision, self.workers)

        def renew_rows(part: Tensor) -> None:
            self.heights[part] = self._heights(part, slice(0, len(self.dead)), self.precision)

        if self.precision is None:
            self.heights[kept] = self._measured(kept)
        else:
            with matmul_precision(self.precision.matmul):
                self.workers.map_rows(renew_rows, kept, at_most=FILL_ROWS[kept.device.type])
        self.workers.map(lambda start: self._renew_columns(kept, start), self._starts())
        self._measure_extremes()

    def keep(self, slots: Tensor) -> None:
        """Forget all but the given slots (ascending)."""
        n = len(slots)
        step = FILL_ROWS[slots.device.type]
        # Rows move to the front, so none is overwritten before it is read.
        for start in range(0, n, step):
            rows = self.heights.index_select(0, slots[start : start + step]).index_select(1, slots)
            self.heights[start : start + len(rows), :n] = rows
        self.heights = self.heights[:n, :n]
        self.dead = self.dead[slots]
        self.points = {precision: points.take(slots) for precision, points in self.points.items()}
        if self.precision is not None and n <= FEW_EXACT[slots.device.type]:
            self._fill(None)

    def nearest(self, rows: Tensor) -> Decision:
        """The certain nearest cluster of each row, the lowest slot among equals."""
        decision = self._decided(rows)
        if self.precision is None:
            return decision
        unsure = (~decision.is_certain).nonzero()[:, 0]
        if self.precision is FLOAT32 and len(unsure) > max(MANY, UNSURE_SHARE * len(rows)):
            self._fill(FLOAT64)
            decision = self._decided(rows)
            unsure = (~decision.is_certain).nonzero()[:, 0]
        for precision in (self.precision, FLOAT64):
            if not len(unsure):
                break
            self._add_points(precision)
            for part in torch.split(unsure, FIND_ROWS[rows.device.type]):
                compared = self._compare(
                    rows[part], decision.take(part), precision, len(unsure) / len(part)
                )
                if compared is None:
                    self._fill(None)
                    return self._decided(rows)
                decision.put(part, compared)
            unsure = unsure[~decision.is_certain[unsure]]
        return decision

    def _decided(self, rows: Tensor) -> Decision:
        at_most = FIND_ROWS[rows.device.type]
        parts = self.workers.map_rows(self._first, rows, at_most=at_most, at_least=SHARED_ROWS)
        nearest, distance, second = (
            parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
        )
        if self.precision is None:
            return Decision(nearest, distance, torch.ones_like(rows, dtype=torch.bool))
        sizes = self.geometry.sizes[rows]
        points = self.points[self.precision]
        n_columns = self.geometry.centroids.shape[1]
        low = self.extremes.low(
            second, sizes, points.half[rows], points.reach[rows], n_columns, self.precision
        )
        return Decision(nearest, distance, self.margins.certain(distance, low))

    def _first(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The first entry of each row, its D, and the second entry (as good as nobody in a table of
        D itself)."""
        heights = self.heights.index_select(0, rows).add_(self.dead)
        if self.precision is None:
            distance = heights.amin(1)
            slots = torch.arange(len(self.dead), device=rows.device)
            return (
                torch.where(heights == distance[:, None], slots, LAST).amin(1),
                distance,
                distance,
            )
        first = heights.min(1).indices
        second = heights.scatter_(1, first[:, None], torch.inf).amin(1).double()
        return first, self.geometry.distances(rows, first), second

    def _compare(
        self, rows: Tensor, decision: Decision, precision: Precision, n_parts: float
    ) -> Decision | None:
        """Measure every cluster whose height does not put it beyond the one decided on, unless
        there are many.

        None where so many are tied that, with as many in all of `n_parts`, the whole table costs no
        more.
        """
        if precision is self.precision:
            heights = self.heights[rows] + self.dead
        else:
            heights = self._heights(rows, slice(0, len(self.dead)), precision)
        low = self._low(rows, heights.double(), precision)  # (R, M)
        best = decision.distance
        if precision is FLOAT64:
            best = torch.minimum(best, self.geometry.distances(rows, low.argmin(1)))
        is_rival = ~self.margins.certain(best[:, None], low)
        is_done = is_rival.sum(1) <= MANY
        if precision is FLOAT64:
            is_done[:] = True
        done = is_done.nonzero()[:, 0]
        n_rivals = int(is_rival[done].sum())
        if self.n_measured + n_rivals * n_parts > self.heights.numel() / 2:
            return None
        self.n_measured += n_rivals
        decision.is_certain[:] = False
        decision.put(done, nearest_rival(self.geometry, rows[done], is_rival[done])[0])
        return decision

    def _fill(self, precision: Precision | None) -> None:
        """Compute the whole table: heights by products of a precision, or D itself (None)."""
        self.precision = precision
        self.n_measured = 0
        n = len(self.dead)
        if precision is None:
            self.points.clear()
        else:
            self._add_points(precision)
        self.heights = torch.empty(0, 0)  # the old one's memory is needed
        self.heights = torch.empty(
            n, n, dtype=(precision or FLOAT64).dtype, device=self.dead.device
        )
        with matmul_precision((precision or FLOAT64).matmul):
            self.workers.map(self._fill_rows, self._starts())
        self._measure_extremes()

    def _measured(self, rows: Tensor) -> Tensor:
        """(R, M) D of some rows with everyone, inf for a row itself and the dead; workers share the
        columns."""
        heights = self.heights.new_empty(len(rows), len(self.dead))

        def work(start: int) -> None:
            columns = slice(start, start + step)
            heights[:, columns] = self.geometry.all_distances(rows, columns)

        n = len(self.dead)
        step = self.workers.share(n, n)
        self.workers.map(work, range(0, n, step))
        return heights.add_(self.dead).scatter_(1, rows[:, None], torch.inf)

    def _fill_rows(self, start: int) -> None:
        """Compute some rows from the diagonal on, and with them their columns."""
        stop = min(start + FILL_ROWS[self.dead.device.type], len(self.dead))
        rows = torch.arange(start, stop, device=self.dead.device)
        block = self._heights(rows, slice(start, len(self.dead)), self.precision)
        self.heights[start:stop, start:] = block
        self.heights[stop:, start:stop] = block[:, stop - start :].T

    def _renew_columns(self, kept: Tensor, start: int) -> None:
        """Copy the rows of merged clusters into the columns of some rows."""
        stop = min(start + FILL_ROWS[kept.device.type], len(self.dead))
        columns = self.heights[:, start:stop].index_select(0, kept).T.contiguous()  # (C, R)
        if self.workers.n > 1:
            # These rows are new, and are written what they hold:
            own = kept[(kept >= start) & (kept < stop)]
            columns[own - start] = self.heights[own][:, kept]  # another worker may be reading them
        self.heights[start:stop].index_copy_(1, kept, columns)

    def _heights(self, rows: Tensor, columns: slice, precision: Precision | None) -> Tensor:
        """(R, C) heights, inf for a row itself and the dead."""
        if precision is None:
            heights = self.geometry.all_distances(rows, columns)
        else:
            heights = self._products(rows, columns, precision)
        heights.add_(self.dead[columns])
        return heights.scatter_(1, (rows - columns.start)[:, None], torch.inf)

    def _products(self, rows: Tensor, columns: slice, precision: Precision) -> Tensor:
        """(R, C) heights 4s·(|p|²/2 + |q|²/2 - p·q) / (s/c + 1) in the format of the products."""
        own = self.points[precision].take(rows)
        theirs = self.points[precision].take(columns)
        dtype = precision.dtype
        sizes = self.geometry.sizes
        half = own.half[:, None].to(dtype) + theirs.half.to(dtype)
        heights = half.addmm_(own.points, theirs.points.T, alpha=-1)
        ratio = sizes[rows, None].to(dtype) * (1 / sizes[columns]).to(dtype)
        return heights.div_(ratio.add_(1)).mul_(4 * sizes[rows, None].to(dtype))

    def _low(self, rows: Tensor, heights: Tensor, precision: Precision) -> Tensor:
        """Lows of computed heights (R, M)."""
        points = self.points[precision]
        sizes = self.geometry.sizes
        return product_low(
            heights,
            (sizes[rows, None], sizes),
            (points.half[rows, None], points.half),
            points.reach[rows, None] + points.reach,
            self.geometry.centroids.shape[1],
            precision,
        )

    def _measure_extremes(self) -> None:
        """What bounds everyone but the first of a row."""
        if self.precision is None:
            return
        points = self.points[self.precision]
        self.extremes = ClusterExtremes.of(
            self.geometry.sizes, points.half, points.reach, self.dead == 0
        )

    def _add_points(self, precision: Precision) -> None:
        if precision not in self.points:
            self.points[precision] = Points.of_all(
                self.geometry.centroids, self.center, precision, self.workers
            )

    def _starts(self) -> range:
        return range(0, len(self.dead), FILL_ROWS[self.dead.device.type])
