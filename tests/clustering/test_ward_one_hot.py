"""Rows that are all equally far apart: a table of distances, minima of groups, and one entry instead of all columns."""

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage as scipy_linkage

from shoal.clustering.ward import local_scan, rounds, ward_linkage
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.group_minima import WIDTH, GroupMinima
from shoal.clustering.ward.table import HeightTable

pytestmark = pytest.mark.usefixtures("many_rows")


def one_hot(n: int) -> np.ndarray:
    rows = np.zeros((n, n + 3), np.float32)
    rows[np.arange(n), np.random.default_rng(0).permutation(n + 3)[:n]] = 1
    return rows


@pytest.mark.parametrize("n_columns", [1, 2, 3, 5, 7, 13, 64, 101])
def test_one_entry_instead_of_all_columns_gives_the_same_bits(n_columns: int) -> None:
    draw = torch.Generator().manual_seed(n_columns)
    rows = torch.zeros(40, n_columns, dtype=torch.float64)
    rows[torch.arange(30), torch.randint(n_columns, (30,), generator=draw)] = torch.rand(
        30, generator=draw
    ).double()
    rows[30:] = torch.rand(10, n_columns, generator=draw)
    sizes = torch.randint(1, 5, (40,), generator=draw).double()
    everyone = torch.arange(40)
    plain = Geometry(rows.clone(), sizes.clone())
    single = Geometry(rows.clone(), sizes.clone())
    single.look_for_singles()
    for columns in (slice(0, 40), slice(5, 37)):
        assert torch.equal(
            single.all_distances(everyone, columns), plain.all_distances(everyone, columns)
        )
    for each in (plain, single):
        each.merge(torch.tensor([2, 8]), torch.tensor([3, 35]))
    assert torch.equal(
        single.all_distances(everyone, slice(0, 40)), plain.all_distances(everyone, slice(0, 40))
    )


def test_minima_of_groups_find_the_first_smallest_entry_after_any_merge() -> None:
    n = 2 * WIDTH + 9
    draw = torch.Generator().manual_seed(0)
    heights = torch.randint(0, 4, (n, n), generator=draw).double()
    dead = torch.zeros(n)
    minima = GroupMinima(heights, dead)
    everyone = torch.arange(n)
    for kept, gone in ((0, n - 1), (3, WIDTH), (WIDTH + 1, 7)):
        fresh = torch.randint(0, 4, (n,), generator=draw).double()
        heights[kept] = fresh
        heights[:, kept] = fresh
        dead[gone] = torch.inf
        minima.renew(torch.tensor([kept]), torch.tensor([gone]))
        slots, least = minima.first(everyone)
        expected = (heights + dead).numpy()
        assert np.array_equal(slots, expected.argmin(1))
        assert np.array_equal(least, expected.min(1))


def test_the_tree_is_the_same_with_and_without_a_table_of_distances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = one_hot(40)
    usual = ward_linkage(rows, device="cpu")  # few enough for a table from the start
    kinds: list[bool] = []
    made = HeightTable.__init__

    def note(self: HeightTable, *given: object) -> None:
        kinds.append(given[-1] is True)
        made(self, *given)

    monkeypatch.setattr(HeightTable, "__init__", note)
    monkeypatch.setitem(rounds.FEW, "cpu", 5)
    assert np.array_equal(ward_linkage(rows, device="cpu"), usual)
    assert kinds == [
        True
    ]  # the first scan has found that all are tied, and 40 rows fit into a table
    monkeypatch.setattr(local_scan, "TIED_SHARE", 2)
    assert np.array_equal(ward_linkage(rows, device="cpu"), usual)
    assert kinds == [True, False]  # ties are measured, row by row, until five clusters are left


def test_all_heights_are_those_of_scipy() -> None:
    rows = one_hot(120)
    found = ward_linkage(rows, device="cpu")
    expected = scipy_linkage(rows, "ward")
    np.testing.assert_allclose(found[:, 2], expected[:, 2], rtol=1e-12)
    assert found[-1, 3] == 120


def test_a_row_with_several_entries_is_not_taken_for_one_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.vstack([one_hot(60), np.ones((3, 63), np.float32) / 8, np.zeros((1, 63), np.float32)])

    def never(self: Geometry) -> None:
        self._singles = None

    usual = ward_linkage(rows, device="cpu")
    monkeypatch.setattr(Geometry, "look_for_singles", never)
    assert np.array_equal(ward_linkage(rows, device="cpu"), usual)
