from itertools import islice, product

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage
from sklearn.datasets import load_digits

from shoal.clustering.curve import MIN_FIT_LABELS, Curve, RunningMatching, accuracy_curve
from shoal.clustering.iterates import iterates
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.n_clusters import (
    RULES,
    choose,
    estimate_n_clusters,
    gap,
    plateau,
    precision,
    read_mark,
)
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.errors import DataError, UsageError


def grow(rows: np.ndarray) -> Tree:
    return Tree(linkage(rows, "ward"))


def overlapping(seed: int, n_classes: int = 6, n_rows: int = 120) -> tuple[Tree, np.ndarray]:
    """Gaussian classes that overlap, half of the images of the first classes labeled."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_rows)
    rows = rng.normal(size=(n_classes, 5))[y] + 0.8 * rng.normal(size=(n_rows, 5))
    labels = np.where((y < n_classes - 2) & (rng.random(n_rows) < 0.5), y, -1)
    return grow(rows), labels


def curve(
    accuracy: list[float],
    fit: list[float] | None = None,
    gaps: list[float] | None = None,
    class_sizes: tuple[int, ...] = (5000, 5000),
    n_distinct: int = 20_000,
) -> Curve:
    """A curve from K = 2 up with two known classes."""
    n_clusters = np.arange(2, 2 + len(accuracy))
    flat = np.ones(len(accuracy))
    fits, wide = (flat if given is None else np.array(given) for given in (fit, gaps))
    return Curve(n_clusters, np.array(accuracy), fits, wide, np.array(class_sizes), n_distinct)


def label_some(y: np.ndarray, per_class: list[int]) -> np.ndarray:
    """Label the first images of each class: `per_class[c]` of class c, none of the classes
    after."""
    labels = np.full(len(y), -1)
    for c, n in enumerate(per_class):
        labels[np.flatnonzero(y == c)[:n]] = c
    return labels


@pytest.mark.parametrize("seed", range(6))
def test_the_sweep_is_the_loop_that_cuts_and_counts_for_each_k(seed: int) -> None:
    tree, labels = overlapping(seed)
    labeled = labels >= 0
    found = accuracy_curve(tree, labels)
    for k, accuracy in zip(found.n_clusters, found.accuracy, strict=True):
        assert accuracy == matched_accuracy(labels[labeled], tree.cut(int(k))[labeled])


@pytest.mark.parametrize("seed", range(3))
def test_the_fit_of_the_sweep_is_that_of_the_loop(seed: int) -> None:
    tree, labels = overlapping(seed)
    found = accuracy_curve(tree, labels)
    classes = np.unique(labels[labels >= 0])
    for k, fit in zip(found.n_clusters, found.fit, strict=True):
        cut = tree.cut(int(k))
        best = []
        for c in classes:
            of_class = labels == c
            shares = [
                np.mean(cut[of_class] == cluster) * np.mean(of_class[cut == cluster])
                for cluster in np.unique(cut)
            ]
            best.append(np.sqrt(max(shares)))
        assert fit == pytest.approx(np.mean(best))


@pytest.mark.parametrize("seed", range(60))
def test_the_running_matching_is_the_best_after_every_merge(seed: int) -> None:
    """Tables of every shape and density; the value is compared with a matching solved from
    scratch."""
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


@pytest.mark.parametrize("seed", range(3))
def test_classes_with_few_labels_have_no_say_in_the_fit(seed: int) -> None:
    """The fit of all classes but two, which keep four labels, is that without the labels of these
    two."""
    tree, labels = overlapping(seed)
    few = labels.copy()
    none = labels.copy()
    for c in (0, 2):
        rows = np.flatnonzero(labels == c)
        few[rows[MIN_FIT_LABELS - 1 :]] = none[rows] = -1
    found = accuracy_curve(tree, few)
    expected = accuracy_curve(tree, none)
    # Without the two classes the sweep goes down to K = 2.
    assert np.array_equal(found.fit, expected.fit[2:])


def test_six_points_with_two_known_classes() -> None:
    """Pairs at 0, 10 and 30 on a line; the pairs at 0 and 30 are labeled a and b, the one at 10 is
    not.

    K = 2 joins the first two pairs, which costs no labeled image: accuracy 1 at K = 2 and K = 3. K
    = 4 splits the widest pair, the unlabeled one; 5 and 6 split the labeled ones, which leaves one
    of two images of a class right. The paper's rule takes 2, the smallest; the gap is widest at 3,
    where heights rise from about 0.3 to 10.
    """
    line = np.array([[0.0], [0.1], [10.0], [10.3], [30.0], [30.2]])
    labels = np.array([0, 0, -1, -1, 1, 1])
    found = estimate_n_clusters(grow(line), labels, rule="paper")
    assert found.curve.n_clusters.tolist() == [2, 3, 4, 5, 6]
    assert found.curve.accuracy.tolist() == [1.0, 1.0, 1.0, 0.75, 0.5]
    assert (found.n_clusters, found.accuracy, found.rule) == (2, 1.0, "paper")
    assert gap(found.curve) == 3


def test_precision_charges_for_images_that_a_class_swallows() -> None:
    """Eight points each near 0, 10 and 30, the first and the last eight labeled: K = 2 and K = 3
    are equally accurate.

    At K = 2 the first class shares its cluster with eight others: √(1 · 1/2); at K = 3 it has its
    own, √(1 · 1).
    """
    line = np.concatenate([start + 0.1 * np.arange(8) for start in (0, 10, 30)])[:, None]
    labels = np.repeat([0, -1, 1], 8)
    found = accuracy_curve(grow(line), labels)
    assert precision(found) == 3
    assert found.fit[:2].tolist() == pytest.approx([(np.sqrt(0.5) + 1) / 2, 1.0])


def test_the_papers_rule_takes_the_smallest_of_equals() -> None:
    assert choose(curve([0.5, 0.8, 0.8, 0.7]), "paper") == (3, "paper")


def test_the_plateau_rule_finds_the_middle_of_a_plateau() -> None:
    """Equal accuracy at K = 4 … 9 and nothing elsewhere: the middle in log K, about √(4·9) = 6."""
    assert round(plateau(curve([0.1, 0.1, *[0.9] * 6, 0.1, 0.1]))) == 6


def test_a_plateau_is_weighed_in_log_k() -> None:
    """Equal accuracy at K = 4 … 36, each K weighing 1/K: 11, near √(4·36); every K counted alike
    gives 17."""
    assert round(plateau(curve([0.1, 0.1, *[0.9] * 33, 0.1]))) == 11


def test_the_plateau_rule_is_the_papers_when_labels_leave_no_doubt() -> None:
    assert round(plateau(curve([0.5, 0.7, 0.9, 0.7, 0.5]))) == 4


def test_the_balance_is_the_geometric_mean_of_plateau_and_precision() -> None:
    """Accuracy is best at K = 4 beyond doubt, accuracy · fit at K = 16: √(4·16) = 8, where (4 +
    16)/2 would be 10."""
    accuracy = [0.1] * 20
    fit = [0.1] * 20
    accuracy[2] = 0.9
    accuracy[14] = 0.8
    fit[14] = 1.0
    found = curve(accuracy, fit=fit)
    assert [round(k) for k in (plateau(found), precision(found))] == [4, 16]
    assert choose(found, "pairs") == (8, "balance")


def test_only_the_end_of_a_rule_is_rounded() -> None:
    """Equal accuracy at K = 2 and 3, which weigh 1/2 and 1/3: the plateau lies at 2^(3/5)·3^(2/5) =
    2.35. With precision at 20 the balance is √(2.35·20) = 6.9, seven clusters; with a plateau of
    two it would be √40 = 6.3."""
    accuracy = [0.9, 0.9, *[0.01] * 18]
    fit = [0.001] * 20
    fit[18] = 1.0
    found = curve(accuracy, fit=fit)
    assert plateau(found) == pytest.approx(2 ** (3 / 5) * 3 ** (2 / 5))
    assert choose(found, "pairs") == (7, "balance")


@pytest.mark.parametrize(
    ("n_distinct", "expected"),
    [
        (20_000, 20),  # ten times two classes, not 22
        (20, 10),  # half of the images, not 20
        (3, 2),  # never fewer than the classes
    ],
)
def test_the_gap_rule_looks_no_further_than_ten_times_the_classes_and_half_of_the_images(
    n_distinct: int, expected: int
) -> None:
    gaps = np.zeros(30)
    gaps[[0, 8, 18, 20]] = 0.5, 1, 2, 3  # K = 2, 10, 20 and 22
    assert gap(curve([0.9] * 30, gaps=gaps.tolist(), n_distinct=n_distinct)) == expected


@pytest.mark.parametrize(
    ("class_sizes", "decided"),
    [
        ((8, 8), "balance"),
        ((7, 7), "median"),
        ((8, 8, 1, 1), "balance"),  # half of the classes have enough
        ((50, 7), "median"),  # half, but only one
        ((9, 9, 4, 4, 4), "median"),
        ((2, 2, 2), "median"),
        ((2, 2, 1), "gap"),
    ],
)
def test_a_more_modest_mark_decides_where_labels_are_too_few(
    class_sizes: tuple[int, ...], decided: str
) -> None:
    found = curve([0.5, 0.9, 0.9], gaps=[0, 0, 1], class_sizes=class_sizes)
    assert choose(found, "pairs") == (round(read_mark(found).n_clusters), decided)
    assert choose(found, "paper") == (3, "paper")  # what the paper does stays what it does


@pytest.mark.parametrize("n_labels", [1, 2, 3, 4, 5, 6, 7, 8, 10])
def test_few_labels_do_not_make_hundreds_of_clusters(n_labels: int) -> None:
    """Ten clear classes of a hundred, five of them known by so many labels: precision would take a
    cluster per image, and the paper's rule would find no novel class at all."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 100)
    tree = grow(rng.normal(size=(10, 16))[y] + 0.3 * rng.normal(size=(1000, 16)))
    found = estimate_n_clusters(tree, label_some(y, [n_labels] * 5))
    assert 7 <= found.n_clusters <= 14
    assert found.rule == ("gap" if n_labels < 2 else "pairs")


