"""Ward's merges, a round at a time: every pair of clusters that are each other's nearest merges at once.

Ward is reducible, so the greedy algorithm would merge such pairs too, only one after the other. Pairs are ordered by
(D, lower slot, higher slot); each cluster takes its first pair in that strict order (the lowest slot among equals),
hence the first pair of all is always mutual and every round merges, whatever is tied.

M slots, of which some are dead until they are renumbered; a cluster's slot is in the order of its smallest leaf.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.ward.bounds import Margins
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import Decision, Lists, Pairs, join, settle
from shoal.clustering.ward.scan import Scanner
from shoal.clustering.ward.threads import PRODUCTS, threads_for

LIVE_SHARE = 0.8
"""Slots are renumbered when fewer than this share of them is alive: copying every round would cost more."""

SCAN_COLUMNS = 350
"""Columns scanned in the time in which one listed cluster is measured, about."""

CHUNK_ROWS = {"cpu": 1 << 12, "cuda": 1 << 18}
"""Rows whose lists are renewed at once."""


@dataclass(frozen=True, slots=True)
class Merges:
    """The merges of a round: two nodes each, D, and the size of the union; (R,) each."""

    left: Tensor
    right: Tensor
    distance: Tensor
    size: Tensor


class Rounds:
    """The clusters between rounds, each with its list and its certain nearest cluster."""

    def __init__(self, geometry: Geometry, scanner: Scanner, margins: Margins, nodes: Tensor, next_node: int) -> None:
        self.geometry, self.scanner, self.margins = geometry, scanner, margins
        self.nodes, self.next_node = nodes, next_node
        self.n_live, self.n_rounds, self.n_scans = len(nodes), 0, 0
        slots = torch.arange(len(nodes), device=nodes.device)
        self.parent = slots.clone()
        self.is_live = torch.ones_like(slots, dtype=torch.bool)
        self.heights = torch.zeros_like(geometry.sizes)  # D at which each cluster was made
        self.decision = Decision(slots.clone(), self.heights.clone(), self.is_live.clone())
        low = self.heights.new_full((len(nodes), scanner.k), torch.inf)
        self.lists = Lists(slots[:, None].repeat(1, scanner.k), low, self.heights.clone())

    def start(self, lists: Lists | None, report: Callable[[int], None]) -> None:
        """Find every cluster's nearest: from ready lists where they are certain, else by a scan."""
        rows = torch.arange(self.n_live, device=self.nodes.device)
        if lists is not None:
            with threads_for(self._work(len(rows))):
                parts = [self._settle(part, lists.take(part), patience=torch.inf) for part in self._chunks(rows)]
            rows = torch.cat(parts)
            report(self.n_live - len(rows))
        self._scan(rows, report)

    def step(self) -> Merges:
        """Merge all mutual pairs and renew what that made stale."""
        pairs = self._mutual()
        assert len(pairs.kept), "no cluster is nearest to its nearest: a distance is not symmetric"
        with threads_for(self._work(3 * len(pairs.kept))):
            made = self._merge(pairs)
            self.n_rounds += 1
            unsure = self._renew(pairs, self._stale(pairs)) if self.n_live > 1 else pairs.kept[:0]
        self._scan(unsure, lambda n_rows: None)
        return made

    def _mutual(self) -> Pairs:
        nearest = self.decision.nearest
        slots = torch.arange(len(nearest), device=nearest.device)
        kept = ((nearest[nearest] == slots) & (slots < nearest)).nonzero()[:, 0]
        gone = nearest[kept]
        sizes = self.geometry.sizes
        return Pairs(kept, gone, sizes[kept], sizes[gone], self.decision.distance[kept])

    def _merge(self, pairs: Pairs) -> Merges:
        kept, gone = pairs.kept, pairs.gone
        # Rounding may put a union a hair below its parts; a tree's heights never fall.
        height = torch.maximum(pairs.distance, torch.maximum(self.heights[kept], self.heights[gone]))
        made = Merges(self.nodes[kept], self.nodes[gone], height, pairs.kept_sizes + pairs.gone_sizes)
        self.geometry.merge(kept, gone)
        self.scanner.merge(kept, gone)
        self.heights[kept] = height
        self.nodes[kept] = torch.arange(self.next_node, self.next_node + len(kept), device=kept.device)
        self.next_node += len(kept)
        self.n_live -= len(kept)
        self.is_live[gone] = False
        self.parent[gone] = kept
        self.parent = self.parent[self.parent]
        return made

    def _stale(self, pairs: Pairs) -> Tensor:
        """The clusters that did not merge but whose nearest did."""
        is_merged = torch.zeros_like(self.is_live)
        is_merged[pairs.kept] = True
        is_merged[pairs.gone] = True
        stale = (is_merged[self.decision.nearest] & ~is_merged & self.is_live).nonzero()[:, 0]
        self.decision.nearest[pairs.gone] = pairs.gone  # the dead are nobody's nearest but their own
        return stale

    def _renew(self, pairs: Pairs, stale: Tensor) -> Tensor:
        """Find the nearest of merged and stale clusters from their lists; returns those to be scanned."""
        live = self.geometry.sizes[self.is_live]
        span = (live.min(), live.max())
        patience = self.n_live / SCAN_COLUMNS
        unsure = [torch.empty_like(stale[:0])]
        step = CHUNK_ROWS[stale.device.type]
        for start in range(0, len(pairs.kept), step):
            part = pairs.take(slice(start, start + step))
            left, right = self._current(part.kept), self._current(part.gone)
            joined = join(left, right, part, self.geometry.sizes, span, self.margins.eta)
            unsure.append(self._settle(part.kept, joined, patience))
        for rows in self._chunks(stale):
            unsure.append(self._settle(rows, self._current(rows), patience))
        rows = torch.cat(unsure)
        return self._renumber(rows) if self.n_live < LIVE_SHARE * len(self.is_live) else rows

    def _settle(self, rows: Tensor, lists: Lists, patience: float) -> Tensor:
        """Take over what the lists of `rows` make certain; returns the rows that they do not."""
        decision = settle(self.geometry, self.margins, rows, lists, self.n_rounds, patience=patience)
        sure = decision.is_certain.nonzero()[:, 0]
        self.lists.put(rows[sure], lists.take(sure))
        self.decision.put(rows[sure], decision.take(sure))
        return rows[~decision.is_certain]

    def _scan(self, rows: Tensor, report: Callable[[int], None]) -> None:
        level = start = 0
        while start < len(rows):
            part = rows[start : start + self.scanner.block_rows]
            with threads_for(PRODUCTS * len(part) * self.geometry.centroids.numel()):
                lists, decision, level = self.scanner.scan(part, self.n_rounds, level)
                self.lists.put(part, lists)
                self.decision.put(part, decision)
            start += len(part)
            self.n_scans += len(part)
            report(len(part))

    def _work(self, n_rows: int) -> float:
        """Elementary operations of settling some rows, about: a few distances each."""
        return 16.0 * n_rows * self.geometry.centroids.shape[1]

    def _current(self, rows: Tensor) -> Lists:
        lists = self.lists.take(rows)
        lists.index = self.parent[lists.index]
        return lists

    def _chunks(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, CHUNK_ROWS[rows.device.type])

    def _renumber(self, rows: Tensor) -> Tensor:
        """Close the gaps that dead slots left, keeping the order; returns `rows` by their new numbers."""
        live = self.is_live.nonzero()[:, 0]
        number = (self.is_live.cumsum(0) - 1)[self.parent]
        self.geometry.keep(live)
        self.scanner.keep(live)
        self.lists, self.decision = self.lists.take(live), self.decision.take(live)
        self.lists.index = number[self.lists.index]
        self.decision.nearest = number[self.decision.nearest]
        self.nodes, self.heights, self.is_live = self.nodes[live], self.heights[live], self.is_live[live]
        self.parent = torch.arange(len(live), device=live.device)
        return number[rows]
