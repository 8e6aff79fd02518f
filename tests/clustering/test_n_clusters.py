import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage

from shoal import MeanShiftClustering
from shoal.clustering.curve import Curve, RunningMatching, accuracy_curve
from shoal.clustering.inference import InferenceSettings, check_task
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.n_clusters import (
    RULES,
    choose,
    estimate_n_clusters,
    gap,
    plateau,
    precision,
    read_heuristic,
    read_n_clusters,
    search_n_clusters,
)
from shoal.clustering.tree import Tree
from shoal.errors import DataError, UsageError


def grow(rows):
    return Tree(linkage(rows, "ward"))


def overlapping(seed, n_classes=6, n_rows=120):
    """Sample overlapping Gaussian classes; half of the images of all but two are labeled."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_rows)
    rows = rng.normal(size=(n_classes, 5))[y] + 0.8 * rng.normal(size=(n_rows, 5))
    labels = np.where((y < n_classes - 2) & (rng.random(n_rows) < 0.5), y, -1)
    return grow(rows), labels


def curve(
    accuracy,
    fit=None,
    gaps=None,
    class_sizes=(5000, 5000),
    n_distinct=20_000,
):
    """Return a curve that starts at K = 2, with two known classes."""
    n_clusters = np.arange(2, 2 + len(accuracy))
    flat = np.ones(len(accuracy))
    fits, wide = (flat if given is None else np.array(given) for given in (fit, gaps))
    return Curve(n_clusters, np.array(accuracy), fits, wide, np.array(class_sizes), n_distinct)


def label_some(y, per_class):
    """Label the first `per_class[c]` images of each class c, and none of any later class."""
    labels = np.full(len(y), -1)
    for c, n in enumerate(per_class):
        labels[np.flatnonzero(y == c)[:n]] = c
    return labels


@pytest.mark.parametrize("seed", range(2))
def test_the_sweep_is_the_loop_that_cuts_and_counts_for_each_k(seed):
    tree, labels = overlapping(seed)
    labeled = labels >= 0
    found = accuracy_curve(tree, labels)
    for k, accuracy, fit in zip(found.n_clusters, found.accuracy, found.fit, strict=True):
        cut = tree.cut(int(k))
        assert accuracy == matched_accuracy(labels[labeled], cut[labeled])
        best = []
        for c in np.unique(labels[labeled]):
            of_class = labels == c
            shares = [
                np.mean(cut[of_class] == cluster) * np.mean(of_class[cut == cluster])
                for cluster in np.unique(cut)
            ]
            best.append(np.sqrt(max(shares)))
        assert fit == pytest.approx(np.mean(best))


@pytest.mark.parametrize("seed", range(20))
def test_the_running_matching_is_the_best_after_every_merge(seed):
    """After every merge, the running value equals that of a matching solved from scratch, for
    tables of many shapes and densities."""
    rng = np.random.default_rng(seed)
    n_clusters = int(rng.integers(1, 14))
    n_classes = int(rng.integers(1, 7))
    counts = rng.poisson(rng.choice([0.3, 1, 5]), (n_clusters, n_classes))
    running = RunningMatching(counts)
    live = list(range(n_clusters))
    while len(live) > 1:
        kept, gone = rng.choice(live, 2, replace=False).tolist()
        live.remove(gone)
        running.merge(kept, gone)
        counts[kept] += counts[gone]
        counts[gone] = 0
        y_pred, y_true = (
            np.repeat(axis.ravel(), counts.ravel()) for axis in np.indices(counts.shape)
        )
        assert running.total == round(
            matched_accuracy(y_true, y_pred) * len(y_true) if len(y_true) else 0
        )


def test_six_points_with_two_known_classes():
    """Pairs of points near 0, 10 and 30 on a line; the pairs near 0 and 30 are labeled a and b, the
    one near 10 is unlabeled.

    K = 2 joins the first two pairs, which makes no labeled image wrong: accuracy is 1 at K = 2 and
    K = 3. K = 4 splits the widest pair, the unlabeled one; K = 5 and K = 6 split the labeled pairs,
    each of which then has one correct image of two. The paper's rule chooses 2, the smallest; the
    gap is widest at 3, where heights rise from about 0.3 to 10.
    """
    line = np.array([[0.0], [0.1], [10.0], [10.3], [30.0], [30.2]])
    labels = np.array([0, 0, -1, -1, 1, 1])
    found = estimate_n_clusters(grow(line), labels, rule="paper")
    assert found.curve.n_clusters.tolist() == [2, 3, 4, 5, 6]
    assert found.curve.accuracy.tolist() == [1.0, 1.0, 1.0, 0.75, 0.5]
    assert (found.n_clusters, found.rule) == (2, "paper")
    assert gap(found.curve) == 3


def test_the_balance_is_the_geometric_mean_of_plateau_and_precision():
    """Accuracy is clearly best at K = 4, accuracy · fit at K = 16. Their geometric mean is √(4·16)
    = 8; the arithmetic mean would be 10."""
    accuracy = [0.1] * 20
    fit = [0.1] * 20
    accuracy[2] = 0.9
    accuracy[14] = 0.8
    fit[14] = 1.0
    found = curve(accuracy, fit=fit)
    assert [round(k) for k in (plateau(found), precision(found))] == [4, 16]
    assert choose(found, "pairs") == (8, "balance")


@pytest.mark.parametrize(
    ("class_sizes", "decided"),
    [
        ((8, 8), "balance"),
        ((7, 7), "median"),
        ((8, 8, 1, 1), "balance"),  # half of the classes have enough labels
        ((50, 7), "median"),  # also half, but a single class
        ((9, 9, 4, 4, 4), "median"),
        ((2, 2, 2), "median"),
        ((2, 2, 1), "gap"),
    ],
)
def test_a_more_modest_mark_decides_where_labels_are_too_few(class_sizes, decided):
    found = curve([0.5, 0.9, 0.9], gaps=[0, 0, 1], class_sizes=class_sizes)
    assert choose(found, "pairs") == (round(read_heuristic(found)[1]), decided)
    assert choose(found, "paper") == (3, "paper")  # the paper's rule has no fallback


@pytest.mark.parametrize(("rule", "expected"), [("paper", {6, 7, 8}), ("pairs", {8, 9})])
def test_far_apart_classes_are_counted(rule, expected):
    """8 far-apart classes, 6 of them known. The paper's rule may join the two novel ones, because
    that makes no labeled image wrong."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(8), 12)
    tree = grow(10 * rng.normal(size=(8, 16))[y] + rng.normal(size=(96, 16)))
    labels = np.where((y < 6) & (np.arange(96) % 2 == 0), y, -1)
    assert estimate_n_clusters(tree, labels, rule=rule).n_clusters in expected