@pytest.mark.parametrize(
    ("class_sizes", "expected"),
    [
        ((5, 5), 16),  # plateau 4, gap 16 and precision 20: the middle one
        ((4, 4), 8),  # precision needs five labels: between plateau and gap, √(4·16)
        ((2, 1), 16),  # plateau needs two per class in it: gap alone
    ],
)
def test_the_median_is_that_of_the_rules_whose_labels_suffice(
    class_sizes: tuple[int, ...], expected: int
) -> None:
    """Accuracy is best at K = 4 beyond doubt, accuracy · fit at K = 20, and the gap is widest at K
    = 16."""
    accuracy = [0.1] * 20
    fit = [0.1] * 20
    gaps = [0.0] * 20
    accuracy[2] = 0.9
    accuracy[18] = 0.3
    fit[18] = 1.0
    gaps[14] = 1.0
    found = curve(accuracy, fit=fit, gaps=gaps, class_sizes=class_sizes, n_distinct=1000)
    assert (precision(found), gap(found)) == (20, 16)
    assert choose(found, "pairs")[0] == expected


@pytest.mark.parametrize(("rule", "expected"), [("paper", {6, 7, 8}), ("pairs", {8, 9})])
def test_far_apart_classes_are_counted(rule: str, expected: set[int]) -> None:
    """8 far-apart classes, 6 of them known: joining the novel two costs nothing by the paper's
    rule."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(8), 12)
    tree = grow(10 * rng.normal(size=(8, 16))[y] + rng.normal(size=(96, 16)))
    labels = np.where((y < 6) & (np.arange(96) % 2 == 0), y, -1)
    assert estimate_n_clusters(tree, labels, rule=rule).n_clusters in expected


@pytest.mark.parametrize("rule", RULES)
def test_names_of_classes_change_nothing(rule: str) -> None:
    tree, labels = overlapping(1)
    renamed = np.where(labels < 0, -1, 97 - 3 * labels)
    assert (
        estimate_n_clusters(tree, renamed, rule=rule).n_clusters
        == estimate_n_clusters(tree, labels, rule=rule).n_clusters
    )


def test_the_sweep_stops_at_max_clusters() -> None:
    tree, labels = overlapping(0)
    short = accuracy_curve(tree, labels, max_clusters=20)
    whole = accuracy_curve(tree, labels)
    assert short.n_clusters.tolist() == list(range(4, 21))
    assert np.array_equal(short.accuracy, whole.accuracy[: len(short.accuracy)])


@pytest.mark.parametrize(("n_rows", "expected"), [(1300, 1300), (1700, 1500)])
def test_the_sweep_goes_up_to_ten_times_the_known_classes(n_rows: int, expected: int) -> None:
    """150 known classes: 1,500 clusters, where there are as many images; for few classes it is
    1,000."""
    rng = np.random.default_rng(0)
    tree = grow(rng.normal(size=(n_rows, 2)))
    assert (
        accuracy_curve(tree, label_some(np.arange(n_rows) % 150, [1] * 150)).n_clusters[-1]
        == expected
    )
    assert (
        accuracy_curve(tree, label_some(np.arange(n_rows) % 150, [1] * 99)).n_clusters[-1] == 1000
    )


def test_a_class_with_a_single_labeled_image_counts() -> None:
    tree, labels = overlapping(2)
    labels[np.flatnonzero(labels == 3)[1:]] = -1
    assert estimate_n_clusters(tree, labels).curve.n_classes == 4


@pytest.mark.parametrize("rule", RULES)
def test_no_more_clusters_than_distinct_points(rule: str) -> None:
    """Five points, each ten times, two of them known: K = 5 tells them apart, more would only tell
    copies apart."""
    y = np.repeat(np.arange(5), 10)
    found = estimate_n_clusters(grow(np.eye(5)[y]), label_some(y, [5, 5]), rule=rule)
    assert found.curve.n_clusters.tolist() == [2, 3, 4, 5]
    assert found.n_clusters <= 5
    assert found.accuracy == 1.0


def test_a_linkage_matrix_is_not_taken_for_a_tree() -> None:
    linkage = grow(np.eye(4)).linkage
    for given in (linkage, linkage.tolist()):
        with pytest.raises(UsageError):
            estimate_n_clusters(given, [0, 1, -1, -1])


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("n_labels", [1, 3])
def test_copies_of_every_image_do_not_pass_for_clusters(copies: int, n_labels: int) -> None:
    """Twenty classes of five images, ten of them known by a label or three, and every image several
    times."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(20), 5)
    rows = rng.normal(size=(20, 32))[y] + 0.3 * rng.normal(size=(100, 32))
    labels = np.where((y < 10) & (np.arange(100) % 5 < n_labels), y, -1)
    once = estimate_n_clusters(grow(rows), labels).n_clusters
    several = np.concatenate([labels, np.full(100 * (copies - 1), -1)])
    assert abs(once - 20) <= 2
    assert abs(estimate_n_clusters(grow(np.tile(rows, (copies, 1))), several).n_clusters - 20) <= 2


