"""Ward's merges, a round at a time: every pair of clusters that are each other's nearest merges at
once.

Ward is reducible, so the greedy algorithm would merge such pairs too, only one after the other.
Pairs are ordered by (D, lower slot, higher slot); each cluster takes its first pair in that strict
order (the lowest slot among equals), hence the first pair of all is always mutual and every round
merges, whatever is tied. Where three clusters are equally far from each other, a union may come out
a rounding nearer to a third cluster than its parts were. If that is the union's nearest, it is told
so; else it may keep, until its nearest merges, one that is a rounding further away.

M slots, of which some are dead until they are renumbered; a cluster's slot is in the order of its
smallest leaf.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.ward.bounds import Margins
from shoal.clustering.ward.lists import LAST, Decision, Lists, Pairs, Partners, follow, join, settle
from shoal.clustering.ward.scan import Scanner, agree_on_rows
from shoal.clustering.ward.table import HeightTable
from shoal.clustering.workers import Workers

LIVE_SHARE = 0.8
"""Slots are renumbered when fewer than this share of them is alive: copying every round would cost
more."""

FEW = {"cpu": 2560, "cuda": 1 << 15}
"""With no more clusters than this, a table of all their heights costs less than lists and scans."""

CHUNK_ROWS = {"cpu": 1 << 10, "cuda": 1 << 18}
"""Rows whose lists are renewed at once, at most."""

JOIN_BYTES = 32
"""Memory for each pair of entries of the two lists that a merged cluster joins."""


@dataclass(frozen=True, slots=True)
class RoundMerges:
    """The merges of a round: two nodes each, D, and the size of the union; (R,) each."""

    left: Tensor
    right: Tensor
    distance: Tensor
    size: Tensor


class Rounds:
    """The clusters between rounds, each with its list and its certain nearest cluster."""

    def __init__(
        self,
        scanner: Scanner,
        margins: Margins,
        workers: Workers,
        nodes: Tensor,
        next_node: int,
        n_tabled: int,
        n_tied: int = 0,
    ) -> None:
        self.geometry = scanner.geometry
        self.scanner = scanner
        self.margins = margins
        self.workers = workers
        self.n_tabled = n_tabled  # no more clusters than this are kept in a table
        self.n_tied = n_tied  # the same where most of them are equally far apart
        at_most = scanner.memory // (JOIN_BYTES * scanner.k**2 * workers.n)
        self.chunk_rows = max(1, min(CHUNK_ROWS[nodes.device.type], at_most))
        self.table: HeightTable | None = None
        self.nodes = nodes
        self.next_node = next_node
        self.n_live = len(nodes)
        slots = torch.arange(len(nodes), device=nodes.device)
        self.is_live = torch.ones_like(slots, dtype=torch.bool)
        self.heights = torch.zeros_like(self.geometry.sizes)  # D at which each cluster was made
        self.decision = Decision(slots.clone(), self.heights.clone(), self.is_live.clone())
        # Lows for all others, known since each cluster's nearest is.
        self.floors = self.heights.clone()
        low = self.heights.new_full((len(nodes), scanner.k), torch.inf)
        self.lists = Lists(slots[:, None].repeat(1, scanner.k), low, self.heights.clone())

    def start(self, lists: Lists | None, report: Callable[[int], None]) -> None:
        """Find every cluster's nearest: from ready lists where they are certain, else by a table or
        a scan."""
        rows = torch.arange(self.n_live, device=self.nodes.device)
        if lists is not None and self.n_live > self.n_tabled:

            def settle_part(part: Tensor) -> Tensor:
                return self._settle(part, lists.take(part))

            rows = self._agreed(
                rows, torch.cat(self.workers.map_rows(settle_part, rows, at_most=self.chunk_rows))
            )
            report(self.n_live - len(rows))
        self._find(rows, report)

    def step(self) -> RoundMerges:
        """Merge all mutual pairs and renew what that made stale."""
        pairs = self._mutual()
        assert len(pairs.kept), "no cluster is nearest to its nearest: a distance is not symmetric"
        margins = self._margins(pairs)
        if self.n_live - len(pairs.kept) > self.n_tabled:  # else lists have served their time
            self._follow(pairs, margins)
        made = self._merge(pairs)
        stale = self._stale(pairs)
        is_few = self.n_live <= self.n_tabled
        fresh = torch.cat([pairs.kept, stale])
        rows = fresh if is_few else self._renew(pairs, fresh, margins)
        if self.n_live < LIVE_SHARE * len(self.is_live) or (is_few and self.table is None):
            number = self.close_gaps()
            rows = number[rows]
            fresh = number[fresh]
        if self.n_live > 1:
            self._find(rows, lambda n_rows: None)
            self._tell(fresh)
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
        # Rounding may put a union a hair below its parts; a tree's heights never fall.
        height = torch.maximum(
            pairs.distance, torch.maximum(self.heights[kept], self.heights[gone])
        )
        made = RoundMerges(
            self.nodes[kept], self.nodes[gone], height, pairs.kept_sizes + pairs.gone_sizes
        )
        self.workers.map_rows(self.geometry.merge, kept, gone, at_most=self.chunk_rows)
        (self.table or self.scanner).merge(kept, gone)
        self.heights[kept] = height
        self.nodes[kept] = torch.arange(
            self.next_node, self.next_node + len(kept), device=kept.device
        )
        self.next_node += len(kept)
        self.n_live -= len(kept)
        self.is_live[gone] = False
        return made

    def _follow(self, pairs: Pairs, margins: Margins) -> None:
        """Lead all lists to the unions about to be made."""
        sizes = self.geometry.sizes
        partners = Partners.of(pairs, sizes, self.floors, margins.eta)
        step = self.workers.share(len(sizes), self.chunk_rows)

        def work(start: int) -> None:
            part = slice(start, start + step)
            follow(self.lists.take(part), sizes[part], partners, margins)

        self.workers.map(work, range(0, len(sizes), step))
        self.floors = margins.moved(partners.bystander_low(self.floors), sizes)

    def _margins(self, pairs: Pairs) -> Margins:
        """What rounding may do to the unions of these pairs, by the lengths of their parts; a table
        needs no such."""
        if self.table is not None:
            return self.margins
        points = self.scanner.points
        both = torch.cat([pairs.kept, pairs.gone])
        length = (2 * points.half[both]).sqrt() + points.reach[both]
        return self.margins.within(
            1.0001 * (length.amax() + torch.linalg.vector_norm(self.scanner.center))
        )

    def _stale(self, pairs: Pairs) -> Tensor:
        """The clusters that did not merge but whose nearest did."""
        is_merged = torch.zeros_like(self.is_live)
        is_merged[pairs.kept] = True
        is_merged[pairs.gone] = True
        stale = (is_merged[self.decision.nearest] & ~is_merged & self.is_live).nonzero()[:, 0]
        # The dead are nobody's nearest but their own.
        self.decision.nearest[pairs.gone] = pairs.gone
        return stale

    def _renew(self, pairs: Pairs, rows: Tensor, margins: Margins) -> Tensor:
        """Find the nearest of `rows`, merged and stale clusters, from their lists; returns those to
        be scanned."""
        sizes = self.geometry.sizes
        # The dead are part of larger ones.
        span = (
            sizes.masked_fill(~self.is_live, torch.inf).amin(),
            sizes.amax(),
        )

        def join_part(part: Pairs) -> None:
            left = self.lists.take(part.kept)
            right = self.lists.take(part.gone)
            floors = self.floors[part.kept], self.floors[part.gone]
            self.lists.put(part.kept, join(left, right, part, floors, sizes, span, margins))

        def settle_part(part: Tensor) -> Tensor:
            return self._settle(part, self.lists.take(part))

        # Chunks do not meet: each reads and writes the lists of its own rows alone.
        step = self.workers.share(len(pairs.kept), self.chunk_rows)
        self.workers.map(
            join_part, [pairs.take(slice(at, at + step)) for at in range(0, len(pairs.kept), step)]
        )
        return self._agreed(
            rows, torch.cat(self.workers.map_rows(settle_part, rows, at_most=self.chunk_rows))
        )

    def _agreed(self, candidates: Tensor, rows: Tensor) -> Tensor:
        """The rows to be scanned, of `candidates`: those that any process must scan, where several
        link them."""
        return (
            agree_on_rows(candidates, rows, len(self.is_live)) if self.scanner.is_shared else rows
        )

    def _settle(self, rows: Tensor, lists: Lists) -> Tensor:
        """Take over what the lists of `rows` make certain; returns the rows that they do not."""
        decision = settle(self.geometry, self.margins, rows, lists)
        sure = decision.is_certain.nonzero()[:, 0]
        self._accept(rows[sure], lists.take(sure), decision.take(sure))
        return rows[~decision.is_certain]

    def _find(self, rows: Tensor, report: Callable[[int], None]) -> None:
        """Find the nearest cluster of some rows: by the table where there are few clusters, else by
        a scan."""
        is_tied = False
        if self.n_live > self.n_tabled:
            rows = self._scan(rows, report)
            is_tied = len(rows) > 0
            if not is_tied:
                return
            self.n_tabled = self.n_live
        if self.table is None:
            self.table = HeightTable(
                self.geometry, self.margins, self.workers, self.is_live, is_tied
            )
        self.decision.put(rows, self.table.nearest(rows))
        report(len(rows))

    def _scan(self, rows: Tensor, report: Callable[[int], None]) -> Tensor:
        """Find the nearest of some rows by a scan; returns those that are left to a table."""

        def accept(part: Tensor, lists: Lists, decision: Decision) -> None:
            self._accept(part, lists, decision)
            report(len(part))

        return self.scanner.scan(rows, accept, may_leave=self.n_live <= self.n_tied)

    def _accept(self, rows: Tensor, lists: Lists, decision: Decision) -> None:
        self.lists.put(rows, lists)
        self.decision.put(rows, decision)
        self.floors[rows] = self.margins.low(decision.distance)

    def _tell(self, fresh: Tensor) -> None:
        """Make each cluster just decided on the nearest of its nearest, where it comes before that
        one's own."""
        decision = self.decision
        told = decision.nearest[fresh]
        distance = decision.distance[fresh]
        least = decision.distance.scatter_reduce(0, told, distance, "amin")
        first = torch.where(least == decision.distance, decision.nearest, LAST)
        first.scatter_reduce_(0, told, torch.where(distance == least[told], fresh, LAST), "amin")
        decision.nearest = first
        decision.distance = least

    def close_gaps(self) -> Tensor:
        """Close the gaps that dead slots left, keeping the order; returns the new number of every
        live slot."""
        live = self.is_live.nonzero()[:, 0]
        # Slot 0 is always alive, so that a dead one has the number of some other.
        number = self.is_live.cumsum(0) - 1
        self.geometry.keep(live, self.workers)
        self.decision = self.decision.take(live)
        if self.table is not None:
            self.table.keep(live)
        elif self.n_live > self.n_tabled:  # else lists and scans have served their time
            self.scanner.keep(live)
            self.lists = self.lists.take(live)
            self.lists.index = number[self.lists.index]
            self.floors = self.floors[live]
        self.decision.nearest = number[self.decision.nearest]
        self.nodes = self.nodes[live]
        self.heights = self.heights[live]
        self.is_live = self.is_live[live]
        return number
