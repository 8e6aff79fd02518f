"""Neighbor lists whose bounds outlive merges: most nearest clusters are found without a scan.

Every cluster keeps k others with a low (see `bounds.py`) for each, and one low for everything
outside the list. When listed clusters merge, their entries follow them; when a cluster merges
itself, the lists of the two parts are joined. Both times Lance and Williams' formula carries the
lows over, and the low for what is outside stays true because Ward is reducible. Distances in D
dimensions are computed only for listed clusters whose low does not exceed the best one found.

R rows at work, k entries of a list. A void entry has low = inf. Of several entries that lead to one
cluster the smallest low is true; the others are harmless, since the cluster is measured before
their larger lows are relied on.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.duplicates import Groups
from shoal.clustering.neighbors import Neighbors
from shoal.clustering.ward.bounds import Margins, merged_low, weight
from shoal.clustering.ward.exact import Geometry

LAST = torch.iinfo(torch.int64).max

MOST = torch.finfo(torch.float64).max
"""Stands for no distance yet: above any other, and still below the bar of nobody, which is inf."""

PASSES = 2
"""Entries measured one at a time, smallest low first, before all that are left are measured at
once."""


@dataclass(slots=True)
class Lists:
    """Neighbors of some clusters: (R, k) slots, (R, k) lows of their distances, (R,) a low for all
    others."""

    index: Tensor
    low: Tensor
    outside: Tensor

    @classmethod
    def void(cls, rows: Tensor, k: int) -> "Lists":
        """Lists of some rows that hold nobody, and know nothing of anybody."""
        low = torch.full((len(rows), k), torch.inf, dtype=torch.float64, device=rows.device)
        return cls(rows[:, None].repeat(1, k), low, torch.zeros_like(low[:, 0]))

    @classmethod
    def of_best(cls, index: Tensor, low: Tensor, outside: Tensor) -> "Lists":
        """Lists of all but the last of the best, (R, k+1) slots and lows."""
        return cls(index[:, :-1], low[:, :-1].contiguous(), outside)

    def take(self, rows: Tensor | slice) -> "Lists":
        """The lists of some rows; of a slice, not a copy."""
        return Lists(self.index[rows], self.low[rows], self.outside[rows])

    def put(self, rows: Tensor, lists: "Lists") -> None:
        """Overwrite the lists of some rows; no entry's low exceeds what is outside, as `follow`
        needs."""
        self.index[rows] = lists.index
        void = torch.isinf(lists.low)
        self.low[rows] = torch.minimum(lists.low, lists.outside[:, None]).masked_fill_(
            void, torch.inf
        )
        self.outside[rows] = lists.outside


def ready_lists(
    neighbors: Neighbors, groups: Groups, geometry: Geometry, scale: float, most: int
) -> Lists:
    """Lists of the distinct rows from exact neighbors of all rows: no row outside a list has a
    larger inner product.

    Of longer lists than `most` the first entries are kept: what they cost grows with the square of
    their length.
    """
    first = groups.first
    sizes = geometry.sizes
    index = groups.member[neighbors.indices[:, :most].to(first.device)[first]]  # (M, k)
    products = neighbors.similarities[:, : most + 1].to(first.device)[first] * scale * scale
    similarity = products[:, :most]  # (M, k); products are (M, k) or (M, k + 1)
    half = torch.linalg.vector_norm(geometry.centroids, dim=1).square() / 2  # (M,)
    # Two products and the norms, each off by γ.
    slack = 2 * (geometry.centroids.shape[1] + 8) * 2.0**-52 * (2 * half.max())
    gap = (2 * (half[:, None] + half[index] - similarity - slack)).clamp(min=0)  # (M, k) squared
    own = torch.arange(len(index), device=index.device)[:, None]
    low = (weight(sizes[:, None], sizes[index]) * gap).masked_fill(index == own, torch.inf)
    last = (2 * (half + half.min() - products[:, -1] - slack)).clamp(min=0)
    return Lists(index, low, weight(sizes, sizes.min()) * last)


@dataclass(slots=True)
class Decision:
    """The nearest cluster of some rows: slot and D; (R,) each."""

    nearest: Tensor
    distance: Tensor

    def take(self, rows: Tensor) -> "Decision":
        """The decisions of some rows."""
        return Decision(self.nearest[rows], self.distance[rows])

    def put(self, rows: Tensor, decision: "Decision") -> None:
        """Overwrite the decisions of some rows."""
        self.nearest[rows] = decision.nearest
        self.distance[rows] = decision.distance


def settle(
    geometry: Geometry, margins: Margins, rows: Tensor, lists: Lists
) -> tuple[Decision, Tensor]:
    """Find the nearest listed cluster of each row, ties to the lowest slot, and whether it is
    certain (R,); sharpens the lows of `lists` in place.

    A winner is certain when it is nearer than the low of what is outside. Entries that are not
    below that low cannot make it so, and are not measured.
    """
    values = torch.full_like(lists.low, torch.inf)  # (R, k) D where measured
    best = torch.full_like(lists.outside, MOST)
    bar = margins.bar(lists.low)  # inf: void, or measured
    outside = margins.bar(lists.outside)
    at = torch.arange(len(rows), device=rows.device)  # rows still open
    for _ in range(PASSES):
        ahead, lead = bar[at].min(1)
        other = lists.index[at, lead]
        distance = geometry.distances(rows[at], other).masked_fill_(torch.isinf(ahead), torch.inf)
        is_same = lists.index[at] == other[:, None]  # several entries may lead to one cluster
        values[at] = torch.where(is_same, distance[:, None], values[at])
        bar[at] = bar[at].masked_fill_(is_same, torch.inf)
        best[at] = torch.minimum(best[at], distance)
        least = bar[at].amin(1)
        at = at[(least <= best[at]) & (least < outside[at])]
        if not len(at):
            break
    row, column = ((bar[at] <= best[at, None]) & (bar[at] < outside[at, None])).nonzero(
        as_tuple=True
    )
    row = at[row]
    values[row, column] = geometry.distances(rows[row], lists.index[row, column])
    best = values.amin(1)
    nearest = lists.index.masked_fill(values != best[:, None], LAST).amin(1)
    lists.low = torch.where(torch.isfinite(values), margins.low(values), lists.low)
    return Decision(nearest, best), best.clamp(max=MOST) < outside


def nearest_rival(geometry: Geometry, rows: Tensor, is_rival: Tensor) -> tuple[Decision, Tensor]:
    """Measure every rival (R, M) of some rows: the nearest, ties to the lowest slot, and D of all
    rivals in order."""
    row, other = is_rival.nonzero(as_tuple=True)
    measured = geometry.distances(rows[row], other)
    least = torch.full_like(rows, torch.inf, dtype=torch.float64).scatter_reduce(
        0, row, measured, "amin"
    )
    ties = torch.where(measured == least[row], other, LAST)
    nearest = torch.full_like(rows, LAST).scatter_reduce(0, row, ties, "amin")
    return Decision(nearest, least), measured


@dataclass(frozen=True, slots=True)
class Pairs:
    """Merges of one round: `gone` goes into `kept`, their sizes before, and D between them; (R,)
    each."""

    kept: Tensor
    gone: Tensor
    kept_sizes: Tensor
    gone_sizes: Tensor
    distance: Tensor


@dataclass(frozen=True, slots=True)
class Partners:
    """The same merges by slot, (M,) each: whom each cluster merges with, itself if nobody, and D;
    sizes, floors before.

    And what they do to bystanders, in ascending order of height: (R,) D, (R+1,) the smallest low
    that the union of a pair as high or higher may have, inf at the end.
    """

    partner: Tensor
    distance: Tensor
    sizes: Tensor
    floors: Tensor
    heights: Tensor
    least: Tensor

    @classmethod
    def of(cls, pairs: Pairs, sizes: Tensor, floors: Tensor, eta: float) -> "Partners":
        """Spread pairs over all slots; `sizes` and `floors` (M,) are those before the round."""
        partner = torch.arange(len(sizes), device=sizes.device)
        distance = torch.zeros_like(sizes)
        both = torch.cat([pairs.kept, pairs.gone])
        partner[both] = torch.cat([pairs.gone, pairs.kept])
        distance[both] = pairs.distance.repeat(2)
        heights, order = (pairs.distance * (1 + 2 * eta)).sort()
        floor = torch.minimum(floors[pairs.kept], floors[pairs.gone])[order]
        union = (2 * floor * (1 - eta) - heights * (1 + eta)).clamp_(min=0)
        least = torch.cat([union, union.new_full((1,), torch.inf)]).flip(0).cummin(0).values.flip(0)
        return cls(partner, distance, sizes, floors, heights, least)

    def bystander_low(self, low: Tensor) -> Tensor:
        """What is left of a low for clusters that merge with each other: all of it, but where it is
        next to D."""
        return torch.minimum(low, self.least[torch.searchsorted(self.heights, low, right=True)])


def follow(lists: Lists, own_sizes: Tensor, partners: Partners, margins: Margins) -> None:
    """Lead the entries of `lists` to the unions that hold them after a round, and renew their lows;
    in place.

    `own_sizes` (R,) are those of the lists' clusters before the round. The partner of a listed
    cluster has the low of its own entry or, as no entry's is higher, that of what is outside.
    Entries that lead to the cluster's own union are for `join` to drop.
    """
    partner = partners.partner[lists.index]  # (R, k)
    # (E,) each
    row, column = ((partner != lists.index) & torch.isfinite(lists.low)).nonzero(as_tuple=True)
    mine = lists.index[row, column]
    other = partner[row, column]
    outside = lists.outside[row]
    is_other = lists.index[row] == other[:, None]  # (E, k)
    theirs = torch.where(is_other, lists.low[row], outside[:, None]).amin(1)
    sizes = partners.sizes
    floors = partners.floors
    h = partners.distance[mine]
    x = torch.maximum(lists.low[row, column], floors[mine])
    y = torch.maximum(theirs, floors[other])
    low = merged_low(x, y, h, sizes[mine], sizes[other], own_sizes[row], margins.eta)
    lists.low[row, column] = margins.moved(torch.minimum(low, outside), own_sizes[row])
    lists.outside.copy_(margins.moved(partners.bystander_low(lists.outside), own_sizes))
    torch.minimum(lists.index, partner, out=lists.index)  # the lower slot is kept


def join(
    left: Lists,
    right: Lists,
    pairs: Pairs,
    floors: tuple[Tensor, Tensor],
    sizes: Tensor,
    span: tuple[Tensor, Tensor],
    margins: Margins,
) -> Lists:
    """The lists of unions from the lists of their parts; these, and their floors, have followed the
    round's merges.

    `sizes` of all slots and `span`, the smallest and the largest live size, are those after the
    round. The low for what is outside both lists is monotone in the outsider's size, so the ends of
    the span bound it.
    """
    a = pairs.kept_sizes[:, None]
    b = pairs.gone_sizes[:, None]
    h = pairs.distance[:, None]
    k = left.index.shape[1]
    own = pairs.kept[:, None]
    left_low = left.low.masked_fill(left.index == own, torch.inf)
    right_low = right.low.masked_fill(right.index == own, torch.inf)
    out_left = left.outside[:, None]
    out_right = right.outside[:, None]
    match = left.index[:, :, None] == right.index[:, None, :]  # (R, k, k)
    both = right_low[:, None, :].expand(match.shape).masked_fill(~match, torch.inf).amin(2)
    both = torch.where(match.any(2), both, out_right)  # (R, k) low of δ(right part, left's entry)
    left_floor = floors[0][:, None]
    right_floor = floors[1][:, None]

    def union_low(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
        x = torch.maximum(x, left_floor)
        y = torch.maximum(y, right_floor)
        return margins.moved(merged_low(x, y, h, a, b, c, margins.eta), a + b)

    first = union_low(left_low, both, sizes[left.index])
    second = union_low(out_left, right_low, sizes[right.index]).masked_fill_(
        match.any(1), torch.inf
    )
    outside = torch.minimum(*(union_low(out_left, out_right, c) for c in span))[:, 0]
    low, order = torch.cat([first, second], 1).topk(k + 1, 1, largest=False)  # ascending
    index = torch.cat([left.index, right.index], 1).gather(1, order[:, :k])
    return Lists(index, low[:, :k].contiguous(), torch.minimum(outside, low[:, k]))