def test_classes_that_share_their_only_point_are_still_that_many_clusters() -> None:
    labels = np.array([0, 1, 2, -1, -1, -1])
    assert estimate_n_clusters(grow(np.repeat(np.eye(2), 3, axis=0)), labels).n_clusters == 3


@pytest.mark.parametrize(
    "labels",
    [
        np.full(120, -1),
        np.where(np.arange(120) < 9, 5, -1),
        np.zeros(119, dtype=int),
        np.full(120, -2),
    ],
)
def test_labels_that_cannot_be_used_are_refused(labels: np.ndarray) -> None:
    with pytest.raises(DataError):
        estimate_n_clusters(overlapping(0)[0], labels)


def test_max_clusters_is_no_fewer_than_the_known_classes_and_no_more_than_the_images() -> None:
    tree, labels = overlapping(0)
    with pytest.raises(UsageError):
        estimate_n_clusters(tree, labels, max_clusters=3)
    assert np.array_equal(
        accuracy_curve(tree, labels, max_clusters=1000).n_clusters, np.arange(4, 121)
    )


def test_a_largest_k_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(UsageError):
        estimate_n_clusters(*overlapping(0), max_clusters=9.0)


def test_an_unknown_rule_is_refused() -> None:
    for rule in (["paper"], "papr"):
        with pytest.raises(UsageError):
            estimate_n_clusters(*overlapping(0), rule=rule)


def test_where_all_classes_are_known_the_interval_holds_their_number() -> None:
    """Few labels of each of ten digits: in two of these draws it would begin at 11, as if some were
    new."""
    x, truth = load_digits(return_X_y=True)
    x = x[:1000]
    truth = truth[:1000]
    tree = next(islice(iterates(unit_points(x), ShiftSettings()), 1, None)).tree
    for n_each, seed in product((2, 5), range(5)):
        rng = np.random.default_rng(seed)
        labels = np.full(len(x), -1)
        for digit in range(10):
            labels[rng.choice(np.flatnonzero(truth == digit), n_each, replace=False)] = digit
        assert estimate_n_clusters(tree, labels).interval[0] == 10
