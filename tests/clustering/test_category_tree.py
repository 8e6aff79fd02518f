"""The tree of categories against a loop over pairs of categories."""

import numpy as np
import pytest

from shoal.clustering.tree import CategoryTree

NAMES = [f"it's {i}" for i in range(9)]


@pytest.fixture
def means():
    return np.random.default_rng(0).normal(size=(len(NAMES), 4))


def tree_of(names, means):
    """Return the tree of categories that have one image each."""
    return CategoryTree.of_members(names, np.arange(len(names))[:, None], means)


def test_a_merge_is_as_high_as_the_mean_distance_between_its_two_sides(means):
    tree = tree_of(NAMES, means)
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    below = [[leaf] for leaf in range(len(NAMES))]
    for first, second, height, size in tree.linkage.tolist():
        left, right = below[int(first)], below[int(second)]
        pairs = [1 - unit[a] @ unit[b] for a in left for b in right]
        assert height == pytest.approx(np.mean(pairs))
        assert size == len(left) + len(right)
        below.append(left + right)
    assert sorted(below[-1]) == list(range(len(NAMES)))


def test_members_have_the_same_tree_as_their_means_in_any_order(means):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 9, 200)
    embeddings = rng.normal(size=(200, 4)) + means[labels]
    members = [rng.permutation(np.flatnonzero(labels == at)) for at in range(9)]
    tree = CategoryTree.of_members(NAMES, members, embeddings)
    expected = np.array([embeddings[labels == at].mean(axis=0) for at in range(9)])
    assert np.allclose(tree.linkage, tree_of(NAMES, expected).linkage)


def test_newick_has_every_name_and_the_height_of_the_root_above_each(means):
    tree = tree_of(NAMES, means)
    text = tree.newick()
    lengths = {}
    open_nodes: list[list[str]] = [[]]
    at = 0
    while text[at] != ";":  # parse nested lists with quoted names and lengths
        if text[at] == "(":
            open_nodes.append([])
            at += 1
        elif text[at] == ",":
            at += 1
        else:
            below: list[str] = []
            if text[at] == ")":
                below = open_nodes.pop()
                at += 1
            assert text[at] == "'"
            end = at + 1
            while text[end] != "'" or text[end + 1] == "'":
                end += 2 if text[end] == "'" else 1
            name = text[at + 1 : end].replace("''", "'")
            at = end + 1
            length = 0.0
            if text[at] == ":":
                end = min(text.index(mark, at) for mark in ",);" if mark in text[at:])
                length = float(text[at + 1 : end])
                at = end
            leaves = below or [name]
            for leaf in leaves:
                lengths[leaf] = lengths.get(leaf, 0.0) + length
            open_nodes[-1] += leaves
    assert sorted(lengths) == NAMES
    assert np.allclose(list(lengths.values()), tree.heights[-1], rtol=0, atol=1e-6)
    assert np.ptp(list(lengths.values())) < 1e-12


def test_one_category_and_one_without_direction():
    single = tree_of(["a"], np.array([[1.0, 0.0]]))
    assert single.newick() == "'a';"
    assert single.parent_names == {"a": ""}
    assert tree_of(["a", "b"], np.array([[1.0, 0.0], [0.0, 0.0]])).heights == [0, 0, 1]
