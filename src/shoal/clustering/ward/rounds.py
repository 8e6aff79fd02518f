"""Ward's merges in rounds: all mutually nearest pairs of clusters are merged together.

Each cluster is stored in one of M slots, ordered by smallest leaf; the slot of an absorbed cluster
is dead until slots are renumbered. D is the squared Ward height of a pair.

Ward is reducible, so the greedy algorithm would merge such pairs too, one after the other. Pairs
are ordered by (D, lower slot, higher slot), and each cluster takes its first pair in that order.
Hence the first pair of all is always mutual, and every round merges, even with ties. If clusters a,
b and c are equally far apart, rounding may put the union of a and b slightly nearer to c than a and
b were. If c is the nearest neighbor of the union, the union becomes the nearest neighbor of c.
Otherwise c keeps its old nearest neighbor, which may be farther away than the union by a rounding
error, until that neighbor merges.
"""

import torch
from torch import Tensor

from shoal.clustering.ward.lists import LAST, Decision, Lists, Pairs, Partners, follow, join
from shoal.clustering.ward.scan import Clusters

# Slots are renumbered when less than this share of them is live; renumbering copies all arrays, so
# doing it in every round would cost more
LIVE_SHARE = 0.8


def as_merges(left: Tensor, right: Tensor, distance: Tensor, sizes: Tensor) -> Tensor:
    """Return merges as rows of scipy's format, (R, 4) float64: two nodes, D (scipy has its root),
    and the size of the union."""
    return torch.stack([left.double(), right.double(), distance, sizes], 1)


def merge_round(clusters: Clusters, next_node: int) -> Tensor:
    """Merge all mutually nearest pairs, numbered from `next_node`, and update the clusters whose
    nearest neighbor has changed; return the merges."""
    nearest = clusters.decision.nearest
    slots = torch.arange(len(nearest), device=nearest.device)
    kept = ((nearest[nearest] == slots) & (slots < nearest)).nonzero()[:, 0]
    gone = nearest[kept]
    assert len(kept), "no two clusters are mutually nearest: a distance is not symmetric"
    sizes = clusters.geometry.sizes
    pairs = Pairs(kept, gone, sizes[kept], sizes[gone], clusters.decision.distance[kept])
    has_lists = not clusters.are_few
    if has_lists:
        _follow(clusters, pairs)
    # Rounding may put a union below its parts, but a tree's heights must not fall.
    parts = torch.maximum(clusters.heights[kept], clusters.heights[gone])
    height = torch.maximum(pairs.distance, parts)
    nodes = clusters.nodes
    made = as_merges(nodes[kept], nodes[gone], height, pairs.kept_sizes + pairs.gone_sizes)
    clusters.merge(kept, gone)
    clusters.heights[kept] = height
    nodes[kept] = next_node + torch.arange(len(kept), device=kept.device)
    if has_lists:
        _join(clusters, pairs)
    changed = torch.cat([kept, _stale(clusters, pairs)])
    if clusters.n_live < LIVE_SHARE * len(clusters.nodes):
        changed = clusters.close_gaps()[changed]
    if clusters.n_live > 1:
        clusters.find(changed)
        _update_nearest(clusters, changed)
    return made


def _follow(clusters: Clusters, pairs: Pairs) -> None:
    """Update all lists for the coming merges."""
    sizes = clusters.geometry.sizes
    margins = clusters.margins
    partners = Partners.of(pairs, sizes, clusters.floors, margins.eta)
    lists = clusters.lists
    clusters.workers.map_rows(
        lambda index, low, outside, own_sizes: follow(
            Lists(index, low, outside), own_sizes, partners, margins
        ),
        *(lists.index, lists.low, lists.outside, sizes),
        at_most=clusters.chunk_rows,
    )
    # A floor is a lower bound on a cluster's distance to all others; unions may lower it.
    clusters.floors = margins.moved(partners.bystander_low(clusters.floors), sizes)


def _join(clusters: Clusters, pairs: Pairs) -> None:
    """Join the lists of merged clusters; chunks write to disjoint rows, so they can run in
    parallel."""
    sizes = clusters.geometry.sizes
    lists = clusters.lists
    live_sizes = sizes[clusters.is_live]
    span = (live_sizes.amin(), live_sizes.amax())

    def work(part: Tensor) -> None:
        some = pairs.take(part)
        floors = (clusters.floors[some.kept], clusters.floors[some.gone])
        left = lists.take(some.kept)
        right = lists.take(some.gone)
        lists.put(some.kept, join(left, right, some, floors, sizes, span, clusters.margins))

    every = torch.arange(len(pairs.kept), device=sizes.device)
    clusters.workers.map_rows(work, every, at_most=clusters.chunk_rows)


def _stale(clusters: Clusters, pairs: Pairs) -> Tensor:
    """Return the clusters that did not merge but whose nearest neighbor did."""
    nearest = clusters.decision.nearest
    is_merged = torch.zeros_like(clusters.is_live)
    is_merged[pairs.kept] = True
    is_merged[pairs.gone] = True
    stale = (is_merged[nearest] & ~is_merged & clusters.is_live).nonzero()[:, 0]
    # A dead slot is its own nearest neighbor, so that it is never part of a mutual pair.
    nearest[pairs.gone] = pairs.gone
    return stale


def _update_nearest(clusters: Clusters, changed: Tensor) -> None:
    """Update the clusters that `changed` clusters have as nearest neighbors.

    If b is the nearest neighbor of a `changed` cluster a, and a comes before b's current nearest
    neighbor in the order of pairs, a becomes b's nearest neighbor.
    """
    decision = clusters.decision
    target = decision.nearest[changed]
    distance = decision.distance[changed]
    least = decision.distance.scatter_reduce(0, target, distance, "amin")
    first = torch.where(least == decision.distance, decision.nearest, LAST)
    first.scatter_reduce_(0, target, torch.where(distance == least[target], changed, LAST), "amin")
    clusters.decision = Decision(first, least)
