"""Neighbor lists whose bounds outlive merges: most nearest clusters are found without a scan.

Every cluster keeps k others with a low (see `bounds.py`) for each, and one low for everything outside the list. After a
round of merges Lance and Williams' formula carries all of them over: `follow` where listed clusters merged, `join`
where the cluster did itself and the lists of its two parts become one. Distances in D dimensions are computed only for
listed clusters whose low does not exceed the best one found.

R rows at work, k entries of a list. A void entry has low = inf.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.ward.bounds import Margins, merged_low
from shoal.clustering.ward.exact import Geometry

LAST = torch.iinfo(torch.int64).max

PASSES = 4
"""Entries measured one at a time, smallest low first, before all that are left are measured at once."""


@dataclass(slots=True)
class Lists:
    """Neighbors of some clusters: (R, k) slots, (R, k) lows of their distances, (R,) a low for all others."""

    index: Tensor
    low: Tensor
    outside: Tensor

    def take(self, rows: Tensor) -> "Lists":
        """The lists of some rows."""
        return Lists(self.index[rows], self.low[rows], self.outside[rows])

    def put(self, rows: Tensor, lists: "Lists") -> None:
        """Overwrite the lists of some rows."""
        self.index[rows], self.low[rows], self.outside[rows] = lists.index, lists.low, lists.outside

    def floor(self) -> Tensor:
        """(R,) a low of every other cluster, listed or not."""
        return torch.minimum(self.low.amin(1), self.outside)


@dataclass(slots=True)
class Decision:
    """The nearest cluster of some rows: slot and D, and whether it is certain; (R,) each."""

    nearest: Tensor
    distance: Tensor
    is_certain: Tensor

    def take(self, rows: Tensor) -> "Decision":
        """The decisions of some rows."""
        return Decision(self.nearest[rows], self.distance[rows], self.is_certain[rows])

    def put(self, rows: Tensor, decision: "Decision") -> None:
        """Overwrite the decisions of some rows."""
        self.nearest[rows], self.distance[rows] = decision.nearest, decision.distance
        self.is_certain[rows] = decision.is_certain


def settle(
    geometry: Geometry,
    margins: Margins,
    rows: Tensor,
    lists: Lists,
    n_rounds: int,
    limit: float,
    *,
    patience: float = torch.inf,
) -> Decision:
    """Find the nearest listed cluster of each row, ties to the smallest key; sharpens the lows of `lists` in place.

    A winner is certain when it is nearer than the low of what is outside. Where nothing lies within `limit`, that alone
    is made certain and the distance is some number beyond it. A row that is not so far and has more than `patience`
    entries left is given up: a scan costs less.
    """
    sizes = geometry.sizes[rows]
    values = torch.full_like(lists.low, torch.inf)  # (R, k) D where measured
    bar = torch.full_like(lists.outside, limit)  # what the others must be proven to exceed
    low = lists.low.clone()  # inf: void, or measured
    at = torch.arange(len(rows), device=rows.device)  # rows still open
    for _ in range(PASSES):
        ahead, lead = low[at].min(1)
        is_open = ~margins.certain(bar[at], ahead, sizes[at], n_rounds)
        at, lead = at[is_open], lead[is_open]
        if not len(at):
            break
        distance = geometry.distances(rows[at], lists.index[at, lead])
        values[at, lead], low[at, lead] = distance, torch.inf
        bar[at] = torch.minimum(bar[at], distance)
    rival = ~margins.certain(bar[at, None], low[at], sizes[at, None], n_rounds)
    given_up = ~margins.certain(bar[at], lists.outside[at], sizes[at], n_rounds) & (rival.sum(1) > patience)
    row, column = (rival & ~given_up[:, None]).nonzero(as_tuple=True)
    row = at[row]
    values[row, column] = geometry.distances(rows[row], lists.index[row, column])
    best = values.amin(1)
    keys = geometry.tie_keys(rows[:, None], lists.index).masked_fill_(values != best[:, None], LAST)
    nearest = lists.index.gather(1, keys.argmin(1, keepdim=True))[:, 0]
    lists.low = torch.where(torch.isfinite(values), margins.low(values), lists.low)
    is_certain = margins.certain(best.clamp(max=limit), lists.outside, sizes, n_rounds)
    is_certain[at[given_up]] = False
    return Decision(nearest, best, is_certain)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Merges of one round: `gone` goes into `kept`, their sizes before, and D between them; (R,) each."""

    kept: Tensor
    gone: Tensor
    kept_sizes: Tensor
    gone_sizes: Tensor
    distance: Tensor

    def take(self, rows: slice) -> "Pairs":
        """Some of the pairs."""
        return Pairs(
            self.kept[rows], self.gone[rows], self.kept_sizes[rows], self.gone_sizes[rows], self.distance[rows]
        )


