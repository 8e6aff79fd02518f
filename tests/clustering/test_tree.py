import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from shoal.clustering.tree import Tree
from shoal.errors import DataError, UsageError

# Five leaves: 0 and 3 join at height 1, 1 and 4 at 2, 2 joins {0, 3} at 3, all at 4.
FIVE = [[0, 3, 1, 2], [1, 4, 2, 2], [2, 5, 3, 3], [6, 7, 4, 5]]


def random_tree(n, seed=0):
    return Tree(linkage(np.random.default_rng(seed).normal(size=(n, 3)), "ward"))


def test_a_cut_undoes_the_last_merges_and_numbers_clusters_by_smallest_leaf():
    tree = Tree(FIVE)
    assert tree.cut(5).tolist() == [0, 1, 2, 3, 4]
    assert tree.cut(4).tolist() == [0, 1, 2, 0, 3]
    assert tree.cut(3).tolist() == [0, 1, 2, 0, 1]
    assert tree.cut(2).tolist() == [0, 1, 0, 0, 1]
    assert tree.cut(1).tolist() == [0] * 5
    assert tree.cut(3).dtype == np.int64


def test_cuts_agree_with_scipy_at_every_number_of_clusters():
    tree = random_tree(60)
    for n_clusters in range(1, 61):
        theirs = fcluster(tree.linkage, n_clusters, "maxclust")
        ours = tree.cut(n_clusters)
        assert (
            len(set(zip(ours.tolist(), theirs.tolist(), strict=True)))
            == n_clusters
            == len(set(ours.tolist()))
        )


def test_tied_heights_still_give_exactly_the_clusters_asked_for():
    tree = Tree(linkage(np.zeros((7, 2)), "ward"))
    for n_clusters in range(1, 8):
        assert len(np.unique(tree.cut(n_clusters))) == n_clusters


def test_following_the_merges_visits_every_cut():
    tree = random_tree(40)
    for first in (40, 17, 1):
        start, all_kept, all_gone = tree.merges(first)
        slots = start.copy()
        assert np.array_equal(slots, tree.cut(first))
        n_clusters = first
        for kept, gone in zip(all_kept, all_gone, strict=True):
            n_clusters -= 1
            assert kept < gone
            assert (slots == gone).any()
            assert (slots == kept).any()
            slots[slots == gone] = kept
            assert np.array_equal(np.unique(slots, return_inverse=True)[1], tree.cut(n_clusters))
        assert len(all_kept) == first - 1


def test_a_single_leaf_is_a_tree():
    tree = Tree(np.zeros((0, 4)))
    assert tree.n_leaves == 1
    assert tree.cut(1).tolist() == [0]
    assert [len(part) for part in tree.merges(1)] == [1, 0, 0]
    assert tree.heights.shape == (0,)


def test_a_tree_keeps_its_own_copy():
    matrix = np.array(FIVE, dtype=float)
    tree = Tree(matrix)
    matrix[0, 2] = 99
    assert tree.heights[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        tree.heights[0] = 99


@pytest.mark.parametrize("n_clusters", [0, -1, 6, 2.0, "2", None, True])
def test_an_impossible_number_of_clusters_is_refused(n_clusters):
    with pytest.raises(UsageError):
        Tree(FIVE).cut(n_clusters)


@pytest.mark.parametrize(
    "linkage_matrix",
    [
        [[0, 1, 1.0]],
        [[0, 1, np.nan, 2]],
        [[0, 3, 1, 2], [1, 2, 2, 3]],  # a node before it exists
        [[0, 1, 1, 2], [0, 2, 2, 3]],  # a node twice
        [[0, 1, 2, 2], [2, 3, 1, 3]],  # decreasing heights
        [[0, 1, 1, 2], [2, 3, 2, 4]],  # a wrong number of leaves
    ],
)
def test_a_matrix_that_is_no_tree_is_refused(linkage_matrix):
    with pytest.raises(DataError):
        Tree(linkage_matrix)
