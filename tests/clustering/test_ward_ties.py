"""Rows at equal distances, or at distances that float64 products cannot tell apart."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import pdist

from shoal.clustering.tree import Tree
from shoal.clustering.ward import linkage, ward_linkage
from shoal.clustering.ward.scan import FEW

RNG = np.random.default_rng(0)


def tight_groups(n, noise):
    """Return rows at four places; the rows at one place differ by `noise`."""
    places = RNG.normal(size=(4, 12))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    return places[np.arange(n) % 4] + noise * RNG.normal(size=(n, 12))


def twins(n):
    """Return two rows near each one-hot row: no row is tied, but all pairs are."""
    both = np.repeat(np.eye(n), 2, axis=0)
    return np.hstack([both, 0.1 * both * np.resize([1, -1], 2 * n)[:, None]])


KINDS = {
    "one-hot": np.eye(300),
    "orthonormal": np.linalg.qr(RNG.normal(size=(250, 250)))[0],
    "grid": np.stack(np.meshgrid(np.arange(50.0), np.arange(40.0)), -1).reshape(-1, 2),
    "line": np.arange(2500.0)[:, None],
    "codes": RNG.integers(0, 2, size=(600, 24)).astype(np.float32),
    "tight": tight_groups(800, 1e-7),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_is_scipys(kind):
    rows = KINDS[kind]
    expected = scipy_linkage(pdist(rows.astype(np.float64)), "ward")
    np.testing.assert_allclose(ward_linkage(rows), expected, rtol=1e-12)


@pytest.fixture(params=["lists", "few"])
def without_scipy(request, monkeypatch):
    monkeypatch.setattr(linkage, "FEW_PRODUCTS", 0)
    monkeypatch.setattr(linkage, "MAX_TIED", 0)
    if request.param == "lists":
        monkeypatch.setitem(FEW, "cpu", 0)


@pytest.mark.usefixtures("without_scipy")
@pytest.mark.parametrize("make", [np.eye, twins])
def test_bounds_decide_ties_to_the_same_heights(make):
    """Ties in the rows themselves, or only among the merged pairs."""
    rows = make(60)
    found = ward_linkage(rows, device="cpu")
    np.testing.assert_allclose(found[:, 2], scipy_linkage(rows, "ward")[:, 2], rtol=1e-12)
    assert found[-1, 3] == len(rows)


@pytest.mark.usefixtures("without_scipy")
@pytest.mark.parametrize("noise", [1e-6, 1e-8])
def test_bounds_tell_tight_groups_apart(noise):
    rows = tight_groups(240, noise)
    found = ward_linkage(rows, device="cpu")
    expected = scipy_linkage(rows, "ward")
    np.testing.assert_allclose(found[:, 2], expected[:, 2], rtol=1e-6)
    for n_clusters in (2, 4, 20, 60):
        np.testing.assert_array_equal(Tree(found).cut(n_clusters), Tree(expected).cut(n_clusters))


@pytest.mark.parametrize("noise", [1e-13, 1e-15])
def test_rows_a_rounding_apart_give_one_tree_whatever_the_memory(noise, monkeypatch):
    """Distances are as small as the rounding error of a merge, so bounds fall to zero but must not
    become NaN."""
    monkeypatch.setattr(linkage, "FEW_PRODUCTS", 0)
    monkeypatch.setattr(linkage, "MAX_TIED", 0)
    rows = RNG.normal(size=(10, 2))[np.arange(90) % 10] + noise * RNG.normal(size=(90, 2))
    expected = ward_linkage(rows, device="cpu")
    monkeypatch.setitem(linkage.BLOCK_BYTES, "cpu", 1)
    assert np.array_equal(ward_linkage(rows, device="cpu"), expected)
    np.testing.assert_array_equal(Tree(expected).cut(10), np.arange(90) % 10)
