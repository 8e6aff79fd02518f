"""Neighbor lists after a round of merges: lows stay below the distances, and rise where the formula
says so."""

import numpy as np
import pytest
import torch

from shoal.clustering.products import FLOAT64, Workers
from shoal.clustering.ward import rounds, scan
from shoal.clustering.ward.bounds import Margins
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import Lists, Pairs, Partners, empty_lists, follow, join

MARGINS = Margins.of(5, 4.0)


def all_distances(geometry):
    slots = torch.arange(len(geometry.sizes))
    pairs = torch.cartesian_prod(slots, slots)
    distances = geometry.distances(pairs[:, 0], pairs[:, 1])
    return distances.view(len(slots), -1).fill_diagonal_(torch.inf)


def nearest_lists(geometry, k):
    """Return the k nearest of every cluster; the lows are the distances, less the rounding
    error."""
    low, index = all_distances(geometry).sort(1)
    low = MARGINS.low(low)
    return Lists(index[:, :k].contiguous(), low[:, :k].contiguous(), low[:, k].contiguous())


def mutual(geometry):
    distance, nearest = all_distances(geometry).min(1)
    slots = torch.arange(len(nearest))
    kept = ((nearest[nearest] == slots) & (slots < nearest)).nonzero()[:, 0]
    gone = nearest[kept]
    sizes = geometry.sizes
    return Pairs(kept, gone, sizes[kept], sizes[gone], distance[kept])


def floors_of(geometry, is_live=None, margins=MARGINS):
    """Return the floor of every cluster: the distance to its nearest, less the rounding error."""
    distance = all_distances(geometry)
    if is_live is not None:
        distance[:, ~is_live] = torch.inf
    return margins.low(distance.amin(1))


def check(lists, rows, geometry, is_live):
    """The distance to a listed cluster is at least its smallest low; to any other, at least
    `outside`."""
    distance = all_distances(geometry)
    for at, row in enumerate(rows.tolist()):
        for other in is_live.nonzero()[:, 0].tolist():
            if other != row:
                low = lists.low[at][lists.index[at] == other]
                low = low[torch.isfinite(low)]
                least = low.min() if len(low) else lists.outside[at]
                assert distance[row, other] >= least * (1 - 2 * MARGINS.eta)  # D may be η below δ


@pytest.mark.parametrize("seed", range(6))
def test_lows_stay_below_the_distances_when_listed_clusters_and_their_own_merge(seed):
    rng = np.random.default_rng(seed)
    sizes = torch.as_tensor(rng.integers(1, 5, size=40)).double()
    geometry = Geometry(torch.as_tensor(rng.normal(size=(40, 5))), sizes)
    lists = nearest_lists(geometry, 7)
    pairs = mutual(geometry)
    before = sizes.clone()
    assert len(pairs.kept) > 3
    partners = Partners.of(pairs, before, floors_of(geometry), MARGINS.eta)
    follow(lists, before, partners, MARGINS)
    floors = MARGINS.moved(partners.bystander_low(partners.floors), before)
    geometry.merge(pairs.kept, pairs.gone)
    is_live = torch.ones(40, dtype=torch.bool)
    is_live[pairs.gone] = False
    alone = is_live.clone()
    alone[pairs.kept] = False
    rest = alone.nonzero()[:, 0]
    check(lists.take(rest), rest, geometry, is_live)
    live = geometry.sizes[is_live]
    joined = join(
        lists.take(pairs.kept),
        lists.take(pairs.gone),
        pairs,
        (floors[pairs.kept], floors[pairs.gone]),
        geometry.sizes,
        (live.min(), live.max()),
        MARGINS,
    )
    assert not torch.isnan(joined.low).any()
    assert torch.isinf(joined.low[joined.index == pairs.kept[:, None]]).all()
    check(joined, pairs.kept, geometry, is_live)


# Rounding made coarse: a union may be stored a thousandth from where it is
COARSE = Margins(MARGINS.eta, 1e-3)


def test_lows_of_entries_stay_true_when_every_round_moves_unions_against_us():
    """In every round, unions are stored κ nearer to a large, distant cluster that merges with none
    and lists them all.

    If lows were not lowered for this at once, the Lance-Williams formula would double the error in
    every round.
    """
    n = 64
    rows = torch.zeros(n + 1, 2, dtype=torch.float64)
    rows[:n, 0] = torch.linspace(-0.5, 0.5, n)
    rows[n, 1] = 3.0
    sizes = torch.ones(n + 1, dtype=torch.float64)
    sizes[n] = 1e4
    geometry = Geometry(rows, sizes)
    live = torch.arange(n)
    first = geometry.distances(torch.full((n,), n), live)[None]
    lists = Lists(
        live[None].clone(), COARSE.low(first), torch.full((1,), torch.inf, dtype=torch.float64)
    )
    while len(live) > 1:
        kept = live[::2]
        gone = live[1::2]
        before = geometry.sizes.clone()
        pairs = Pairs(kept, gone, before[kept], before[gone], geometry.distances(kept, gone))
        is_live = torch.zeros(n + 1, dtype=torch.bool)
        is_live[live] = True
        floors = floors_of(geometry, is_live, COARSE)
        follow(lists, before[n:], Partners.of(pairs, before, floors, COARSE.eta), COARSE)
        geometry.merge(kept, gone)
        geometry.centroids[kept, 1] += COARSE.kappa
        live = kept
        true = geometry.distances(torch.full_like(kept, n), kept)
        lows = torch.stack([lists.low[0][lists.index[0] == slot].min() for slot in live.tolist()])
        assert (lows <= true).all()
        assert (lows > 0.5 * true).all()