@dataclass(frozen=True, slots=True)
class Fates:
    """What a round of merges does to each slot: whom it merges with (-1: nobody), its size before, D; (M,) each."""

    partner: Tensor
    size: Tensor
    distance: Tensor

    @classmethod
    def of(cls, pairs: Pairs, sizes: Tensor) -> "Fates":
        """From the pairs and the sizes after the round."""
        kept, gone = pairs.kept, pairs.gone
        partner = torch.full_like(sizes, -1, dtype=torch.int64)
        partner[kept], partner[gone] = gone, kept
        size, distance = sizes.clone(), torch.zeros_like(sizes)
        size[kept] = pairs.kept_sizes
        distance[kept] = distance[gone] = pairs.distance
        return cls(partner, size, distance)


def follow(lists: Lists, own_sizes: Tensor, fates: Fates, eta: float) -> None:
    """Let the entries of lists lead to what they have become, in place; `own_sizes` (R,) are those before the round.

    What a list says of a merge is δ >= low for the listed part, and for the other part its own low where that is listed
    too, else the low of what is outside.
    """
    row, column = (fates.partner[lists.index] >= 0).nonzero(as_tuple=True)  # (E,)
    slot = lists.index[row, column]
    mate = fates.partner[slot]
    low = lists.low[row]  # (E, k)
    mates_low = low.masked_fill(lists.index[row] != mate[:, None], torch.inf).amin(1)
    has_mate = torch.isfinite(mates_low)
    other = torch.where(has_mate, mates_low, lists.outside[row])
    a, b, h = fates.size[slot], fates.size[mate], fates.distance[slot]
    union = merged_low(lists.low[row, column], other, h, a, b, own_sizes[row], eta)
    lists.low[row, column] = union.masked_fill_(has_mate & (mate < slot), torch.inf)  # one entry is enough
    lists.index[row, column] = torch.minimum(slot, mate)


def join(left: Lists, right: Lists, pairs: Pairs, sizes: Tensor, span: tuple[Tensor, Tensor], eta: float) -> Lists:
    """The lists of unions from the lists of their parts, which `follow` has brought up to date.

    `sizes` of all slots and `span`, the smallest and the largest live size, are those after the round. The low for what
    is outside both lists is monotone in the outsider's size, so the ends of the span bound it.
    """
    a, b, h = pairs.kept_sizes[:, None], pairs.gone_sizes[:, None], pairs.distance[:, None]
    k = left.index.shape[1]
    own = pairs.kept[:, None]
    left_low = left.low.masked_fill(left.index == own, torch.inf)
    right_low = right.low.masked_fill(right.index == own, torch.inf)
    out_left, out_right = left.outside[:, None], right.outside[:, None]
    is_entry = torch.isfinite(left_low)[:, :, None] & torch.isfinite(right_low)[:, None, :]
    match = (left.index[:, :, None] == right.index[:, None, :]) & is_entry  # (R, k, k)
    both = right_low[:, None, :].expand(match.shape).masked_fill(~match, torch.inf).amin(2)
    both = torch.where(match.any(2), both, out_right)  # (R, k) low of δ(right part, left's entry)
    first = merged_low(left_low, both, h, a, b, sizes[left.index], eta)
    second = merged_low(out_left, right_low, h, a, b, sizes[right.index], eta).masked_fill_(match.any(1), torch.inf)
    outside = torch.minimum(*(merged_low(out_left, out_right, h, a, b, c, eta) for c in span))[:, 0]
    low, order = torch.cat([first, second], 1).topk(k + 1, 1, largest=False)  # ascending
    index = torch.cat([left.index, right.index], 1).gather(1, order[:, :k])
    return Lists(index, low[:, :k].contiguous(), torch.minimum(outside, low[:, k]))
