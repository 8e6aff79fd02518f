"""Ward's merges in rounds: all mutually nearest pairs of clusters are merged together.

Ward is reducible, so the greedy algorithm would merge such pairs too, one after the other. Pairs
are ordered by (D, lower slot, higher slot), and each cluster takes its first pair in that order.
Hence the first pair of all is always mutual, and every round merges, even with ties. If three
clusters are equally far apart, a union may be nearer to a third cluster by a rounding error than
its parts were. The third cluster is updated if it is the nearest of the union; otherwise its
nearest may be a rounding error too far until that one merges.

M slots, some dead until slots are renumbered, in the order of their clusters' smallest leaves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.ward.bounds import Margins
from shoal.clustering.ward.lists import LAST, Decision, Lists, Pairs, Partners, follow, join, settle
from shoal.clustering.ward.scan import Scanner
from shoal.clustering.workers import Workers

LIVE_SHARE = 0.8
"""Slots are renumbered when fewer than this share of them is alive; copying in every round would
cost more."""

FEW = {"cpu": 400, "cuda": 2048}
"""Clusters up to which comparing all of them in float64 costs less than lists."""

CHUNK_ROWS = {"cpu": 1 << 10, "cuda": 1 << 18}
"""Largest number of rows whose lists are updated together."""

JOIN_BYTES = 32
"""Memory per pair of entries when two lists are joined."""


@dataclass(frozen=True, slots=True)
class RoundMerges:
    """The merges of a round: two nodes, D, and the size of the union; (R,) each."""

    left: Tensor
    right: Tensor
    distance: Tensor
    size: Tensor


class Rounds:
    """The clusters between rounds, each with its nearest cluster and, unless they are few, its
    list."""

    def __init__(
        self, scanner: Scanner, margins: Margins, workers: Workers, nodes: Tensor, next_node: int
    ) -> None:
        self.geometry = scanner.geometry
        self.scanner = scanner
        self.margins = margins
        self.workers = workers
        device_type = nodes.device.type
        self.n_few = max(FEW[device_type], scanner.k + 1)
        at_most = scanner.memory // (JOIN_BYTES * scanner.k**2 * workers.n)
        self.chunk_rows = max(1, min(CHUNK_ROWS[device_type], at_most))
        self.nodes = nodes
        self.next_node = next_node
        self.n_live = len(nodes)
        slots = torch.arange(len(nodes), device=nodes.device)
        self.heights = torch.zeros_like(self.geometry.sizes)  # D at which each cluster was made
        self.decision = Decision(slots.clone(), self.heights.clone())
        # Lows for all other clusters, from the distance of the nearest.
        self.floors = self.heights.clone()
        self.lists = Lists.empty(slots, scanner.k)

    @property
    def is_few(self) -> bool:
        """Whether clusters are compared with all others, without lists."""
        return self.n_live <= self.n_few

    def start(self, lists: Lists | None) -> None:
        """Find the nearest of every cluster, from the given lists if they prove it, else by a
        scan."""
        rows = torch.arange(self.n_live, device=self.nodes.device)
        if self.is_few:
            self.scanner.use_only_float64()
            self._compare_with_all(rows)
            return
        if lists is not None:
            rows = self._settled(rows, lists)
        self.scanner.scan(rows, self._accept)

    def step(self) -> RoundMerges:
        """Merge all mutual pairs and update the clusters whose nearest has changed."""
        pairs = self._mutual()
        assert len(pairs.kept), "no cluster is nearest to its nearest: a distance is not symmetric"
        was_few = self.is_few
        if was_few:
            made = self._merge(pairs)
        else:
            margins = self._margins(pairs)
            self._follow(pairs, margins)
            made = self._merge(pairs)
            self._join(pairs, margins)
        fresh = torch.cat([pairs.kept, self._stale(pairs)])
        if self.n_live < LIVE_SHARE * len(self.nodes):
            fresh = self.close_gaps()[fresh]
        if self.n_live == 1:
            return made
        if not self.is_few:
            self.scanner.scan(self._settled(fresh, self.lists), self._accept)
        else:
            if not was_few:
                self.scanner.use_only_float64()
            self._compare_with_all(fresh)
        self._update_nearest(fresh)
        return made

    def _mutual(self) -> Pairs:
        nearest = self.decision.nearest
        slots = torch.arange(len(nearest), device=nearest.device)
        kept = ((nearest[nearest] == slots) & (slots < nearest)).nonzero()[:, 0]
        gone = nearest[kept]
        sizes = self.geometry.sizes
        return Pairs(kept, gone, sizes[kept], sizes[gone], self.decision.distance[kept])

    def _merge(self, pairs: Pairs) -> RoundMerges:
        kept = pairs.kept
        gone = pairs.gone
        # Rounding may put a union below its parts, but a tree's heights must not fall.
        parts = torch.maximum(self.heights[kept], self.heights[gone])
        height = torch.maximum(pairs.distance, parts)
        made = RoundMerges(
            self.nodes[kept], self.nodes[gone], height, pairs.kept_sizes + pairs.gone_sizes
        )
        self.workers.map_rows(self.geometry.merge, kept, gone, at_most=self.chunk_rows)
        self.scanner.merge(kept, gone)
        self.heights[kept] = height
        self.nodes[kept] = self.next_node + torch.arange(len(kept), device=kept.device)
        self.next_node += len(kept)
        self.n_live -= len(kept)
        return made

    def _margins(self, pairs: Pairs) -> Margins:
        """Return the margins for the unions of these pairs, from the lengths of their parts."""
        points = self.scanner.points
        both = torch.cat([pairs.kept, pairs.gone])
        length = (2 * points.half[both]).sqrt() + points.reach[both]
        radius = length.amax() + torch.linalg.vector_norm(self.scanner.center)
        return self.margins.within(1.0001 * radius)

    def _follow(self, pairs: Pairs, margins: Margins) -> None:
        """Update all lists for the coming merges."""
        sizes = self.geometry.sizes
        partners = Partners.of(pairs, sizes, self.floors, margins.eta)
        step = self.workers.chunk_rows(len(sizes), self.chunk_rows)

        def work(start: int) -> None:
            part = slice(start, start + step)
            follow(self.lists.take(part), sizes[part], partners, margins)

        self.workers.map(work, range(0, len(sizes), step))
        self.floors = margins.moved(partners.bystander_low(self.floors), sizes)

    def _join(self, pairs: Pairs, margins: Margins) -> None:
        """Join the lists of merged clusters; chunks have separate rows."""
        sizes = self.geometry.sizes
        # Dead slots must not lower the smallest size.
        span = (sizes.masked_fill(~self.scanner.is_live, torch.inf).amin(), sizes.amax())

        def work(*part: Tensor) -> None:
            some = Pairs(*part)
            left = self.lists.take(some.kept)
            right = self.lists.take(some.gone)
            floors = (self.floors[some.kept], self.floors[some.gone])
            self.lists.put(some.kept, join(left, right, some, floors, sizes, span, margins))

        self.workers.map_rows(
            work,
            pairs.kept,
            pairs.gone,
            pairs.kept_sizes,
            pairs.gone_sizes,
            pairs.distance,
            at_most=self.chunk_rows,
        )

    def _stale(self, pairs: Pairs) -> Tensor:
        """Return the clusters that did not merge but whose nearest did."""
        is_live = self.scanner.is_live
        is_merged = torch.zeros_like(is_live)
        is_merged[pairs.kept] = True
        is_merged[pairs.gone] = True
        stale = (is_merged[self.decision.nearest] & ~is_merged & is_live).nonzero()[:, 0]
        # A dead slot is its own nearest, so that it is never part of a mutual pair.
        self.decision.nearest[pairs.gone] = pairs.gone
        return stale

    def _settled(self, rows: Tensor, lists: Lists) -> Tensor:
        """Accept the nearest clusters that the lists prove; return the other rows, to be scanned by
        all processes that link together."""

        def work(part: Tensor) -> Tensor:
            own = lists.take(part)
            decision, is_certain = settle(self.geometry, self.margins, part, own)
            sure = is_certain.nonzero()[:, 0]
            self._accept(part[sure], own.take(sure), decision.take(sure))
            return part[~is_certain]

        left = torch.cat(self.workers.map_rows(work, rows, at_most=self.chunk_rows))
        return self.scanner.rows_of_all(rows, left)

    def _accept(self, rows: Tensor, lists: Lists, decision: Decision) -> None:
        self.lists.put(rows, lists)
        self.decision.put(rows, decision)
        self.floors[rows] = self.margins.low(decision.distance)

    def _compare_with_all(self, rows: Tensor) -> None:
        def work(part: Tensor) -> None:
            self.decision.put(part, self.scanner.nearest(part)[0])

        self.workers.map_rows(work, rows, at_most=self.scanner.rows_at_once())

    def _update_nearest(self, fresh: Tensor) -> None:
        """Make each of the `fresh` clusters the nearest of its nearest, if it comes before that
        one's current nearest."""
        decision = self.decision
        target = decision.nearest[fresh]
        distance = decision.distance[fresh]
        least = decision.distance.scatter_reduce(0, target, distance, "amin")
        first = torch.where(least == decision.distance, decision.nearest, LAST)
        first.scatter_reduce_(
            0, target, torch.where(distance == least[target], fresh, LAST), "amin"
        )
        decision.nearest = first
        decision.distance = least

    def close_gaps(self) -> Tensor:
        """Renumber the live slots without gaps, in order; return the new number of every live
        slot."""
        is_live = self.scanner.is_live
        live = is_live.nonzero()[:, 0]
        # Slot 0 is always alive, so that a dead slot has the number of a live one, never -1.
        number = is_live.cumsum(0) - 1
        self.geometry.keep(live)
        self.scanner.keep(live)
        self.decision = self.decision.take(live)
        self.decision.nearest = number[self.decision.nearest]
        if not self.is_few:
            self.lists = self.lists.take(live)
            self.lists.index = number[self.lists.index]
            self.floors = self.floors[live]
        self.nodes = self.nodes[live]
        self.heights = self.heights[live]
        return number
