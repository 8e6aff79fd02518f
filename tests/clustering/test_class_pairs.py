"""Estimate the number of classes from pairs of labeled images: the probabilities equal those of a
loop over pairs, and the interval has its stated coverage."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage

from shoal.clustering.curve import _Cut, _probabilities, accuracy_curve, pair_terms
from shoal.clustering.n_clusters import choose, estimate_n_clusters
from shoal.clustering.tree import Tree


def clouds(seed, *, n_classes=24, noise=1.0, is_long_tailed=False):
    """Sample overlapping classes in 24 dimensions, with 20 images each or with a long tail of 8 to
    120."""
    rng = np.random.default_rng(seed)
    sizes = np.full(n_classes, 20)
    if is_long_tailed:
        sizes = np.clip(rng.lognormal(3, 0.8, n_classes), 8, 120).astype(int)
    y = np.repeat(np.arange(n_classes), sizes)
    centers = rng.normal(size=(n_classes, 24))
    return Tree(linkage(centers[y] + noise * rng.normal(size=(len(y), 24)), "ward")), y, rng


def label(y, rng, n_known, n_each=None):
    """Label each image of `n_known` random classes with probability one half, or `n_each` images of
    each of these classes."""
    known = rng.permutation(y.max() + 1)[:n_known]
    if n_each is None:
        return np.where(np.isin(y, known) & (rng.random(len(y)) < 0.5), y, -1)
    labels = np.full(len(y), -1)
    for c in known:
        labels[rng.choice(np.flatnonzero(y == c), n_each, replace=False)] = c
    return labels


def renumbered(labels):
    return np.where(labels < 0, -1, np.searchsorted(np.unique(labels[labels >= 0]), labels))


def test_the_probabilities_are_those_of_a_loop_over_pairs_of_labeled_images():
    """An image weighs 1 / the size of its cluster; its pairs within a class together weigh as much
    as the class has labels."""
    tree, y, rng = clouds(0, n_classes=6)
    known = renumbered(label(y, rng, 4))
    clusters = tree.cut(9)
    labels = np.bincount(known[known >= 0]).astype(float)
    sizes = np.bincount(clusters)
    # weights of the pairs that share a cluster, and of all pairs
    same = np.zeros(2)
    different = np.zeros(2)
    for i in np.flatnonzero(known >= 0):
        for j in np.flatnonzero(known >= 0):
            if i != j:
                pair = same if known[i] == known[j] else different
                share = labels[known[i]] / (labels[known[i]] - 1) if known[i] == known[j] else 1.0
                pair += share * np.array([clusters[i] == clusters[j], 1]) / sizes[clusters[i]]
    own, found_same, found_different = _probabilities(_Cut.of(clusters, known, 4), labels, labels)
    weights = [(1 / sizes[clusters[known == c]]).sum() for c in range(4)]
    assert own == pytest.approx(weights)
    assert found_same[0] == pytest.approx(same[0] / same[1])
    assert found_different[0] == pytest.approx(different[0] / different[1])


@pytest.mark.slow
@pytest.mark.parametrize(("n_each", "n_held"), [(None, 33), (5, 37)], ids=["half", "five each"])
def test_the_interval_holds_the_truth_in_about_four_of_five_draws(n_each, n_held):
    """40 samples of overlapping classes, every other one long-tailed, with half or two thirds of
    the classes known."""
    held = 0
    for seed in range(40):
        tree, y, rng = clouds(seed, noise=1.2, is_long_tailed=seed % 2 == 1)
        found = estimate_n_clusters(tree, label(y, rng, 12 if seed % 4 < 2 else 16, n_each))
        low, high = found.interval
        assert low <= found.n_clusters <= high
        held += low <= 24 <= high
    assert held == n_held


def test_classes_that_overlap_much_are_counted_where_rules_that_look_at_clusters_fail():
    off = {"pairs": 0.0, "paper": 0.0}
    for seed in range(6):
        tree, y, rng = clouds(seed, n_classes=40, noise=1.5, is_long_tailed=True)
        curve = accuracy_curve(tree, label(y, rng, 24))
        for rule in off:
            off[rule] += abs(np.log(choose(curve, rule)[0] / 40)) / 6
    assert off["pairs"] < 0.11
    assert off["paper"] > 0.2


@pytest.mark.parametrize(
    "n_each", [None, pytest.param(5, marks=pytest.mark.slow)], ids=["half", "five each"]
)
def test_the_interval_reaches_the_truth_where_few_classes_are_known(n_each):
    """4 of 32 classes are known. Without the upper end from pairs alone, only 11 (half labeled) and
    10 (five each) of 20 intervals contained the true number; the others lay below it."""
    held = 0
    for seed in range(20):
        tree, y, rng = clouds(seed, n_classes=32, noise=1.1)
        low, high = estimate_n_clusters(tree, label(y, rng, 4, n_each)).interval
        held += low <= 32 <= high
    assert 15 <= held <= 18


def test_the_order_of_rows_and_the_names_of_classes_change_nothing():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 12, 300)
    rows = rng.normal(size=(12, 16))[y] + 0.9 * rng.normal(size=(300, 16))
    labels = label(y, rng, 8)
    order = rng.permutation(300)
    plain = estimate_n_clusters(Tree(linkage(rows, "ward")), labels)
    other = estimate_n_clusters(
        Tree(linkage(rows[order], "ward")), np.where(labels < 0, -1, 50 - labels)[order]
    )
    assert (plain.n_clusters, plain.interval, plain.rule) == (
        other.n_clusters,
        other.interval,
        other.rule,
    )


@pytest.mark.parametrize(
    "labels", [[0, 0, 0, 1, 1, 1], [0, 1, 2, 3], [0, 0, 1, 2, 3]], ids=["two", "single", "one pair"]
)
def test_too_few_labels_say_nothing_and_the_interval_is_wide(labels):
    """Two classes, too few for the jackknife; classes with one label each; one class with two
    labels and others with one."""
    tree, y, _ = clouds(0)
    known = np.full(len(y), -1)
    known[np.arange(len(labels)) * 20] = labels
    assert pair_terms(tree, known) is None
    found = estimate_n_clusters(tree, known)
    assert found.rule != "pairs"
    assert found.interval[1] > 1.5 * found.interval[0]


@pytest.mark.parametrize("seed", [1, 8, 12])
def test_labels_of_which_no_two_of_a_class_share_a_cluster_say_nothing(seed):
    """Two labels in each of four classes that overlap heavily. The likelihood used to be NaN for
    every K, and the estimate the number of known classes."""
    tree, y, rng = clouds(seed, noise=1.5)
    labels = label(y, rng, 4, 2)
    assert pair_terms(tree, renumbered(labels)) is None
    found = estimate_n_clusters(tree, labels)  # a numpy warning fails the test
    assert found.rule != "pairs"
    assert found.interval[1] > 1.5 * found.interval[0]
