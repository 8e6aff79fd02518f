"""Lists through a round of merges: their lows stay below the distances, and rise where the formula says so."""

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.clustering.ward.bounds import Margins
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import Lists, Pairs, Partners, follow, join, settle

MARGINS = Margins.of(5, 4.0)


def all_distances(geometry: Geometry) -> Tensor:
    m = len(geometry.sizes)
    return geometry.all_distances(torch.arange(m), slice(0, m)).fill_diagonal_(torch.inf)


def nearest_lists(geometry: Geometry, k: int) -> Lists:
    """The k nearest of every cluster, with the distances themselves, less a rounding, as lows."""
    low, index = all_distances(geometry).sort(1)
    low = MARGINS.low(low)
    return Lists(index[:, :k].contiguous(), low[:, :k].contiguous(), low[:, k].contiguous())


def mutual(geometry: Geometry) -> Pairs:
    distance, nearest = all_distances(geometry).min(1)
    slots = torch.arange(len(nearest))
    kept = ((nearest[nearest] == slots) & (slots < nearest)).nonzero()[:, 0]
    gone, sizes = nearest[kept], geometry.sizes
    return Pairs(kept, gone, sizes[kept], sizes[gone], distance[kept])


def check(lists: Lists, rows: Tensor, geometry: Geometry, is_live: Tensor) -> None:
    """Whatever is listed is not below its smallest low, whatever is not listed is not below `outside`."""
    distance = all_distances(geometry)
    for at, row in enumerate(rows.tolist()):
        for other in is_live.nonzero()[:, 0].tolist():
            if other != row:
                low = lists.low[at][lists.index[at] == other]
                low = low[torch.isfinite(low)]
                assert distance[row, other] >= (low.min() if len(low) else lists.outside[at]) * (1 - 16 * MARGINS.eta)


@pytest.mark.parametrize("seed", range(6))
def test_lows_stay_below_the_distances_when_listed_clusters_and_their_own_merge(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = torch.as_tensor(rng.integers(1, 5, size=40)).double()
    geometry = Geometry(torch.as_tensor(rng.normal(size=(40, 5))), sizes)
    lists, pairs, before = nearest_lists(geometry, 7), mutual(geometry), sizes.clone()
    assert len(pairs.kept) > 3
    follow(lists, before, Partners.of(pairs, before), MARGINS.eta)
    geometry.merge(pairs.kept, pairs.gone)
    is_live = torch.ones(40, dtype=torch.bool)
    is_live[pairs.gone] = False
    alone = is_live.clone()
    alone[pairs.kept] = False
    rest = alone.nonzero()[:, 0]
    check(lists.take(rest), rest, geometry, is_live)
    live = geometry.sizes[is_live]
    joined = join(
        lists.take(pairs.kept), lists.take(pairs.gone), pairs, geometry.sizes, (live.min(), live.max()), MARGINS.eta
    )
    assert torch.isinf(joined.low[joined.index == pairs.kept[:, None]]).all()
    check(joined, pairs.kept, geometry, is_live)


def test_a_list_that_holds_both_parts_knows_the_distance_of_their_union() -> None:
    """On a line: 0 and 1 merge at D = 1. From 5 they were 25 and 16 away, their union is 2·2·1/3 · 4.5² = 27."""
    geometry = Geometry(torch.tensor([[0.0], [1.0], [5.0]]).double(), torch.ones(3).double())
    lists, pairs = nearest_lists(geometry, 1), mutual(geometry)
    lists = Lists(
        torch.tensor([[1, 2], [0, 2], [1, 0]]), torch.tensor([[1.0, 25], [1, 16], [16, 25]]).double(), lists.outside
    )
    lists.outside.fill_(torch.inf)
    follow(lists, geometry.sizes, Partners.of(pairs, geometry.sizes), 0.0)
    assert lists.index[2].tolist() == [0, 0]
    assert lists.low[2].tolist() == [27.0, 27.0]


def test_a_partner_outside_the_list_counts_with_what_is_outside() -> None:
    """As above, but 5 has only 1 in its list and knows that all others are at least 20 away: (2·16 + 2·20 - 1) / 3,
    which is more than 20, so that 20 stays."""
    geometry = Geometry(torch.tensor([[0.0], [1.0], [5.0]]).double(), torch.ones(3).double())
    lists = Lists(
        torch.tensor([[1], [0], [1]]), torch.tensor([[1.0], [1], [16]]).double(), torch.full((3,), 20.0).double()
    )
    follow(lists, geometry.sizes, Partners.of(mutual(geometry), geometry.sizes), 0.0)
    assert lists.index[2].tolist() == [0]
    assert lists.low[2].tolist() == [20.0]


def test_two_entries_that_lead_to_one_cluster_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = Geometry(torch.tensor([[0.0], [1.0], [5.0]]).double(), torch.ones(3).double())
    measured = []
    distances = geometry.distances

    def counted(rows: Tensor, others: Tensor) -> Tensor:
        measured.extend(others.tolist())
        return distances(rows, others)

    monkeypatch.setattr(geometry, "distances", counted)
    lists = Lists(torch.tensor([[0, 0, 1]]), torch.tensor([[1.0, 2.0, 3.0]]).double(), torch.tensor([40.0]).double())
    decision = settle(geometry, MARGINS, torch.tensor([2]), lists, 0)
    assert sorted(measured) == [0, 1]
    assert decision.nearest.tolist() == [1]
    assert decision.distance.tolist() == [16.0]
    assert decision.is_certain.tolist() == [True]


def test_nothing_more_is_measured_for_a_list_that_cannot_win() -> None:
    """The first entry is 25 away, and something outside may be as near as 9: what is listed beyond that cannot help."""
    geometry = Geometry(torch.tensor([[0.0], [1.0], [5.0]]).double(), torch.ones(3).double())
    lists = Lists(torch.tensor([[0, 1]]), torch.tensor([[1.0, 9.0]]).double(), torch.tensor([9.0]).double())
    decision = settle(geometry, MARGINS, torch.tensor([2]), lists, 0)
    assert decision.distance.tolist() == [25.0]
    assert decision.is_certain.tolist() == [False]
