"""The bounds are valid: in rational arithmetic, a `low` never exceeds the distance."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from shoal.clustering.products import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    TENSOR_BFLOAT16,
    TENSOR_TFLOAT32,
    Points,
    Workers,
    largest_columns,
    matmul_precision,
)
from shoal.clustering.ward.bounds import Margins, merged_low
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import empty_lists
from shoal.clustering.ward.scan import Clusters

ALL = {
    "bfloat16": BFLOAT16,
    "float32": FLOAT32,
    "float64": FLOAT64,
    "tensor tfloat32": TENSOR_TFLOAT32,
}


def true_height(a, b, s, t):
    squared = sum(
        (Fraction(x) - Fraction(y)) ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True)
    )
    return squared * 2 * Fraction(s) * Fraction(t) / (Fraction(s) + Fraction(t))


@pytest.fixture
def clusters():
    rng = np.random.default_rng(0)
    rows = torch.as_tensor(rng.normal(size=(60, 37))) / 8
    # Pairs of near points, for which bounds are tight.
    rows[30:] = rows[:30] + 1e-4 * torch.as_tensor(rng.normal(size=(30, 37)))
    sizes = torch.as_tensor(rng.integers(1, 9, size=60)).double()
    return Clusters(
        Geometry(rows, sizes),
        torch.arange(60),
        (FLOAT64,),
        Margins.of(37, 3.0),
        empty_lists(60, 12, rows.device),
        1 << 20,
        Workers(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_lows_of_products_never_exceed_the_distance(name, clusters):
    precision = ALL[name]
    clusters.precisions = (precision, FLOAT64)
    clusters.points = Points.of(clusters.geometry.centroids, clusters.center, precision)
    rows = torch.arange(60)
    with matmul_precision(precision.matmul):
        lists = clusters._listed(rows, precision)
    centroids = clusters.geometry.centroids
    sizes = clusters.geometry.sizes
    for i in range(60):
        listed = set(lists.index[i].tolist())
        assert i not in listed
        for j in range(60):
            if i != j:
                true = true_height(centroids[i], centroids[j], float(sizes[i]), float(sizes[j]))
                low = lists.low[i][lists.index[i] == j] if j in listed else lists.outside[i : i + 1]
                assert Fraction(float(low[0])) <= true
    assert (lists.low[:, 1] > 0).all()


def test_distances_are_symmetric_and_within_eta(clusters):
    geometry = clusters.geometry
    margins = clusters.margins
    i = torch.arange(30)
    j = torch.arange(30) + 30
    d = geometry.distances(i, j)
    assert torch.equal(d, geometry.distances(j, i))
    for e in range(30):
        true = true_height(
            geometry.centroids[e], geometry.centroids[e + 30], *geometry.sizes[[e, e + 30]].tolist()
        )
        assert abs(Fraction(float(d[e])) - true) <= Fraction(margins.eta) * true
        assert Fraction(float(margins.low(d)[e])) <= true


def test_lows_of_unions_never_exceed_the_distance():
    """A and B are mutual nearest neighbors and each other point is a C. The distances of A and B to
    C are the tightest possible lows."""
    rng = np.random.default_rng(1)
    margins = Margins.of(5, 4.0)
    for _ in range(200):
        points = torch.as_tensor(rng.normal(size=(8, 5)))
        sizes = torch.as_tensor(rng.integers(1, 50, size=8)).double()
        points[1] = points[0] + 0.05 * torch.as_tensor(rng.normal(size=5))
        geometry = Geometry(points.clone(), sizes.clone())
        zero = torch.zeros(6).long()
        one = torch.ones(6).long()
        rest = torch.arange(2, 8)
        h = geometry.distances(zero, one)
        x = geometry.distances(zero, rest)
        y = geometry.distances(one, rest)
        if (h > torch.minimum(x, y)).any():
            continue
        x = margins.low(x)
        y = margins.low(y)
        low = merged_low(x, y, h, sizes[0], sizes[1], sizes[rest], margins.eta)
        low = margins.moved(low, sizes[rest])
        least = margins.moved(torch.minimum(x, y) * (1 - 8 * margins.eta), sizes[rest])
        geometry.merge(torch.tensor([0]), torch.tensor([1]))
        for at, other in enumerate(rest.tolist()):
            true = true_height(
                geometry.centroids[0],
                geometry.centroids[other],
                *geometry.sizes[[0, other]].tolist(),
            )
            assert Fraction(float(low[at])) <= true
            assert Fraction(float(least[at])) <= true
        torch.testing.assert_close(geometry.distances(zero, rest), low, rtol=1e-12, atol=0)


def test_the_low_of_a_union_is_monotone_in_the_size_of_the_other():
    c = torch.arange(1, 100).double()
    for x, y in [(2.0, 3.0), (1.0, 1.0), (9.0, 1.2)]:
        low = merged_low(
            *(torch.tensor(number) for number in (x, y, 1.0, 3.0, 5.0)),
            c,
            0.0,
        )
        assert (low.diff() >= -1e-12).all() or (low.diff() <= 1e-12).all()


def test_nothing_is_certain_on_equality_and_everything_against_nobody():
    margins = Margins.of(4, 1.0)
    one = torch.ones(1)
    assert not one < margins.bar(one)
    assert not torch.zeros(1) < margins.bar(torch.zeros(1))
    assert one < margins.bar(one * 1.001)
    assert one < margins.bar(one * torch.inf)
    assert torch.isinf(margins.moved(one * torch.inf, one))


@pytest.mark.parametrize("precision", [BFLOAT16, TENSOR_TFLOAT32, TENSOR_BFLOAT16])
def test_rounded_numbers_fit_their_bits(precision):
    x = torch.randn(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    short = precision.round(x).double()
    fraction = torch.frexp(short).mantissa * 2**precision.bits
    assert torch.equal(fraction, fraction.round())
    assert ((short - x).abs() <= 2.0**-precision.bits * x.abs()).all()


def test_reduced_products_of_rounded_points_are_summed_in_float32():
    """BFLOAT16 assumes that only the summation errs, by less than γ; this holds on this machine."""
    generator = torch.Generator().manual_seed(0)
    a, b = (
        BFLOAT16.round(torch.randn(200, 300, dtype=torch.float64, generator=generator))
        for _ in range(2)
    )
    with matmul_precision(BFLOAT16.matmul):
        found = (a @ b.T).double()
    true = a.double() @ b.double().T
    assert (
        (found - true).abs() <= BFLOAT16.gamma(300) * (a.double().abs() @ b.double().abs().T)
    ).all()


@pytest.mark.parametrize(("n_columns", "k"), [(5, 3), (64, 3), (100, 5), (1003, 17), (4096, 9)])
def test_the_two_stage_top_k_is_the_top_k(n_columns, k):
    values = torch.randn(7, n_columns, generator=torch.Generator().manual_seed(1))
    best, columns = largest_columns(values, k)
    assert torch.equal(best, values.topk(k, 1).values)
    assert torch.equal(values.gather(1, columns), best)
