"""Ward's merges in rounds: all mutually nearest pairs of clusters are merged together.

Ward is reducible, so the greedy algorithm would merge such pairs too, one after the other. Pairs
are ordered by (D, lower slot, higher slot), and each cluster takes its first pair in that order.
Hence the first pair of all is always mutual, and every round merges, even with ties. If three
clusters are equally far apart, a union may be nearer to a third cluster by a rounding error than
its parts were. The third cluster is updated if it is the nearest of the union; otherwise its
nearest may be a rounding error too far until that one merges.

M slots, some dead until slots are renumbered, in the order of their clusters' smallest leaves.
"""

import torch
from torch import Tensor

from shoal.clustering.ward.lists import LAST, Decision, Lists, Pairs, Partners, follow, join
from shoal.clustering.ward.scan import Scanner

LIVE_SHARE = 0.8
"""Slots are renumbered when fewer than this share of them is alive; copying in every round would
cost more."""


def as_merges(left: Tensor, right: Tensor, distance: Tensor, sizes: Tensor) -> Tensor:
    """Return merges as rows of scipy's format, (R, 4) float64: two nodes, here D, and the size of
    the union."""
    return torch.stack([left.double(), right.double(), distance, sizes], 1)


class Rounds:
    """The merges of the clusters of a scanner, with the tree's node of each."""

    def __init__(self, scanner: Scanner, nodes: Tensor, next_node: int) -> None:
        self.scanner = scanner
        self.nodes = nodes
        self.next_node = next_node
        # D at which each cluster was made
        self.heights = torch.zeros_like(scanner.geometry.sizes)
        scanner.find(torch.arange(len(nodes), device=nodes.device))

    def step(self) -> Tensor:
        """Merge all mutual pairs and update the clusters whose nearest has changed; return the
        merges."""
        scanner = self.scanner
        pairs = self._mutual()
        assert len(pairs.kept), "no cluster is nearest to its nearest: a distance is not symmetric"
        has_lists = not scanner.is_few
        if has_lists:
            self._follow(pairs)
        made = self._merge(pairs)
        if has_lists:
            self._join(pairs)
        fresh = torch.cat([pairs.kept, self._stale(pairs)])
        if scanner.n_live < LIVE_SHARE * len(self.nodes):
            fresh = self.close_gaps()[fresh]
        if scanner.n_live > 1:
            scanner.find(fresh)
            self._update_nearest(fresh)
        return made

    def _mutual(self) -> Pairs:
        nearest = self.scanner.decision.nearest
        slots = torch.arange(len(nearest), device=nearest.device)
        kept = ((nearest[nearest] == slots) & (slots < nearest)).nonzero()[:, 0]
        gone = nearest[kept]
        sizes = self.scanner.geometry.sizes
        return Pairs(kept, gone, sizes[kept], sizes[gone], self.scanner.decision.distance[kept])

    def _merge(self, pairs: Pairs) -> Tensor:
        kept = pairs.kept
        gone = pairs.gone
        # Rounding may put a union below its parts, but a tree's heights must not fall.
        parts = torch.maximum(self.heights[kept], self.heights[gone])
        height = torch.maximum(pairs.distance, parts)
        made = as_merges(
            self.nodes[kept], self.nodes[gone], height, pairs.kept_sizes + pairs.gone_sizes
        )
        self.scanner.merge(kept, gone)
        self.heights[kept] = height
        self.nodes[kept] = self.next_node + torch.arange(len(kept), device=kept.device)
        self.next_node += len(kept)
        return made

    def _follow(self, pairs: Pairs) -> None:
        """Update all lists for the coming merges."""
        scanner = self.scanner
        sizes = scanner.geometry.sizes
        partners = Partners.of(pairs, sizes, scanner.floors, scanner.margins.eta)

        def work(index: Tensor, low: Tensor, outside: Tensor, own_sizes: Tensor) -> None:
            follow(Lists(index, low, outside), own_sizes, partners, scanner.margins)

        lists = scanner.lists
        scanner.workers.map_rows(
            work, lists.index, lists.low, lists.outside, sizes, at_most=scanner.chunk_rows
        )
        scanner.floors = scanner.margins.moved(partners.bystander_low(scanner.floors), sizes)

    def _join(self, pairs: Pairs) -> None:
        """Join the lists of merged clusters; chunks have separate rows."""
        scanner = self.scanner
        sizes = scanner.geometry.sizes
        live_sizes = sizes[scanner.is_live]
        span = (live_sizes.amin(), live_sizes.amax())

        def work(part: Tensor) -> None:
            some = pairs.take(part)
            left = scanner.lists.take(some.kept)
            right = scanner.lists.take(some.gone)
            floors = (scanner.floors[some.kept], scanner.floors[some.gone])
            joined = join(left, right, some, floors, sizes, span, scanner.margins)
            scanner.lists.put(some.kept, joined)

        every = torch.arange(len(pairs.kept), device=sizes.device)
        scanner.workers.map_rows(work, every, at_most=scanner.chunk_rows)

    def _stale(self, pairs: Pairs) -> Tensor:
        """Return the clusters that did not merge but whose nearest did."""
        nearest = self.scanner.decision.nearest
        is_merged = torch.zeros_like(self.scanner.is_live)
        is_merged[pairs.kept] = True
        is_merged[pairs.gone] = True
        stale = (is_merged[nearest] & ~is_merged & self.scanner.is_live).nonzero()[:, 0]
        # A dead slot is its own nearest, so that it is never part of a mutual pair.
        nearest[pairs.gone] = pairs.gone
        return stale

    def _update_nearest(self, fresh: Tensor) -> None:
        """Make each of the `fresh` clusters the nearest of its nearest, if it comes before that
        one's current nearest."""
        decision = self.scanner.decision
        target = decision.nearest[fresh]
        distance = decision.distance[fresh]
        least = decision.distance.scatter_reduce(0, target, distance, "amin")
        first = torch.where(least == decision.distance, decision.nearest, LAST)
        first.scatter_reduce_(
            0, target, torch.where(distance == least[target], fresh, LAST), "amin"
        )
        self.scanner.decision = Decision(first, least)

    def close_gaps(self) -> Tensor:
        """Renumber the live slots without gaps, in order; return the new number of every slot."""
        live, number = self.scanner.close_gaps()
        self.nodes = self.nodes[live]
        self.heights = self.heights[live]
        return number
