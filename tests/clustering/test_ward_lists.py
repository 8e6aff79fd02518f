"""What lists claim of distances is true after every round of merges."""

import numpy as np
import pytest
import torch

from shoal.clustering.ward import limits, table
from shoal.clustering.ward.bounds import FLOAT32, FLOAT64, Margins
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.rounds import Rounds
from shoal.clustering.ward.scan import Scanner
from shoal.clustering.ward.search import Search
from shoal.clustering.ward.workers import Workers


def rounds_of(rows: torch.Tensor, workers: Workers) -> Rounds:
    sizes = torch.as_tensor(np.random.default_rng(2).integers(1, 4, size=len(rows))).double()
    geometry = Geometry(rows, sizes)
    margins = Margins.of(rows.shape[1], float(torch.linalg.vector_norm(rows, dim=1).max()))

    def search() -> Search:
        return Search(Scanner(geometry, (FLOAT32, FLOAT64), margins, 5, 1 << 20, workers), None)

    return Rounds(geometry, margins, workers, 1 << 20, search, torch.arange(len(rows)), len(rows))


def assert_lists_are_true(rounds: Rounds) -> None:
    """No cluster is nearer than its own entry's low, or than the low of what is outside if it has none."""
    lists, geometry = rounds.finder.lists, rounds.geometry
    live = rounds.is_live.nonzero()[:, 0]
    for row in live.tolist():
        others = live[live != row]
        distances = geometry.distances(torch.full_like(others, row), others)
        index, low = lists.index[row], lists.low[row]
        for other, distance in zip(others.tolist(), distances.tolist(), strict=True):
            entries = low[(index == other) & torch.isfinite(low)]
            claim = entries.max() if len(entries) else lists.outside[row]
            assert float(claim) <= distance * (1 + 1e-12)


@pytest.mark.parametrize("patient", [1, 4096])
def test_lows_stay_true_through_all_rounds(patient: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PATIENT", patient)
    monkeypatch.setitem(table.FEW, "cpu", 0)
    rows = torch.as_tensor(np.random.default_rng(0).normal(size=(80, 6))) / 8
    with Workers(rows.device) as workers:
        rounds = rounds_of(rows, workers)
        rounds.start(lambda n_rows: None)
        assert_lists_are_true(rounds)
        n_claims = 0
        while rounds.n_live > 2:
            rounds.step()
            assert_lists_are_true(rounds)
            n_claims += int(torch.isfinite(rounds.finder.lists.low[rounds.is_live]).sum())
    assert rounds.n_rounds > 8
    assert n_claims > 500


def test_a_cluster_beyond_the_limit_waits_and_the_limit_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tight pairs and a far point: with the limit at the pairs' distance, the point's nearest is not looked for."""
    monkeypatch.setattr(limits, "PATIENT", 1)
    monkeypatch.setitem(table.FEW, "cpu", 0)
    rows = torch.tensor([[0.0], [0.01], [0.3], [0.31], [0.9]], dtype=torch.float64)
    with Workers(rows.device) as workers:
        rounds = rounds_of(rows, workers)
        rounds.start(lambda n_rows: None)
        assert rounds.nearest[4] == 4
        first = rounds.limit.value
        made = rounds.step()
        assert made.left.tolist() in ([0], [2], [0, 2])
        assert first < rounds.limit.value < torch.inf
        while rounds.n_live > 1:
            rounds.step()
