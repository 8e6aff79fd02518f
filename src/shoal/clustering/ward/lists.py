"""Neighbor lists whose bounds stay valid under merges, so that most nearest clusters are found
without a scan.

Every cluster has a list of k others with a low (see `bounds.py`) for each, and one low for all
clusters outside the list. When listed clusters merge, their entries follow them; when the cluster
itself merges, the lists of the two parts are joined. Lance and Williams' formula gives the new
lows, and the low for clusters outside stays valid because Ward is reducible. Distances in D
dimensions are computed only for listed clusters whose low is not above the best distance so far.

Shapes: R rows per batch, k entries per list. An empty entry has low = inf. Of several entries for
one cluster only the smallest low is valid.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.neighbors import Neighbors
from shoal.clustering.products import Rows
from shoal.clustering.ward.bounds import Margins, merged_low, weight
from shoal.clustering.ward.exact import Geometry

LAST = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Lists(Rows):
    """Neighbor lists of some clusters: (R, k) slots, (R, k) lows of their distances, (R,) a low for
    all others."""

    index: Tensor
    low: Tensor
    outside: Tensor

    @classmethod
    def of_lowest(cls, index: Tensor, low: Tensor, k: int) -> "Lists":
        """Return lists of the k lowest of (R, E) entries; the next one bounds the others."""
        lowest, order = low.topk(k + 1, 1, largest=False)  # ascending
        index = index.gather(1, order[:, :k])
        return cls(index, lowest[:, :k].contiguous(), lowest[:, k].contiguous())


def empty_lists(n: int, k: int, device: torch.device) -> Lists:
    """Return empty lists of n rows, with the low 0 for all others."""
    low = torch.full((n, k), torch.inf, dtype=torch.float64, device=device)
    return Lists(torch.zeros_like(low, dtype=torch.int64), low, torch.zeros_like(low[:, 0]))


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
    itself = torch.arange(len(index), device=index.device)[:, None]
    low = (weight(sizes[:, None], sizes[index]) * gap).masked_fill(index == itself, torch.inf)
    last = (2 * (half + half.min() - products[:, -1] - slack)).clamp(min=0)
    return Lists(index, low, weight(sizes, sizes.min()) * last)


@dataclass(frozen=True)
class Decision(Rows):
    """The nearest cluster of some rows: slot and D; (R,) each."""

    nearest: Tensor
    distance: Tensor


def settle(
    geometry: Geometry, margins: Margins, rows: Tensor, lists: Lists
) -> tuple[Decision, Tensor]:
    """Return the nearest listed cluster of each row, ties to the lowest slot, and whether it is
    certain (R,); raises the lows of measured entries in `lists`.

    It is certain if it is nearer than the low for clusters outside the list. Entries that are not
    below that low cannot be certain, and are not measured.
    """
    values = torch.full_like(lists.low, torch.inf)  # (R, k) D where measured
    bar = margins.bar(lists.low)
    outside = margins.bar(lists.outside)

    def measure(row: Tensor, column: Tensor) -> Tensor:
        values[row, column] = geometry.distances(rows[row], lists.index[row, column])
        return values.amin(1)

    least, lead = bar.min(1)
    row = (least < outside).nonzero()[:, 0]
    best = measure(row, lead[row])
    bar[row, lead[row]] = torch.inf
    may_be_nearest = (bar <= best[:, None]) & (bar < outside[:, None])
    best = measure(*may_be_nearest.nonzero(as_tuple=True))
    nearest = lists.index.masked_fill(values != best[:, None], LAST).amin(1)
    torch.where(torch.isfinite(values), margins.low(values), lists.low, out=lists.low)
    return Decision(nearest, best), best < outside


@dataclass(frozen=True)
class Pairs(Rows):
    """Merges of one round, `gone` into `kept`: their slots, sizes before, and D; (R,) each."""

    kept: Tensor
    gone: Tensor
    kept_sizes: Tensor
    gone_sizes: Tensor
    distance: Tensor


@dataclass(frozen=True)
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
    is_listed = torch.isfinite(lists.low)
    row, column = ((partner != lists.index) & is_listed).nonzero(as_tuple=True)  # (E,) each
    mine = lists.index[row, column]
    other = partner[row, column]
    outside = lists.outside[row]
    is_other = (lists.index[row] == other[:, None]) & is_listed[row]  # (E, k)
    theirs = torch.where(is_other, lists.low[row], outside[:, None]).amin(1)
    sizes = partners.sizes
    floors = partners.floors
    h = partners.distance[mine]
    x = torch.maximum(lists.low[row, column], floors[mine])
    y = torch.maximum(theirs, floors[other])
    low = merged_low(x, y, h, sizes[mine], sizes[other], own_sizes[row], margins.eta)
    low = margins.moved(torch.minimum(low, outside), own_sizes[row])
    # Of two entries of one union, one is enough.
    lists.low[row, column] = low.masked_fill_(is_other.any(1) & (other < mine), torch.inf)
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
    slots = pairs.kept[:, None]
    left_low = left.low.masked_fill(left.index == slots, torch.inf)
    right_low = right.low.masked_fill(right.index == slots, torch.inf)
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
    lists = Lists.of_lowest(
        torch.cat([left.index, right.index], 1), torch.cat([first, second], 1), left.index.shape[1]
    )
    return Lists(lists.index, lists.low, torch.minimum(outside, lists.outside))
