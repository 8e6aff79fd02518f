"""Ward's merges, a round at a time: pairs of clusters that are each other's nearest merge at once.

Ward is reducible, so the greedy algorithm would merge such pairs too, only one after the other. Each cluster is known
by its smallest leaf, and pairs are ordered by (D, one leaf xor the other, the lower leaf); each cluster takes its first
pair in that strict order, hence the first pair of all is always mutual and every round merges, whatever is tied. Leaves
of small xor are each other's: where everything is tied, half of all clusters merge in a round, not one pair. A round
merges the mutual pairs within the limit (`limits.py`); who is nearest must be known only where it is within it.

M slots, of which some are dead until they are renumbered; a cluster's slot is in the order of its smallest leaf.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.ward import limits
from shoal.clustering.ward.bounds import FLOAT32, Margins, Precision
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.limits import Limit
from shoal.clustering.ward.lists import Decision, Pairs
from shoal.clustering.ward.search import Search
from shoal.clustering.ward.table import Room, Table, sharp_precision
from shoal.clustering.ward.workers import Workers

LIVE_SHARE = 0.7
"""Slots are renumbered when fewer than this share of them is alive: copying every round would cost more."""

CHUNK_ROWS = {"cpu": 1 << 8, "cuda": 1 << 18}
"""Clusters merged or measured at once."""


@dataclass(frozen=True, slots=True)
class Merges:
    """The merges of a round: two nodes each, D, and the size of the union; (R,) each."""

    left: Tensor
    right: Tensor
    distance: Tensor
    size: Tensor


class Rounds:
    """The clusters between rounds; one's nearest is known where it is within the limit, else it stands for itself."""

    def __init__(
        self,
        geometry: Geometry,
        margins: Margins,
        workers: Workers,
        memory: int,
        search: Callable[[], Search],
        nodes: Tensor,
        next_node: int,
    ) -> None:
        self.geometry, self.margins, self.workers = geometry, margins, workers
        self.room = Room.of(memory, nodes.device)
        self.nodes, self.next_node = nodes, next_node
        self.n_live, self.n_rounds = len(nodes), 0
        self.limit = Limit(None)
        self.is_fresh = False  # whether every nearest is of this very round
        self.is_live = torch.ones_like(nodes, dtype=torch.bool)
        self.heights = torch.zeros_like(geometry.sizes)  # D at which each cluster was made
        self.nearest, self.distance = self._slots(), self.heights.clone()
        self.precision: Precision | None = None  # of the table, once there is room for one
        self.finder: Table | Search = self._new_table() if self._is_few() else search()

    def start(self, report: Callable[[int], None]) -> None:
        """Find every cluster's nearest."""
        slots = self._slots()
        self._find(slots, report)
        if self.n_live > limits.PATIENT:
            self.distance = self._measured(slots, self.nearest)
            self.limit = Limit(self.distance)
            self.nearest = torch.where(self.distance <= self.limit.value, self.nearest, slots)

    def step(self) -> Merges:
        """Merge all mutual pairs within the limit and renew what that made stale."""
        pairs = self._mutual()
        while not len(pairs.kept):
            if self.limit.value == torch.inf:
                self._start_again()
            self._rise()
            pairs = self._mutual()
        made = self._merge(pairs)
        if self.n_live > 1:
            is_new = isinstance(self.finder, Search) and self._is_few()
            if is_new or self.n_live < LIVE_SHARE * len(self.is_live):
                self._renumber(is_new)
            self._rise()
        return made

    def _start_again(self) -> None:
        """Forget every nearest: where distances are tied but for rounding, one found rounds ago may not be it now."""
        assert not self.is_fresh, "no cluster is nearest to its nearest: a distance is not symmetric"
        self.nearest, self.is_fresh = self._slots(), True

    def _rise(self) -> None:
        self.limit.rise(self.n_live)
        self._find(self._open())

    def _mutual(self) -> Pairs:
        kept = ((self.nearest[self.nearest] == self._slots()) & (self._slots() < self.nearest)).nonzero()[:, 0]
        gone = self.nearest[kept]
        sizes = self.geometry.sizes
        return Pairs(kept, gone, sizes[kept], sizes[gone], self._measured(kept, gone))

    def _measured(self, rows: Tensor, others: Tensor) -> Tensor:
        """D of clusters and their nearest; computed now where it has not been needed so far."""
        distance = self.distance[rows]
        missing = torch.isnan(distance).nonzero()[:, 0]
        step = CHUNK_ROWS[rows.device.type]

        def work(part: Tensor) -> None:
            distance[part] = self.geometry.distances(rows[part], others[part])

        self.workers.map(work, torch.split(missing, step))
        return distance

    def _merge(self, pairs: Pairs) -> Merges:
        kept, gone = pairs.kept, pairs.gone
        # Rounding may put a union a hair below its parts; a tree's heights never fall.
        height = torch.maximum(pairs.distance, torch.maximum(self.heights[kept], self.heights[gone]))
        made = Merges(self.nodes[kept], self.nodes[gone], height, pairs.kept_sizes + pairs.gone_sizes)
        self.is_live[gone] = False
        self._forget(pairs)
        self.n_live -= len(kept)
        self.is_fresh = False
        self.n_rounds += 1
        step = CHUNK_ROWS[kept.device.type]
        chunks = zip(torch.split(kept, step), torch.split(gone, step), strict=True)
        self.workers.map(lambda both: self.geometry.merge(*both), chunks)
        if self.n_live > 1:
            self.finder.merge(pairs)
        self.heights[kept] = height
        self.nodes[kept] = torch.arange(self.next_node, self.next_node + len(kept), device=kept.device)
        self.next_node += len(kept)
        return made

    def _forget(self, pairs: Pairs) -> None:
        """Let go of the nearest of merged clusters, and where a merged cluster is the nearest."""
        is_merged = torch.zeros_like(self.is_live)
        is_merged[pairs.kept] = True
        is_merged[pairs.gone] = True
        self.nearest = torch.where(is_merged | is_merged[self.nearest], self._slots(), self.nearest)

    def _open(self) -> Tensor:
        """The clusters whose nearest is not known and that may have one within the limit."""
        limit = torch.full_like(self.heights, self.limit.value)
        is_far = self.margins.certain(limit, self.finder.floor(), self.geometry.sizes, self.n_rounds)
        return ((self.nearest == self._slots()) & self.is_live & ~is_far).nonzero()[:, 0]

    def _find(self, rows: Tensor, report: Callable[[int], None] = lambda n_rows: None) -> None:
        def accept(part: Tensor, decision: Decision) -> None:
            self.distance[part] = decision.distance
            self.nearest[part] = torch.where(decision.distance > self.limit.value, part, decision.nearest)
            report(len(part))

        if len(rows):
            self.finder.nearest(rows, self.limit.value, self.n_rounds, accept)

    def _is_few(self) -> bool:
        """Whether there is room for a table of all clusters that are left; settles its precision."""
        if self.n_live > self.room.float32:
            return False
        if self.precision is None:
            self.precision = sharp_precision(self.geometry, self.is_live.nonzero()[:, 0])
        return self.n_live <= (self.room.float32 if self.precision is FLOAT32 else self.room.float64)

    def _renumber(self, is_new: bool) -> None:
        """Close the gaps that dead slots left, keeping the order; with a new table if there is room for one now."""
        live = self.is_live.nonzero()[:, 0]
        number = (self.is_live.cumsum(0) - 1).clamp_(min=0)
        self.nodes, self.heights, self.is_live = self.nodes[live], self.heights[live], self.is_live[live]
        self.nearest, self.distance = number[self.nearest[live]], self.distance[live]
        self.geometry.keep(live)
        if not is_new:
            self.finder.keep(live, number)
            return
        del self.finder  # its memory is the table's
        self.finder = self._new_table()

    def _new_table(self) -> Table:
        assert self.precision is not None
        return Table(self.geometry, self.margins, self.workers, self.precision)

    def _slots(self) -> Tensor:
        return torch.arange(len(self.nodes), device=self.nodes.device)
