"""A range of numbers of clusters: read, refused, kept to."""

import numpy as np
import pytest

from shoal import MeanShiftClustering, Tree, estimate_n_clusters
from shoal.clustering.inference import InferenceSettings, check_task
from shoal.clustering.iterates import unit_tree
from shoal.clustering.n_clusters_range import keep_to, read_n_clusters
from shoal.clustering.sums import unit_points
from shoal.errors import UsageError


@pytest.fixture
def bundles() -> tuple[np.ndarray, np.ndarray]:
    """Five bundles of directions, twelve rows each; half of the rows of three are labeled."""
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 5
    x = np.eye(5)[truth] + 0.1 * rng.normal(size=(60, 5))
    return x, np.where((truth < 3) & (np.arange(60) < 30), truth, -1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, (None, None)),
        (40, (40, None)),
        (np.int64(40), (40, None)),
        ("40", (40, None)),
        ("30-50", (None, (30, 50))),
        (" 30 – 50 ", (None, (30, 50))),
        ((30, 50), (None, (30, 50))),
        ([30, 50], (None, (30, 50))),
        ("30-30", (30, None)),
    ],
)
def test_one_number_and_ranges_are_read(given: object, expected: object) -> None:
    assert read_n_clusters(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        "50-30",
        (50, 30),
        "0-30",
        "some",
        "-5",
        "30-",
        (1, 2, 3),
        (1.5, 3),
        4.0,
    ],
)
def test_what_is_no_number_and_no_range_is_refused(given: object) -> None:
    with pytest.raises(UsageError):
        read_n_clusters(given)


def test_a_number_outside_is_moved_to_the_nearest_end() -> None:
    assert [keep_to(k, 3, 5) for k in (2, 3, 4, 5, 6)] == [3, 3, 4, 5, 5]
    assert [keep_to(9, None, None), keep_to(9, None, 5), keep_to(1, 3, None)] == [9, 5, 3]


@pytest.mark.parametrize("numbers", [(3, 4), (7, 9), (4, 6)])
def test_the_estimate_and_its_interval_keep_to_a_range(bundles, numbers: tuple[int, int]) -> None:
    low, high = numbers
    model = MeanShiftClustering(n_clusters=numbers).fit(*bundles)
    assert low <= model.interval_[0] <= model.n_clusters_ <= model.interval_[1] <= high
    assert len(np.unique(model.labels_)) == model.n_clusters_
    assert MeanShiftClustering().fit(*bundles).n_clusters_ == 5


def test_an_estimate_made_elsewhere_is_moved_into_a_range(bundles) -> None:
    x, labels = bundles
    tree: Tree = unit_tree(unit_points(x))
    free = estimate_n_clusters(tree, labels)
    moved = free.keeping_to(7, 9)
    assert (free.n_clusters, free.range) == (5, None)
    assert (moved.n_clusters, moved.interval, moved.range) == (7, (7, 7), (7, 9))
    assert moved.accuracy == free.curve.accuracy[free.curve.n_clusters == 7][0]
    assert free.keeping_to(None, None).n_clusters == 5


def test_what_labels_say_is_kept_where_it_lies_outside_of_a_range(bundles) -> None:
    x, labels = bundles
    tree: Tree = unit_tree(unit_points(x))
    free = estimate_n_clusters(tree, labels)
    assert (free.interval, free.by_labels) == ((4, 7), None)
    for low, high, by_labels in (
        (8, 9, (4, 7)),
        (3, 3, (4, 7)),
        (7, 9, None),
        (3, 4, None),
        (5, 6, None),
    ):
        kept = estimate_n_clusters(tree, labels, min_clusters=low, max_clusters=high)
        assert kept.by_labels == free.keeping_to(low, high).by_labels == by_labels


def test_a_range_in_which_nothing_can_be_is_refused_before_any_work(bundles) -> None:
    x, labels = bundles
    for numbers in ((1, 2), (61, 70)):  # below the known categories, above the images
        with pytest.raises(UsageError):
            check_task(labels, None, InferenceSettings().with_range(numbers))
        with pytest.raises(UsageError):
            MeanShiftClustering(n_clusters=numbers).fit(x, labels)
    check_task(labels, None, InferenceSettings().with_range((1, 1000)))  # 3 to 60 of it can be
    with pytest.raises(UsageError):
        check_task(np.full(60, -1), None, InferenceSettings().with_range((3, 9)))
    with pytest.raises(UsageError):
        MeanShiftClustering(n_clusters=(3, 9), max_clusters=9).fit(x, labels)


def test_a_range_is_held_against_as_many_clusters_as_are_tried_without_it(monkeypatch) -> None:
    """Ten times the known classes, where that is more than the usual most."""
    monkeypatch.setattr("shoal.clustering.curve.DEFAULT_MAX_CLUSTERS", 8)
    monkeypatch.setattr("shoal.clustering.n_clusters.DEFAULT_MAX_CLUSTERS", 8)
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(40), 10)
    points = 9 * np.eye(40)[truth] + rng.normal(size=(400, 40))
    labels = np.where((truth < 10) & (np.arange(400) % 2 == 0), truth, -1)
    tree = unit_tree(unit_points(points))
    free = estimate_n_clusters(tree, labels)
    assert free.interval[0] > 20
    assert (
        estimate_n_clusters(tree, labels, min_clusters=12, max_clusters=20).by_labels
        == free.interval
    )
