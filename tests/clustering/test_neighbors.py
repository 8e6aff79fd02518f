import pytest
import torch

from shoal.clustering import neighbors as module
from shoal.clustering import products, sums
from shoal.clustering.neighbors import Neighbors, _rounded, k_nearest
from shoal.clustering.sums import similarities
from small_points import at


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=1)


@pytest.fixture
def points():
    return unit(torch.randn(60, 24, generator=torch.Generator().manual_seed(0)))


def slow_k_nearest(queries, bank, k, exclude=None):
    """Compute all similarities, then sort each row by (-similarity, index)."""
    everything = torch.arange(len(bank)).expand(len(queries), -1)
    scores = similarities(queries, bank, everything)
    if exclude is not None:
        for row, left_out in enumerate(exclude.tolist()):
            if left_out >= 0:
                scores[row, left_out] = -torch.inf
    order = [
        sorted(range(len(bank)), key=lambda j, r=row: (-scores[r, j].item(), j))[:k]
        for row in range(len(scores))
    ]
    indices = torch.tensor(order)
    return Neighbors(indices, scores.gather(1, indices))


def assert_same(found, expected):
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.similarities, expected.similarities)


@pytest.mark.parametrize("k", [1, 8, 59])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbors_are_those_of_a_full_sort(points, k, dtype):
    rows = points.to(dtype)
    own = torch.arange(60)
    assert_same(k_nearest(rows, rows, k, exclude=own), slow_k_nearest(rows, rows, k, own))


def test_neighbors_do_not_depend_on_threads_or_chunks(points, monkeypatch):
    expected = k_nearest(points, points, 5)
    monkeypatch.setitem(sums.CHUNK_ELEMENTS, "cpu", 100)
    monkeypatch.setitem(module.BLOCK_BYTES, "cpu", 1000)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert_same(k_nearest(points, points, 5), expected)
    finally:
        torch.set_num_threads(threads)


def test_neighbors_do_not_depend_on_the_order_of_rows(points):
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    own = torch.arange(60)
    plain = k_nearest(points, points, 5, exclude=own)
    shuffled = k_nearest(points[order], points[order], 5, exclude=own)
    assert torch.equal(order[shuffled.indices], plain.indices[order])
    assert torch.equal(shuffled.similarities, plain.similarities[order])


def test_ties_go_to_the_lowest_index():
    """All six bank rows are equal, so the k nearest are the first k."""
    bank = at(40, 40, 40, 40, 40, 40)
    assert k_nearest(at(0, 40), bank, 3).indices.tolist() == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-7, 1e-5])
def test_crowds_of_near_duplicates_are_told_apart(points, noise):
    """30 copies of a point differ by less than the float32 error bound, so float64 products decide
    which 5 are nearest."""
    shake = noise * torch.randn(30, 24, generator=torch.Generator().manual_seed(2))
    bank = torch.cat([points, points[:1] + shake])
    own = torch.arange(90)
    assert_same(
        k_nearest(bank, bank, 5, exclude=own, block_rows=11), slow_k_nearest(bank, bank, 5, own)
    )


def test_rows_of_any_length_are_ranked_by_inner_product():
    rows = (
        torch.randn(50, 8, generator=torch.Generator().manual_seed(3))
        * torch.logspace(-6, 6, 50)[:, None]
    )
    assert_same(k_nearest(rows, rows, 4), slow_k_nearest(rows, rows, 4))


def test_the_raw_search_finds_the_same_where_nothing_is_close(points):
    own = torch.arange(60)
    raw = k_nearest(points, points, 5, exclude=own, exact=False)
    assert torch.equal(raw.indices, k_nearest(points, points, 5, exclude=own).indices)
    assert raw.similarities.dtype == torch.float32


def test_a_lower_matmul_precision_set_by_the_caller_changes_nothing(points):
    expected = k_nearest(points, points, 5)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert_same(k_nearest(points, points, 5), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def with_tiles(monkeypatch):
    """Try bfloat16 first, whatever the CPU and the size; return the list to which each product
    appends its bits and rows."""
    tried: list[tuple[int, int]] = []

    def rounded(rows, precision):
        tried.append((precision.bits, len(rows)))
        return _rounded(rows, precision)

    monkeypatch.setattr(module, "FEW_PRODUCTS", 0)
    monkeypatch.setattr(module, "SMALL_BANK", 0)
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda device: True)
    monkeypatch.setattr(module, "_rounded", rounded)
    return tried


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 300.0])
def test_bfloat16_proposes_and_changes_no_bit(monkeypatch, dtype, scale):
    """400 rows in 20 clumps: the first product settles most queries, some need the second, and
    copies the third."""
    generator = torch.Generator().manual_seed(5)
    clumps = torch.randn(20, 64, generator=generator).repeat(20, 1)
    bank = unit(clumps + 0.8 * torch.randn(400, 64, generator=generator)).to(dtype) * scale
    bank[380:] = bank[0]
    bank[300:330] = bank[299] + 1e-4 * scale * torch.randn(30, 64, generator=generator)
    own = torch.arange(400)
    expected = k_nearest(bank, bank, 8, exclude=own)
    assert_same(expected, slow_k_nearest(bank, bank, 8, own))
    tried = with_tiles(monkeypatch)
    assert_same(k_nearest(bank, bank, 8, exclude=own, block_rows=90), expected)
    by_query = tried[2:]  # the first two are the bank in both formats
    assert sum(n for bits, n in by_query if bits == 8) == 400
    assert 0 < sum(n for bits, n in by_query if bits == 24) < 200


@pytest.mark.parametrize("n_copies", [1, 3])
def test_neighbors_found_by_groups_are_those_of_a_full_sort(points, monkeypatch, n_copies):
    """With groups of 2 columns, 60 rows take many groups; copies tie, and ties go to the lowest
    index."""
    monkeypatch.setitem(products.GROUP, "cpu", 2)
    bank = points.repeat(n_copies, 1)
    own = torch.arange(len(bank))
    for block_rows in (7, len(bank)):
        found = k_nearest(bank, bank, 3, exclude=own, block_rows=block_rows)
        assert_same(found, slow_k_nearest(bank, bank, 3, own))


@pytest.mark.parametrize("exact", [True, False])
def test_no_queries_have_no_neighbors(points, exact):
    found = k_nearest(points[:0], points, 3, exact=exact)
    assert found.indices.shape == found.similarities.shape == (0, 3)


@pytest.mark.gpu
def test_cpu_and_gpu_find_the_same_bit_for_bit():
    rows = unit(torch.randn(3000, 256, generator=torch.Generator().manual_seed(4)))
    rows[1000:1100] = rows[0]
    own = torch.arange(3000)
    on_gpu = k_nearest(rows.cuda(), rows.cuda(), 8, exclude=own.cuda())
    assert_same(
        Neighbors(on_gpu.indices.cpu(), on_gpu.similarities.cpu()),
        k_nearest(rows, rows, 8, exclude=own),
    )
