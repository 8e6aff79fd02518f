"""Ward's tree against scipy, against a greedy reference in numpy, and against itself under changes
that must not affect it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import is_valid_linkage, linkage

from shoal.clustering.neighbors import Neighbors
from shoal.clustering.products import BFLOAT16, FLOAT32, FLOAT64, TENSOR_TFLOAT32
from shoal.clustering.tree import Tree
from shoal.clustering.ward import linkage as entry
from shoal.clustering.ward.linkage import ward_linkage
from shoal.clustering.ward.scan import FEW, WIDTH
from shoal.errors import DataError

LADDERS = {
    "float64": (FLOAT64,),
    "float32": (FLOAT32, FLOAT64),
    "bfloat16": (BFLOAT16, FLOAT32, FLOAT64),
    "tensor cores": (TENSOR_TFLOAT32, FLOAT64),
}


@pytest.fixture(autouse=True, scope="module", params=["lists", "few", "scipy"])
def finder(request):
    """Run every test in three ways: with lists and scans to the end, with float64 products of all
    pairs once few clusters are left, and with scipy."""
    before = FEW.copy()
    usual = (entry.FEW_PRODUCTS, entry.MAX_TIED)
    if request.param == "lists":
        FEW.update(dict.fromkeys(before, 0))
    entry.FEW_PRODUCTS = 1 << 40 if request.param == "scipy" else 0
    entry.MAX_TIED = 0
    yield request.param
    FEW.update(before)
    entry.FEW_PRODUCTS, entry.MAX_TIED = usual


def clustered(n, d=16, seed=0, spread=0.3):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(max(2, n // 20), d))
    rows = centers[rng.integers(len(centers), size=n)] + spread * rng.normal(size=(n, d))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def halving_sum(terms):
    terms = list(terms)
    while len(terms) > 1:
        half = len(terms) // 2
        paired = [terms[i] + terms[half + i] for i in range(half)]
        if len(terms) % 2:
            paired[0] += terms[-1]
        terms = paired
    return terms[0]


def greedy(rows):
    """The definition: repeatedly merge the nearest of all pairs, with distances computed as the
    engine defines them."""
    scale = 2.0 ** -np.frexp(np.abs(rows).max())[1]
    clusters = {i: (row.astype(np.float64) * scale, 1.0, i) for i, row in enumerate(rows)}
    made = []
    while len(clusters) > 1:
        best = None
        for i, (ci, a, _) in clusters.items():
            for j, (cj, b, _) in clusters.items():
                if i < j:
                    d = halving_sum((ci - cj) ** 2) * ((2.0 * (a * b)) / (a + b))
                    if best is None or d < best[0]:
                        best = (d, i, j)
        d, i, j = best
        (ci, a, u) = clusters[i]
        (cj, b, v) = clusters.pop(j)
        clusters[i] = ((ci * a + cj * b) / (a + b), a + b, len(rows) + len(made))
        made.append([min(u, v), max(u, v), np.sqrt(d) / scale, a + b])
    return np.array(made)


def assert_every_merge_is_a_cheapest(Z, rows, rel=1e-9):
    """With ties there are many Ward trees; in each of them, every merge joins a pair at the
    smallest distance."""
    rows = rows.astype(np.float64)
    n = len(rows)
    center = dict(enumerate(rows))
    size = dict.fromkeys(range(n), 1)
    for step, (left, right, height, count) in enumerate(Z):
        live = np.array(list(center))
        c = np.stack([center[i] for i in live])
        s = np.array([size[i] for i in live], float)
        squared = ((c[:, None] - c[None]) ** 2).sum(-1) * 2 * s[:, None] * s / (s[:, None] + s)
        np.fill_diagonal(squared, np.inf)
        i = np.flatnonzero(live == left)[0]
        j = np.flatnonzero(live == right)[0]
        assert height == pytest.approx(np.sqrt(squared[i, j]), rel=rel, abs=1e-12)
        assert height <= np.sqrt(squared.min()) * (1 + rel) + 1e-12
        a = size.pop(int(left))
        b = size.pop(int(right))
        center[n + step] = (center.pop(int(left)) * a + center.pop(int(right)) * b) / (a + b)
        size[n + step] = a + b
        assert count == a + b


def assert_same_tree(ours, theirs):
    """Heights are equal, and so are flat clusters wherever heights are distinct."""
    assert is_valid_linkage(ours)
    np.testing.assert_allclose(ours[:, 2], theirs[:, 2], rtol=1e-9, atol=1e-12)
    a = Tree(ours)
    b = Tree(theirs)
    gaps = np.diff(np.r_[0.0, theirs[:, 2]])
    for step in np.flatnonzero(gaps > 1e-6 * theirs[:, 2])[-60:]:
        assert np.array_equal(a.cut(len(theirs) + 1 - step), b.cut(len(theirs) + 1 - step))


def test_the_tree_is_the_greedy_one(finder):
    """Trees are equal bit for bit, except that scipy rounds differently."""
    for n, d in [(2, 1), (3, 5), (20, 3), (35, 7)]:
        rows = np.random.default_rng(n).normal(size=(n, d))
        tolerance = 1e-12 if finder == "scipy" else 0
        np.testing.assert_allclose(ward_linkage(rows), greedy(rows), rtol=tolerance)


@pytest.mark.parametrize("n", [2, 3, 17, 18, 777, pytest.param(8000, marks=pytest.mark.slow)])
def test_the_tree_is_scipys(n):
    rows = clustered(n)
    assert_same_tree(ward_linkage(rows), linkage(rows.astype(np.float64), "ward"))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 60),
    d=st.integers(1, 9),
    decimals=st.sampled_from([0, 1, 12]),
    copies=st.integers(0, 20),
    offset=st.sampled_from([0.0, 1e3]),
    seed=st.integers(0, 2**20),
)
def test_every_merge_is_a_cheapest_one(n, d, decimals, copies, offset, seed):
    rng = np.random.default_rng(seed)
    rows = np.round(rng.normal(size=(n, d)), decimals) + offset
    rows = np.concatenate([rows, rows[rng.integers(n, size=copies)]])
    Z = ward_linkage(rows)
    assert is_valid_linkage(Z)
    # The subtraction is exact: all values are within a factor of two.
    assert_every_merge_is_a_cheapest(Z, rows - rows[0] if offset else rows)


@pytest.mark.slow
@pytest.mark.parametrize("ladder", LADDERS)
@pytest.mark.parametrize("kind", ["raw", "clumps", "far away", "duplicates"])
def test_no_precision_of_the_products_changes_a_bit(ladder, kind, monkeypatch):
    rows = clustered(400, d=24)
    # Squared distances of 1e-10 within a clump, which float32 products cannot resolve.
    if kind == "clumps":
        rng = np.random.default_rng(1)
        rows = rows[rng.integers(12, size=400)].astype(np.float64) + 1e-5 * rng.normal(
            size=(400, 24)
        )
    elif kind == "far away":  # not even float64 products resolve these
        rows = 1e-7 * rows.astype(np.float64)
        rows[:200] += 1.0
    elif kind == "duplicates":
        rows[300:] = rows[:100]
    expected = ward_linkage(rows)
    monkeypatch.setattr(entry, "precisions", lambda device: LADDERS[ladder])
    assert np.array_equal(ward_linkage(rows), expected)


@pytest.mark.slow
def test_memory_threads_and_list_length_do_not_change_a_bit(
    monkeypatch,
):
    rows = clustered(700, d=33)
    expected = ward_linkage(rows)
    for memory in (1, 100_003, 1 << 20):
        monkeypatch.setitem(entry.BLOCK_BYTES, "cpu", memory)
        assert np.array_equal(ward_linkage(rows), expected)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert np.array_equal(ward_linkage(rows), expected)
    finally:
        torch.set_num_threads(threads)
    for k in (1, 3, 40):
        monkeypatch.setitem(entry.N_LISTED, "cpu", k)
        assert np.array_equal(ward_linkage(rows), expected)


def test_blocks_of_columns_do_not_change_a_bit(monkeypatch):
    rows = clustered(120)
    expected = ward_linkage(rows)
    for width in (1, 37, 119):
        monkeypatch.setitem(WIDTH, "cpu", width)
        assert np.array_equal(ward_linkage(rows), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_and_tensors_of_every_float_give_one_tree(dtype):
    rows = clustered(120).astype(dtype)
    before = rows.copy()
    Z = ward_linkage(rows)
    assert Z.dtype == np.float64
    assert np.array_equal(Z, ward_linkage(torch.as_tensor(rows)))
    assert np.array_equal(Z, ward_linkage(rows.astype(np.float64)))
    assert np.array_equal(rows, before)


@pytest.mark.parametrize("factor", [2.0**-600, 2.0**400])
def test_a_power_of_two_scales_the_heights_and_nothing_else(factor):
    rows = clustered(60).astype(np.float64)
    Z = ward_linkage(rows)
    scaled = ward_linkage(rows * factor)
    assert np.array_equal(scaled[:, 2], Z[:, 2] * factor)
    assert np.array_equal(scaled[:, [0, 1, 3]], Z[:, [0, 1, 3]])


def test_equal_points_merge_at_height_zero_in_order():
    Z = ward_linkage(np.ones((6, 3)))
    assert Z.tolist() == [[0, 1, 0, 2], [2, 6, 0, 3], [3, 7, 0, 4], [4, 8, 0, 5], [5, 9, 0, 6]]
    assert is_valid_linkage(Z)


def test_growing_gaps_on_a_line_take_many_rounds_and_end():
    rows = np.cumsum(1.05 ** np.arange(250))[:, None]
    assert_same_tree(ward_linkage(rows), linkage(rows, "ward"))


def test_an_even_grid_with_ties_everywhere_ends():
    rows = np.stack(np.meshgrid(np.arange(12.0), np.arange(11.0)), -1).reshape(-1, 2)
    assert_every_merge_is_a_cheapest(ward_linkage(rows), rows)


def test_values_that_underflow_when_squared_still_make_a_tree():
    rows = np.array([[1.0, 0.0], [1.0, 1e-200], [1.0, 3e-200], [0.0, 1.0]])
    Z = ward_linkage(rows)
    assert is_valid_linkage(Z)
    assert Z[:2, 2].tolist() == [0, 0]


def test_one_row_has_an_empty_tree():
    assert ward_linkage(np.zeros((1, 3))).shape == (0, 4)


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((0, 3)),
        np.zeros((3, 0)),
        np.zeros(3),
        np.zeros((2, 2, 2)),
        np.array([["a", "b"]]),
        np.array([[0.0], [np.nan], [1.0]]),
        np.array([[np.inf], [0.0], [-np.inf]]),
        np.array([[1e200], [0.0]]),
        torch.tensor([[0.0], [torch.nan]]),
        torch.eye(4).to_sparse(),
        [[1.0], [2.0, 3.0]],
    ],
)
def test_bad_input_is_refused(rows):
    with pytest.raises(DataError):
        ward_linkage(rows)


@pytest.mark.parametrize("k", [1, 16, 150])
def test_exact_neighbors_of_the_rows_change_no_bit(k):
    rows = torch.as_tensor(clustered(400))
    rows[-40:] = rows[:40]
    best = (rows.double() @ rows.double().T).fill_diagonal_(-torch.inf).topk(k, 1)
    found = entry.link_rows(rows, Neighbors(best.indices, best.values))
    assert np.array_equal(found, ward_linkage(rows, device="cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["raw", "duplicates", "grid", "tight", "orthonormal"])
def test_the_gpu_gives_the_cpus_bits(kind):
    rows = clustered(3000, d=96)
    if kind == "duplicates":
        rows[2000:] = rows[:1000]
    elif kind == "grid":
        rows = np.random.default_rng(0).integers(0, 3, size=(1000, 5)).astype(np.float32)
    elif kind == "tight":  # a few places with rows 1e-7 apart
        rng = np.random.default_rng(0)
        rows = (rows[rng.integers(8, size=1000)] + 1e-7 * rng.normal(size=(1000, 96))).astype(
            np.float32
        )
    elif kind == "orthonormal":  # at equal distances, up to rounding
        rows = np.linalg.qr(np.random.default_rng(0).normal(size=(384, 384)))[0]
    expected = ward_linkage(rows, device="cpu")
    assert np.array_equal(ward_linkage(rows, device="cuda"), expected)
    assert np.array_equal(ward_linkage(torch.as_tensor(rows, device="cuda")), expected)


def test_half_precision_is_linked_as_float32():
    half = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float16)
    np.testing.assert_array_equal(ward_linkage(half), ward_linkage(half.astype(np.float32)))
