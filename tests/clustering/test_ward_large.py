"""Fifty thousand points against a nearest-neighbor chain in float64, written here from the
definition."""

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.clustering.tree import Tree
from shoal.clustering.ward.linkage import ward_linkage


def nearest_neighbor_chain(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ward's tree in O(N) memory: follow nearest neighbors until two point at each other, merge
    them, go on."""
    n = len(rows)
    centroids = rows.copy()
    sizes = np.ones(n)
    nodes = np.arange(n)
    norms = (centroids**2).sum(1)
    chain: list[int] = []
    made = []
    n_live = n
    while n_live > 1:
        if not chain:
            chain = [0]
        i = chain[-1]
        heights = (norms + norms[i] - 2 * (centroids @ centroids[i])) * (
            2 * sizes * sizes[i] / (sizes + sizes[i])
        )
        heights[i] = np.inf
        j = int(heights.argmin())
        if len(chain) > 1 and heights[j] >= heights[chain[-2]] * (1 - 1e-12):
            j = chain[-2]
        if len(chain) < 2 or j != chain[-2]:
            chain.append(j)
            continue
        chain = chain[:-2]
        a = sizes[i]
        b = sizes[j]
        height = ((centroids[i] - centroids[j]) ** 2).sum() * 2 * a * b / (a + b)
        made.append((nodes[i], nodes[j], np.sqrt(height), a + b))
        kept = min(i, j)
        gone = max(i, j)
        centroids[kept] = (a * centroids[i] + b * centroids[j]) / (a + b)
        sizes[kept], norms[kept], nodes[kept] = (
            a + b,
            (centroids[kept] ** 2).sum(),
            n + len(made) - 1,
        )
        n_live -= 1
        for array in (centroids, sizes, norms, nodes):  # the last live slot moves into the gap
            array[gone] = array[n_live]
        chain = [gone if k == n_live else k for k in chain]
        centroids = centroids[:n_live]
        sizes = sizes[:n_live]
        norms = norms[:n_live]
        nodes = nodes[:n_live]
    return sorted_by_height(np.array(made), n)


def sorted_by_height(made: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    order = np.argsort(made[:, 2], kind="stable")
    number = np.arange(2 * n - 1)
    number[n + order] = np.arange(n, 2 * n - 1)
    Z = made[order]
    Z[:, :2] = np.sort(number[Z[:, :2].astype(int)], axis=1)
    return Z


def rows_of(n: int, d: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, d))[rng.integers(200, size=n)] + 0.8 * rng.normal(size=(n, d))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def assert_same(rows: NDArray[np.float32]) -> None:
    ours = ward_linkage(rows)
    theirs = nearest_neighbor_chain(rows.astype(np.float64))
    np.testing.assert_allclose(ours[:, 2], theirs[:, 2], rtol=1e-9)
    a = Tree(ours)
    b = Tree(theirs)
    for n_clusters in (2, 10, 50, 100, 200, 500, len(rows) // 10, len(rows) // 2):
        assert np.array_equal(a.cut(n_clusters), b.cut(n_clusters))


def test_three_thousand_points_agree_with_the_chain() -> None:
    assert_same(rows_of(3_000, 16))


@pytest.mark.slow
def test_fifty_thousand_points_agree_with_the_chain() -> None:
    assert_same(rows_of(50_000, 16))