@pytest.mark.parametrize("rule", RULES)
def test_no_more_clusters_than_distinct_points(rule):
    """Five points with ten copies each, two of them known: a K above 5 would only separate
    copies."""
    y = np.repeat(np.arange(5), 10)
    found = estimate_n_clusters(grow(np.eye(5)[y]), label_some(y, [5, 5]), rule=rule)
    assert found.curve.n_clusters.tolist() == [2, 3, 4, 5]
    assert found.n_clusters <= 5


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("n_labels", [1, 3])
def test_copies_of_every_image_do_not_pass_for_clusters(copies, n_labels):
    """Twenty classes of five images, ten of them known with one or three labels each, and two or
    three copies of every image."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(20), 5)
    rows = rng.normal(size=(20, 32))[y] + 0.3 * rng.normal(size=(100, 32))
    labels = np.where((y < 10) & (np.arange(100) % 5 < n_labels), y, -1)
    once = estimate_n_clusters(grow(rows), labels).n_clusters
    several = np.concatenate([labels, np.full(100 * (copies - 1), -1)])
    assert abs(once - 20) <= 2
    assert abs(estimate_n_clusters(grow(np.tile(rows, (copies, 1))), several).n_clusters - 20) <= 2


@pytest.mark.parametrize(
    "labels",
    [
        np.where(np.arange(120) < 9, 5, -1),
        np.zeros(119, dtype=int),
        np.full(120, -2),
    ],
)
def test_labels_that_cannot_be_used_are_refused(labels):
    with pytest.raises(DataError):
        estimate_n_clusters(overlapping(0)[0], labels)


def test_an_unknown_rule_is_refused():
    for rule in (["paper"], "papr"):
        with pytest.raises(UsageError):
            estimate_n_clusters(*overlapping(0), rule=rule)


@pytest.fixture
def bundles():
    """Five groups of twelve similar directions; half of the rows of three groups are labeled."""
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
def test_one_number_and_ranges_are_read(given, expected):
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
def test_what_is_no_number_and_no_range_is_refused(given):
    with pytest.raises(UsageError):
        read_n_clusters(given)


@pytest.mark.parametrize("numbers", [(3, 4), (7, 9), (4, 6)])
def test_the_estimate_and_its_interval_keep_to_a_range(bundles, numbers):
    low, high = numbers
    model = MeanShiftClustering(n_clusters=numbers).fit(*bundles)
    assert low <= model.interval_[0] <= model.n_clusters_ <= model.interval_[1] <= high
    assert len(np.unique(model.labels_)) == model.n_clusters_
    assert MeanShiftClustering().fit(*bundles).n_clusters_ == 5


def test_a_range_in_which_nothing_can_be_is_refused_before_any_work(bundles):
    x, labels = bundles
    for numbers in ((1, 2), (61, 70)):  # below the known categories, above the images
        with pytest.raises(UsageError):
            MeanShiftClustering(n_clusters=numbers).fit(x, labels)
    check_task(
        labels, None, InferenceSettings(min_clusters=1, max_clusters=1000)
    )  # allowed: 3 to 60 of this range are possible
    with pytest.raises(UsageError):
        check_task(np.full(60, -1), None, InferenceSettings(min_clusters=3, max_clusters=9))


TRUTH = np.repeat(np.arange(40), 10)
LABELS = np.where((TRUTH < 20) & (np.arange(400) % 2 == 0), TRUTH, -1)


def best_at_40(n_clusters):
    """Return the true classes with one cluster of wrong images, which grows with the distance of K
    from 40."""
    return np.where(np.arange(400) % 101 < 1.5 * abs(n_clusters - 40), 99, TRUTH)


def test_the_number_of_the_highest_labeled_accuracy_is_found_in_few_tries():
    tried = []

    def cluster(n_clusters):
        tried.append(n_clusters)
        return best_at_40(n_clusters)

    assert search_n_clusters(cluster, LABELS, max_clusters=100) == 40
    assert len(tried) == len(set(tried)) < 20
    assert min(tried) >= 20
    assert max(tried) <= 100


def test_a_range_is_kept_to():
    assert 50 <= search_n_clusters(best_at_40, LABELS, min_clusters=50, max_clusters=70) <= 55
    assert search_n_clusters(best_at_40, LABELS, min_clusters=33, max_clusters=33) == 33
    assert search_n_clusters(best_at_40, LABELS, min_clusters=3, max_clusters=22) >= 20


def test_there_are_no_more_clusters_than_known_classes_and_unlabeled_images():
    """All but five of 400 images are labeled, with 40 classes; accuracy rises with K."""
    labels = np.where(np.arange(400) < 395, TRUTH, -1)
    tried = []

    def cluster(n_clusters):
        tried.append(n_clusters)
        return np.where(np.arange(400) < 8 * n_clusters, TRUTH, 99)

    assert 40 < search_n_clusters(cluster, labels) <= 45
    assert max(tried) <= 45
    assert search_n_clusters(cluster, TRUTH) == 40
