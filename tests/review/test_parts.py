"""Parts of a category are cut from the tree, restricted to the images of the category."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, ward

from shoal.errors import DataError, UsageError
from shoal.review import verbs
from shoal.review.review import Review
from shoal.review.state import cut, parts_of
from shoal.runs import Run


@pytest.mark.parametrize("n_parts", [2, 3, 7, 40])
def test_all_images_together_are_cut_as_scipy_cuts_them(
    run: Run, review: Review, n_parts: int
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    tree = ward(x)
    rows = np.arange(40)
    expected = fcluster(tree, n_parts, "maxclust")
    found = np.zeros(40, int)
    for part, members in enumerate(cut(tree[:, :2].astype(np.int64), rows, n_parts)):
        found[members] = part
    assert len(set(zip(expected.tolist(), found.tolist(), strict=True))) == n_parts


def test_some_images_are_parted_as_the_whole_tree_parts_them(run: Run, review: Review) -> None:
    review.act(verbs.merge, ["gull", "heron", "novel-002"])
    parts = parts_of(review.state, 0, 3)
    assert sorted(part.tolist() for part in parts) == [[0, 1, 2], [3, 4, 5], [9, 10, 11]]


def test_a_run_without_a_tree_grows_one_and_without_embeddings_says_so(
    run: Run, review: Review
) -> None:
    review.act(verbs.merge, ["gull", "heron"])
    with_tree = parts_of(review.state, 0, 2)
    run.drop("tree.npy")
    assert [part.tolist() for part in parts_of(review.state, 0, 2)] == [
        part.tolist() for part in with_tree
    ]
    run.drop("embeddings.npy")
    with pytest.raises(DataError):
        parts_of(review.state, 0, 2)


@pytest.mark.parametrize("n_parts", [1, 4])
def test_there_are_at_least_two_parts_and_no_more_than_images(
    run: Run, review: Review, n_parts: int
) -> None:
    with pytest.raises(UsageError):
        parts_of(review.state, 0, n_parts)


@pytest.mark.parametrize("spoil", ["short", "not a tree", "holes"])
def test_a_tree_that_is_not_of_the_images_is_refused(run: Run, review: Review, spoil: str) -> None:
    tree = np.array(run.array("tree"))
    spoiled = {
        "short": tree[:-1],
        "not a tree": np.full_like(tree, 1e6),
        "holes": np.full_like(tree, np.nan),
    }
    run.write_array("tree", spoiled[spoil])
    with pytest.raises(DataError):
        parts_of(review.state, 0, 2)
