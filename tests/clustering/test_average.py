"""Average linkage on top of Ward's small clusters, against scipy and against slow loops over all
pairs of images."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist, squareform

from shoal.clustering import inference
from shoal.clustering.inference import (
    InferenceSettings,
    average_linkage,
    choose_linkage,
    infer,
    join_small,
    sample_labeled,
)
from shoal.clustering.matching import gcd_accuracy
from shoal.clustering.mean_shift import ShiftSettings, unit_tree
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree

FEW_NEIGHBORS = ShiftSettings(n_neighbors=3)


def points(n_rows=60, dim=5, seed=0):
    return unit_points(np.random.default_rng(seed).normal(size=(n_rows, dim)))


def same_parts(one, other):
    return bool(((one[:, None] == one[None]) == (other[:, None] == other[None])).all())


def slow_join(rows, groups, n_clusters):
    """Repeatedly join the two groups with the smallest mean squared distance between their rows."""
    groups = [list(group) for group in groups]
    gaps = squareform(pdist(rows, "sqeuclidean"))
    while len(groups) > n_clusters:
        means = {
            (a, b): gaps[np.ix_(groups[a], groups[b])].mean()
            for a in range(len(groups))
            for b in range(a)
        }
        a, b = min(means, key=lambda pair: means[pair])
        groups[b] += groups.pop(a)
    clusters = np.empty(len(rows), dtype=int)
    for number, group in enumerate(groups):
        clusters[group] = number
    return clusters


def long_tail(seed=0):
    """Return rows and classes: four elongated classes of 120 images, and twelve round classes of 6
    that lie close to each other."""
    rng = np.random.default_rng(seed)
    dim = 24
    centers = np.zeros((16, dim))
    centers[range(4), range(4)] = 3
    centers[4:, 4] = 3
    centers[range(4, 16), range(5, 17)] = 2.8
    sizes = [120] * 4 + [6] * 12
    rows = [
        center + 0.15 * rng.normal(size=(size, dim))
        for center, size in zip(centers, sizes, strict=True)
    ]
    for number in range(4):
        rows[number][:, 17 + number] += rng.normal(size=120)
    return np.concatenate(rows), np.repeat(np.arange(16), sizes)


@pytest.mark.parametrize("seed", range(5))
def test_single_images_are_joined_as_scipy_does(seed):
    rows = points(40, seed=seed).double().numpy()
    gaps = pdist(rows, "sqeuclidean")
    kept, gone, heights = average_linkage(squareform(gaps), np.ones(40, dtype=int))
    theirs = linkage(gaps, "average")
    np.testing.assert_allclose(heights, theirs[:, 2], rtol=1e-12)
    start = Tree(linkage(rows, "ward")).with_top(40, kept, gone, heights)
    for n_clusters in (1, 2, 3, 7, 20, 39, 40):
        assert same_parts(start.cut(n_clusters), Tree(theirs).cut(n_clusters))


@pytest.mark.parametrize("n_clusters", [1, 2, 4])
def test_small_clusters_are_joined_as_by_a_slow_loop_over_their_images(n_clusters):
    rows = points(70, dim=4, seed=n_clusters)
    tree = unit_tree(rows)
    n_small = 6 * n_clusters
    small = tree.cut(n_small)
    groups = [np.flatnonzero(small == number).tolist() for number in range(n_small)]
    joined = join_small(rows, tree, n_clusters, "average")
    for cut in range(n_clusters, n_small):
        assert same_parts(joined.cut(cut), slow_join(rows.numpy(), groups, cut))


@pytest.fixture
def few_are_enough(monkeypatch):
    """Let 50 labels suffice for choosing the linkage."""
    monkeypatch.setattr(inference, "MIN_LABELED", 50)


@pytest.fixture(scope="module")
def tail():
    """Rows, classes and labels: half of the images of three elongated and six round classes are
    labeled."""
    rows, classes = long_tail()
    is_known = np.isin(classes, [0, 1, 2, *range(4, 10)])
    labels = np.where(is_known & (np.arange(len(classes)) % 2 == 0), classes, -1)
    return rows, classes, labels


def all_right(classes, labels, clusters):
    rest = labels < 0
    return gcd_accuracy(classes[rest], clusters[rest], np.isin(classes, labels)[rest]).all


@pytest.mark.usefixtures("few_are_enough")
@pytest.mark.parametrize("must_link", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_on_a_long_tail_labels_choose_average_linkage(tail, *, must_link):
    rows, classes, labels = tail
    settings = InferenceSettings(shift=FEW_NEIGHBORS, must_link=must_link)
    ward = infer(rows, labels, 16, settings)
    both = infer(
        rows,
        labels,
        16,
        InferenceSettings(shift=FEW_NEIGHBORS, must_link=must_link, try_average=True),
    )
    assert (ward.linkage_method, both.linkage_method) == ("ward", "average")
    assert all_right(classes, labels, both.labels) > all_right(classes, labels, ward.labels) + 0.15
    again = infer(rows, labels, 16, settings, n_shifts=both.n_shifts, linkage_method="average")
    np.testing.assert_array_equal(again.labels, both.labels)


@pytest.mark.usefixtures("few_are_enough")
def test_equal_classes_of_which_some_are_labeled_more_keep_wards_tree():
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(8), 120)
    rows = np.eye(8, 12)[classes] * 4 + rng.normal(size=(len(classes), 12)) * 0.3
    labels = np.full(len(classes), -1)
    for known, n_labels in enumerate((110, 60, 20, 6)):
        labels[np.flatnonzero(classes == known)[:n_labels]] = known
    unit = unit_points(rows)
    drawn = np.bincount(labels[sample_labeled(unit, labels)])
    assert drawn.max() <= 3 * drawn.min()
    assert choose_linkage(unit, labels, FEW_NEIGHBORS, 1) == "ward"
