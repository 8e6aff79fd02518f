"""Handed-in neighbor lists: used when stated to be exact, never able to change the tree unless that is false."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from shoal.clustering.duplicates import matrix_hash, row_hashes
from shoal.clustering.ward.exact_neighbors import ExactNeighbors, as_exact_neighbors
from shoal.clustering.ward.linkage import ward_linkage
from shoal.clustering.ward.rounds import FEW, Rounds
from shoal.errors import UsageError

pytestmark = pytest.mark.usefixtures("many_rows")


def unit_rows(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(max(1, n // 15), 20, generator=generator)
    rows = centers[torch.randint(len(centers), (n,), generator=generator)] + 0.5 * torch.randn(
        n, 20, generator=generator
    )
    return torch.nn.functional.normalize(rows, dim=1)


def exact_lists(rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    products = rows.double() @ rows.double().T
    products.fill_diagonal_(-torch.inf)
    best = products.topk(k, 1)
    return best.indices, best.values


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each tree's start had to scan."""
    counts: list[int] = []
    scan = Rounds._scan
    monkeypatch.setitem(FEW, "cpu", 0)  # few clusters are put in a table and need no scan

    def counting(self: Rounds, rows: torch.Tensor, report: Callable[[int], None]) -> torch.Tensor:
        if self.n_live == len(self.heights) and not self.heights.any():  # nothing has merged
            counts.append(len(rows))
        return scan(self, rows, report)

    monkeypatch.setattr(Rounds, "_scan", counting)
    return counts


@pytest.mark.parametrize("k", [1, 4, 16])
@pytest.mark.parametrize("copies", [0, 40])
def test_exact_lists_spare_the_scan_and_give_the_same_bits(
    k: int, copies: int, scanned: list[int]
) -> None:
    rows = unit_rows(400)
    rows[400 - copies :] = rows[:copies]
    expected = ward_linkage(rows)
    found = ward_linkage(rows, neighbors=as_exact_neighbors(rows, *exact_lists(rows, k)))
    assert np.array_equal(found, expected)
    assert scanned[0] == 400 - copies
    assert scanned[1] < 100 or k == 1


def test_lists_of_another_matrix_are_not_used(scanned: list[int]) -> None:
    rows = unit_rows(300)
    other = unit_rows(300, seed=1)
    expected = ward_linkage(rows)
    neighbors = as_exact_neighbors(other, *exact_lists(other, 8))
    assert np.array_equal(ward_linkage(rows, neighbors=neighbors), expected)
    swapped = rows[torch.randperm(300, generator=torch.Generator().manual_seed(0))]
    assert np.array_equal(
        ward_linkage(rows, neighbors=as_exact_neighbors(swapped, *exact_lists(swapped, 8))),
        expected,
    )
    assert scanned == [300, 300, 300]


def test_lists_changed_after_the_fact_are_not_used(scanned: list[int]) -> None:
    rows = unit_rows(300)
    indices, similarities = exact_lists(rows, 8)
    neighbors = as_exact_neighbors(rows, indices, similarities)
    indices[5, 3] = (indices[5, 3] + 1) % 300
    assert np.array_equal(ward_linkage(rows, neighbors=neighbors), ward_linkage(rows))
    assert scanned == [300, 300]


def test_bare_row_numbers_are_harmless_even_when_wrong(scanned: list[int]) -> None:
    rows = unit_rows(200)
    expected = ward_linkage(rows)
    wrong = torch.randint(200, (200, 5), generator=torch.Generator().manual_seed(0))
    assert np.array_equal(ward_linkage(rows, neighbors=wrong), expected)
    assert np.array_equal(ward_linkage(rows, neighbors=wrong.numpy()), expected)
    assert scanned == [200, 200, 200]


@pytest.mark.parametrize(
    ("neighbors", "message"),
    [
        (np.zeros((9, 3), np.int64), r"found shape \(9, 3\), expected \(10, k\)"),
        (np.zeros(10, np.int64), "found shape"),
        (np.zeros((10, 10), np.int64), "k from 1 to 9"),
        (np.zeros((10, 0), np.int64), "k from 1 to 9"),
        (np.zeros((10, 3)), "expected int64"),
        (np.full((10, 3), 10), "outside 0 to 9"),
        (np.full((10, 3), -1), "outside 0 to 9"),
    ],
)
def test_lists_that_cannot_be_neighbors_are_refused(neighbors: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ward_linkage(unit_rows(10), neighbors=neighbors)


def test_only_float64_similarities_can_be_stated_to_be_exact() -> None:
    rows = unit_rows(30)
    indices, similarities = exact_lists(rows, 4)
    with pytest.raises(UsageError, match=r"expected \(30, 4\) torch\.float64"):
        as_exact_neighbors(rows, indices, similarities.float())
    assert isinstance(as_exact_neighbors(rows, indices, similarities), ExactNeighbors)


def test_lists_of_the_transpose_or_of_the_same_bits_in_another_type_are_not_used() -> None:
    rng = np.random.default_rng(0)
    rows = torch.as_tensor(rng.normal(size=(60, 60)).astype(np.float32))
    assert matrix_hash(row_hashes(rows)) != matrix_hash(row_hashes(rows.T.contiguous()))
    assert matrix_hash(row_hashes(rows)) != matrix_hash(row_hashes(rows.view(torch.float64)))
    swapped = rows.clone()
    swapped[3, 7] = rows[7, 3]
    swapped[7, 3] = rows[3, 7]
    assert matrix_hash(row_hashes(rows)) != matrix_hash(row_hashes(swapped))


@pytest.mark.slow
def test_a_tree_from_lists_of_the_transpose_is_right() -> None:
    """The first half of the rows is short and the second long in these columns, so that the lists mislead."""
    n = 300
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, n)).astype(np.float32)
    rows[: n // 2] *= 1e-3
    rows[n // 2 :, : n // 2] = 1 + 0.3 * rows[n // 2 :, : n // 2]
    points = torch.as_tensor(rows)
    products = (points.double() @ points.double().T).fill_diagonal_(-torch.inf)
    top = products.topk(16, dim=1)
    lists = as_exact_neighbors(points, top.indices, top.values)
    other = np.ascontiguousarray(rows.T)
    memory = 24 * n * 2  # no room for the table that needs no lists
    assert np.array_equal(
        ward_linkage(other, memory=memory, neighbors=lists), ward_linkage(other, memory=memory)
    )


@pytest.mark.slow
def test_lists_longer_than_needed_are_cut_and_give_the_same_tree() -> None:
    rng = np.random.default_rng(1)
    points = torch.as_tensor(
        rng.normal(size=(8, 20))[rng.integers(0, 8, 400)] + 0.5 * rng.normal(size=(400, 20))
    )
    products = (points @ points.T).fill_diagonal_(-torch.inf)
    top = products.topk(150, dim=1)
    memory = 24 * 400 * 2
    expected = ward_linkage(points, memory=memory)
    assert np.array_equal(
        ward_linkage(
            points, memory=memory, neighbors=as_exact_neighbors(points, top.indices, top.values)
        ),
        expected,
    )
