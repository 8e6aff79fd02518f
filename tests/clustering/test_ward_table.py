"""The table of few clusters: whatever it holds and whenever it takes over, the tree has the same
bits."""

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage

from shoal.clustering.products import FLOAT32, FLOAT64
from shoal.clustering.ward.linkage import ward_linkage
from shoal.clustering.ward.rounds import FEW
from shoal.clustering.ward.table import FEW_EXACT, HeightTable

pytestmark = pytest.mark.usefixtures("many_rows")

CPU = torch.device("cpu")
"""Another device has other limits."""


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the table was filled with, in order: a precision of products, or None, the distances
    themselves."""
    seen: list[object] = []
    fill = HeightTable._fill
    monkeypatch.setattr(
        HeightTable, "_fill", lambda table, what: seen.append(what) or fill(table, what)
    )
    return seen


def spread_out(n: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, 16)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_float32_decides_rows_that_are_spread_out(filled: list[object]) -> None:
    ward_linkage(spread_out(300), device=CPU)
    assert filled == [FLOAT32]


def test_ties_everywhere_make_the_table_hold_the_distances_themselves(filled: list[object]) -> None:
    ward_linkage(np.eye(100), device=CPU)
    assert filled == [FLOAT32, FLOAT64, None]


@pytest.mark.parametrize("spread", [1e-4, 1e-7])
def test_a_table_that_float32_cannot_decide_is_computed_in_float64(
    spread: float, filled: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups so tight that float32 products of their rows differ by rounding alone."""
    rows = spread * np.random.default_rng(0).normal(size=(400, 8))
    rows[::2] += 1
    Z = ward_linkage(rows, device=CPU)
    assert filled[:2] == [FLOAT32, FLOAT64]
    monkeypatch.setitem(FEW, "cpu", 0)
    assert np.array_equal(ward_linkage(rows, device=CPU), Z)
    np.testing.assert_allclose(Z[:, 2], linkage(rows, "ward")[:, 2], rtol=1e-7)


@pytest.mark.slow
def test_the_table_may_take_over_at_any_number_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    # With ties and duplicates.
    rows = np.concatenate([spread_out(300), np.round(spread_out(100) * 4) / 4])
    expected = ward_linkage(rows)
    for few in (0, 1, 2, 3, 50, 399):
        monkeypatch.setitem(FEW, "cpu", few)
        assert np.array_equal(ward_linkage(rows), expected)
    for few in (1, 2, 50, 399):
        monkeypatch.setitem(FEW_EXACT, "cpu", few)
        assert np.array_equal(ward_linkage(rows), expected)
