"""Neighbor lists whose bounds stay valid under merges, so that most nearest clusters are found
without a scan.

Every cluster has a list of k others with a low (see `bounds.py`) for each, and one low for all
clusters outside the list. When listed clusters merge, their entries follow them; when the cluster
itself merges, the lists of the two parts are joined. Lance and Williams' formula gives the new
lows, and the low for clusters outside stays valid because Ward is reducible. Distances in D
dimensions are computed only for listed clusters whose low is not above the best distance so far.

Shapes: R rows per batch, k entries per list. An empty entry has low = inf. Of several entries for
one cluster only the smallest low is valid; the others do no harm, because the cluster is measured
before their larger lows are used.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.neighbors import Neighbors
from shoal.clustering.ward.bounds import Margins, merged_low, weight
from shoal.clustering.ward.exact import Geometry

LAST = torch.iinfo(torch.int64).max

MOST = torch.finfo(torch.float64).max
"""Initial best distance: above any other, and below the bar of an empty entry, which is inf."""

PASSES = 2
"""Entries measured one at a time, smallest low first, before the rest are measured together."""


@dataclass(slots=True)
class Lists:
    """Neighbor lists of some clusters: (R, k) slots, (R, k) lows of their distances, (R,) a low for
    all others."""

    index: Tensor
    low: Tensor
    outside: Tensor

    @classmethod
    def empty(cls, rows: Tensor, k: int) -> "Lists":
        """Return empty lists of some rows, with the low 0 for all others."""
        low = torch.full((len(rows), k), torch.inf, dtype=torch.float64, device=rows.device)
        return cls(rows[:, None].repeat(1, k), low, torch.zeros_like(low[:, 0]))

    @classmethod
    def of_best(cls, index: Tensor, low: Tensor, outside: Tensor) -> "Lists":
        """Return lists of all but the last of the best, (R, k+1) slots and lows."""
        return cls(index[:, :-1], low[:, :-1].contiguous(), outside)

    def take(self, rows: Tensor | slice) -> "Lists":
        """Return the lists of some rows; views for a slice."""
        return Lists(self.index[rows], self.low[rows], self.outside[rows])

    def put(self, rows: Tensor, lists: "Lists") -> None:
        """Overwrite the lists of some rows, limiting lows to that for outside, as `follow`
        requires."""
        self.index[rows] = lists.index
        is_empty = torch.isinf(lists.low)
        self.low[rows] = torch.minimum(lists.low, lists.outside[:, None]).masked_fill_(
            is_empty, torch.inf
        )
        self.outside[rows] = lists.outside


def ready_lists(
    neighbors: Neighbors,
    first: Tensor,
    group: Tensor,
    geometry: Geometry,
    scale: float,
    most: int,
) -> Lists:
    """Return lists of the distinct rows `first` (M,) from exact neighbors of all rows, whose
    `group` (N,) is their distinct row.

    At most `most` neighbors of a row are used: the cost of lists grows with the square of their
    length."""
    sizes = geometry.sizes
    index = group[neighbors.indices[:, :most].to(first.device)[first]]  # (M, k)
    products = neighbors.similarities[:, : most + 1].to(first.device)[first] * scale * scale
    similarity = products[:, :most]  # (M, k); products are (M, k) or (M, k + 1)
    half = torch.linalg.vector_norm(geometry.centroids, dim=1).square() / 2  # (M,)
    # Errors of two products and of the norms, γ each.
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
        """Return the decisions of some rows."""
        return Decision(self.nearest[rows], self.distance[rows])

    def put(self, rows: Tensor, decision: "Decision") -> None:
        """Overwrite the decisions of some rows."""
        self.nearest[rows] = decision.nearest
        self.distance[rows] = decision.distance


def settle(
    geometry: Geometry, margins: Margins, rows: Tensor, lists: Lists
) -> tuple[Decision, Tensor]:
    """Return the nearest listed cluster of each row, ties to the lowest slot, and whether it is
    certain (R,); raises the lows of measured entries in `lists`.

    It is certain if it is nearer than the low for clusters outside the list. Entries that are not
    below that low cannot be certain, and are not measured.
    """
    values = torch.full_like(lists.low, torch.inf)  # (R, k) D where measured
    best = torch.full_like(lists.outside, MOST)
    bar = margins.bar(lists.low)  # inf: empty, or measured
    outside = margins.bar(lists.outside)
    at = torch.arange(len(rows), device=rows.device)  # rows still open
    for _ in range(PASSES):
        ahead, lead = bar[at].min(1)
        other = lists.index[at, lead]
        distance = geometry.distances(rows[at], other).masked_fill_(torch.isinf(ahead), torch.inf)
        is_same = lists.index[at] == other[:, None]  # several entries may be of one cluster
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
    """Measure every rival (R, M) of some rows; return the nearest, ties to the lowest slot, and D
    of all rivals in order."""
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
    """Merges of one round, `gone` into `kept`: their slots, sizes before, and D; (R,) each."""

    kept: Tensor
    gone: Tensor
    kept_sizes: Tensor
    gone_sizes: Tensor
    distance: Tensor


@dataclass(frozen=True, slots=True)
class Partners:
    """The merges of one round by slot, (M,) each: the partner of each cluster, itself without one,
    and D; sizes and floors before.

    For lows of clusters that do not merge: the heights D (R,) ascending, and the smallest low
    (R+1,) of the union of a pair at least that high, inf at the end.
    """

    partner: Tensor
    distance: Tensor
    sizes: Tensor
    floors: Tensor
    heights: Tensor
    least: Tensor

    @classmethod
    def of(cls, pairs: Pairs, sizes: Tensor, floors: Tensor, eta: float) -> "Partners":
        """Return pairs by slot, from the `sizes` and `floors` (M,) before the round."""
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
        """Return a low for the unions of clusters that have the given low; it is lower only if
        that is close to D."""
        return torch.minimum(low, self.least[torch.searchsorted(self.heights, low, right=True)])


def follow(lists: Lists, own_sizes: Tensor, partners: Partners, margins: Margins) -> None:
    """Replace the entries of `lists` by the unions that hold them after a round, and update their
    lows; in place.

    `own_sizes` (R,) are those of the lists' clusters before the round. The partner of a listed
    cluster has the low of its entry or, without one, that for clusters outside, which no entry
    exceeds. `join` drops entries of the cluster's own union.
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
    torch.minimum(lists.index, partner, out=lists.index)  # a union has the lower slot


def join(
    left: Lists,
    right: Lists,
    pairs: Pairs,
    floors: tuple[Tensor, Tensor],
    sizes: Tensor,
    span: tuple[Tensor, Tensor],
    margins: Margins,
) -> Lists:
    """Return the lists of unions from the lists and `floors` of their parts, which have followed
    the round's merges.

    `sizes` of all slots and `span`, the smallest and the largest live size, are those after the
    round. The low for clusters outside both lists is monotone in their size, so the ends of the
    span bound it.
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
