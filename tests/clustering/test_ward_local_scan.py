"""Rows closed in on each other: told apart about a center among them, without measuring everything."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage
from torch import Tensor

from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.clustering.ward.bounds import Margins
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.local_scan import LocalScanner, sharpen
from shoal.clustering.ward.rounds import FEW
from shoal.clustering.workers import Workers

pytestmark = pytest.mark.usefixtures("many_rows")


def tight_groups(n: int, n_groups: int, noise: float = 1e-6, n_columns: int = 48) -> np.ndarray:
    """Unit rows in float32, those of a group `noise` apart."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(n_groups, n_columns))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    rows = (
        centers[np.arange(n) % n_groups] + noise * rng.normal(size=(n, n_columns)) / n_columns**0.5
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many distances each call measured directly."""
    counts: list[int] = []
    distances = Geometry.distances
    all_distances = Geometry.all_distances

    def some(self: Geometry, rows: Tensor, others: Tensor) -> Tensor:
        counts.append(len(rows))
        return distances(self, rows, others)

    def whole(self: Geometry, rows: Tensor, columns: slice) -> Tensor:
        counts.append(len(rows) * len(self.sizes[columns]))
        return all_distances(self, rows, columns)

    monkeypatch.setattr(Geometry, "distances", some)
    monkeypatch.setattr(Geometry, "all_distances", whole)
    return counts


@pytest.mark.parametrize("n_tabled", [0, 600], ids=["lists", "table"])
def test_tight_groups_far_apart_give_scipys_tree_with_few_distances(
    n_tabled: int, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tight_groups(600, 4)
    monkeypatch.setitem(FEW, "cpu", n_tabled)
    ours = ward_linkage(rows, device=torch.device("cpu"))
    theirs = linkage(rows.astype(np.float64), "ward")
    np.testing.assert_allclose(ours[:, 2], theirs[:, 2], rtol=1e-9)
    for n_clusters in range(2, 300, 7):
        np.testing.assert_array_equal(Tree(ours).cut(n_clusters), Tree(theirs).cut(n_clusters))
    assert (
        sum(measured) < 600 * 150 / 2
    )  # half of the pairs within groups, let alone every round again


@pytest.mark.parametrize("memory", [1, 1 << 14, 1 << 24])
def test_a_local_scan_is_certain_and_its_lists_are_true(memory: int) -> None:
    """However few rows are looked at once. Rows 7 and 8 are dead, one cluster is larger than the others."""
    rows = torch.as_tensor(tight_groups(60, 3, n_columns=8)).double()
    sizes = torch.ones(60, dtype=torch.float64)
    sizes[20] = 5
    is_live = torch.ones(60, dtype=torch.bool)
    is_live[[7, 8]] = False
    geometry = Geometry(rows, sizes)
    margins = Margins.of(8, 1.01)
    open_rows = is_live.nonzero()[:, 0]
    seen = []
    local = LocalScanner(geometry, margins, is_live, rows.mean(0), 5, memory, Workers(rows.device))
    local.scan(open_rows, lambda *found: seen.append(found))
    assert torch.cat([found[0] for found in seen]).tolist() == open_rows.tolist()
    distance = geometry.all_distances(torch.arange(60), slice(0, 60)).fill_diagonal_(torch.inf)
    distance[:, ~is_live] = torch.inf
    for part, lists, decision in seen:
        assert decision.is_certain.all()
        assert decision.nearest.tolist() == distance[part].argmin(1).tolist()
        assert torch.equal(decision.distance, distance[part].amin(1))
        for at, row in enumerate(part.tolist()):
            bound = torch.full((60,), float(lists.outside[at]), dtype=torch.float64)
            bound[lists.index[at]] = lists.low[at]
            assert (margins.low(distance[row]) >= margins.bar(bound))[
                is_live & (torch.arange(60) != row)
            ].all()
        assert (lists.low[:, 0] > 0.9 * decision.distance).all()  # and of use


def test_sharpened_lows_never_exceed_the_distance_and_come_close_to_it() -> None:
    rows = torch.as_tensor(tight_groups(12, 2, n_columns=5)).double()
    sizes = torch.arange(1, 13).double()
    geometry = Geometry(rows, sizes)
    everyone = torch.arange(12)
    low = torch.zeros(12, 12, dtype=torch.float64)
    sharpen(
        geometry,
        everyone,
        low,
        (everyone[:, None] % 2 == everyone % 2) & (everyone[:, None] != everyone),
    )
    for i in range(12):
        for j in range(12):
            if i != j and i % 2 == j % 2:
                gaps = [
                    Fraction(a) - Fraction(b)
                    for a, b in zip(rows[i].tolist(), rows[j].tolist(), strict=True)
                ]
                true = sum(gap**2 for gap in gaps) * 2 * (i + 1) * (j + 1) / (i + j + 2)
                assert Fraction(999, 1000) * true < Fraction(float(low[i, j])) <= true
            else:
                assert low[i, j] == 0


@pytest.mark.parametrize("noise", [1e-13, 1e-14, 1e-15])
def test_rows_a_rounding_apart_give_one_tree_whatever_the_memory(noise: float) -> None:
    """Ten places, and distances of the size of what a merge rounds: bounds come down to zero, and stay numbers."""
    rng = np.random.default_rng(33)
    rows = rng.normal(size=(10, 2))[np.arange(90) % 10] + noise * rng.normal(size=(90, 2))
    expected = ward_linkage(rows)
    assert np.array_equal(ward_linkage(rows, memory=24 * 90 * torch.get_num_threads()), expected)
    np.testing.assert_array_equal(Tree(expected).cut(10), np.arange(90) % 10)


def test_equally_far_rows_tie_as_the_table_lets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One-hot rows: everything ties with everything, and nothing but measuring helps."""
    expected = ward_linkage(np.eye(40))
    monkeypatch.setitem(FEW, "cpu", 0)
    assert np.array_equal(ward_linkage(np.eye(40)), expected)