@pytest.mark.parametrize("n_pairs", [1, 2], ids=["one pair merges", "both pairs merge"])
def test_what_is_outside_a_list_stays_true_when_unions_are_moved_against_us(n_pairs):
    """The corners of a tetrahedron have D = 1 between any two, between a corner and the union of
    two others, and between the unions of two pairs. Each union is stored κ nearer to the rest, and
    all lists are empty."""
    rise = 0.125**0.5
    rows = torch.tensor(
        [[-0.5, 0, -rise], [0.5, 0, -rise], [0, -0.5, rise], [0, 0.5, rise], [9, 9, 9]]
    ).double()
    geometry = Geometry(rows, torch.ones(5).double())
    ones = torch.ones(5).double()
    lists = Lists(torch.full((5, 1), 4), torch.full((5, 1), torch.inf).double(), COARSE.low(ones))
    kept = torch.tensor([0, 2])[:n_pairs]
    gone = torch.tensor([1, 3])[:n_pairs]
    pairs = Pairs(kept, gone, ones[kept], ones[gone], geometry.distances(kept, gone))
    partners = Partners.of(pairs, ones, COARSE.low(ones), COARSE.eta)
    follow(lists, ones, partners, COARSE)
    floors = COARSE.moved(partners.bystander_low(partners.floors), ones)
    geometry.merge(kept, gone)
    toward = geometry.centroids[2] - geometry.centroids[0]
    toward *= COARSE.kappa / toward.norm()
    geometry.centroids[0] += toward
    geometry.centroids[2] -= toward * (n_pairs - 1)
    live = geometry.sizes[torch.tensor([0, 2])]
    parts = (lists.take(kept), lists.take(gone))
    span = (live.min(), live.max())
    outside = join(
        *parts, pairs, (floors[kept], floors[gone]), geometry.sizes, span, COARSE
    ).outside
    outside = lists.outside[2:3] if n_pairs == 1 else outside
    assert 0.98 < outside[0] <= geometry.distances(torch.tensor([2]), torch.tensor([0])) < 1


def test_a_cluster_that_waits_is_not_taken_to_have_the_nearest_of_all(
    monkeypatch,
):
    """0 and 1 merge, and their union is stored κ nearer to 2 than 3 is, with which 2 waits to
    merge. The nearest of that union is another union, so 2 does not find out and merges with 3:
    lows of 0 must not assume that 3 is the nearest of 2."""
    kappa = 1e-3
    rise = 0.125**0.5
    e = torch.eye(8, dtype=torch.float64)
    s = 0.01 * kappa
    u = -rise * e[2]
    v = u + 0.5**0.5 * e[4]
    w = v + 0.5**0.5 * e[6]
    a = -0.5 * e[1] + (rise + s) * e[2]
    b = 0.5 * e[1] + (rise + s) * e[2]
    ends = [(u, e[0]), (v, e[5]), (w, e[7])]
    (u0, u1), (v0, v1), (w0, w1) = (
        (at - (0.5 - s) * way, at + (0.5 - s) * way) for at, way in ends
    )
    rows = torch.stack([u0, u1, a, b, b + (1 - s) * e[3], b + 1.5 * e[3], v0, v1, w0, w1])
    toward_b = (b - u) / (b - u).norm()
    aside = (a - u) - (a - u) @ toward_b * toward_b
    half_way = u - (a + b) / 2
    push = {
        0: aside / aside.norm(),
        6: 0.5 * e[6] - 0.75**0.5 * e[4],
        8: -e[6],
        2: half_way / half_way.norm(),
    }
    geometry = Geometry(rows, torch.ones(10).double())
    margins = Margins(Margins.of(8, 4.0).eta, kappa)
    exact = geometry.merge

    def merge_coarsely(kept, gone):
        exact(kept, gone)
        for slot in kept.tolist():
            geometry.centroids[slot] += kappa * push.get(slot, 0)

    monkeypatch.setattr(geometry, "merge", merge_coarsely)
    monkeypatch.setattr(rounds, "LIVE_SHARE", 0)
    monkeypatch.setitem(scan.FEW, "cpu", 0)
    empty = empty_lists(10, 9, rows.device)
    slots = torch.arange(10)
    clusters = scan.Clusters(geometry, slots, (FLOAT64,), margins, empty, 1 << 24, Workers())
    clusters.find(torch.arange(10))
    was_misled = False
    for _ in range(2):
        rounds.merge_round(clusters, 10)
        distance = all_distances(geometry)
        distance[:, ~clusters.is_live] = torch.inf
        live = clusters.is_live.nonzero()[:, 0]
        was_misled |= bool((clusters.decision.distance[live] > distance[live].amin(1)).any())
        check(clusters.lists.take(live), live, geometry, clusters.is_live)
        assert (clusters.floors[live] <= distance[live].amin(1)).all()
    assert was_misled  # otherwise the test proves nothing
