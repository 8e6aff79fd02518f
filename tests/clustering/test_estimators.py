import doctest
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import shoal
from shoal import MeanShiftClustering
from shoal.clustering import estimators as module
from shoal.clustering.estimators import encode_labels, number_clusters
from shoal.clustering.matching import gcd_accuracy
from shoal.errors import DataError, UsageError


@pytest.fixture
def clouds() -> tuple[np.ndarray, np.ndarray]:
    """Four well-separated groups of 15, 20, 25 and 30 rows: rows and group of each."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(4), [15, 20, 25, 30])
    return 5 * np.eye(4, 8)[group] + 0.4 * rng.normal(size=(90, 8)), group


@pytest.fixture
def names(clouds: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Half of groups 1 ('wren') and 3 ('auk') are named."""
    y = np.full(90, None, dtype=object)
    y[np.flatnonzero(clouds[1] == 1)[::2]] = "wren"
    y[np.flatnonzero(clouds[1] == 3)[::2]] = "auk"
    return y


@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@pytest.mark.parametrize("n_clusters", [None, 3])
def test_scikit_learn_accepts_the_estimator(n_clusters: int | None) -> None:
    """Every check of scikit-learn, none declared as failing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(MeanShiftClustering(n_clusters=n_clusters), on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}


def test_known_classes_come_first_and_novel_ones_by_size(
    clouds: tuple[np.ndarray, np.ndarray], names: np.ndarray
) -> None:
    """Known: auk is group 3, wren is group 1. Novel: group 2 has 25 rows, group 0 has 15."""
    rows, group = clouds
    model = MeanShiftClustering(n_clusters=4).fit(rows, names)
    assert model.classes_.tolist() == ["auk", "wren", "novel-001", "novel-002"]
    assert model.labels_.tolist() == np.array([3, 1, 2, 0])[group].tolist()
    assert model.n_clusters_ == 4
    assert model.curve_ is None


def test_k_is_estimated_and_its_curve_kept(clouds: tuple[np.ndarray, np.ndarray], names: np.ndarray) -> None:
    model = MeanShiftClustering(rule="precision").fit(clouds[0], names)
    assert model.n_clusters_ == len(np.unique(model.labels_)) == 4
    assert model.curve_.n_clusters[0] == 2
    assert model.shifts_[model.n_shifts_] == model.shifts_.max() == 1.0


def test_the_estimator_is_the_public_one_and_its_example_runs() -> None:
    assert shoal.MeanShiftClustering is MeanShiftClustering
    assert shoal.gcd_accuracy is gcd_accuracy
    assert doctest.testmod(module).failed == 0


def test_scrambled_hidden_labels_change_nothing(clouds: tuple[np.ndarray, np.ndarray]) -> None:
    """What a user cannot know is shuffled; everything the estimator says stays bit for bit."""
    rows, group = clouds
    is_labeled = (group % 2 == 1) & (np.arange(90) % 2 == 0)
    scrambled = group.copy()
    scrambled[~is_labeled] = np.random.default_rng(1).permutation(group[~is_labeled])
    one, other = (MeanShiftClustering().fit(rows, np.where(is_labeled, truth, -1)) for truth in (group, scrambled))
    for name in ("labels_", "classes_", "shifts_", "confidence_", "outlier_score_", "threshold_", "n_clusters_"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert np.array_equal(one.predict(rows + 0.1), other.predict(rows + 0.1))


def test_the_order_of_rows_changes_no_category(clouds: tuple[np.ndarray, np.ndarray], names: np.ndarray) -> None:
    rows, _ = clouds
    order = np.random.default_rng(2).permutation(90)
    plain, shuffled = MeanShiftClustering().fit(rows, names), MeanShiftClustering().fit(rows[order], names[order])
    assert np.array_equal(shuffled.labels_, plain.labels_[order])
    assert np.array_equal(shuffled.outlier_score_, plain.outlier_score_[order])
    assert shuffled.classes_.tolist() == plain.classes_.tolist()


def test_confidence_is_the_share_of_neighbors_that_agree() -> None:
    """Directions 0, 1, 2 and 50 degrees in two clusters: 50 is alone, so none of its two neighbors agrees."""
    radians = np.deg2rad([0, 1, 2, 50])
    rows = np.stack([np.cos(radians), np.sin(radians)], axis=1)
    model = MeanShiftClustering(n_clusters=2, n_neighbors=2, max_shifts=0).fit(rows, [0, -1, -1, 1])
    assert model.labels_.tolist() == [0, 0, 0, 1]
    assert model.confidence_.tolist() == [1.0, 1.0, 1.0, 0.0]
    expected = 1 - (np.cos(np.deg2rad(1)) + np.cos(np.deg2rad(2))) / 2
    assert model.outlier_score_[0] == pytest.approx(expected)
    assert model.outlier_score_.argmax() == 3


def test_predict_gives_existing_categories_and_minus_one_far_away(
    clouds: tuple[np.ndarray, np.ndarray], names: np.ndarray
) -> None:
    rows, _ = clouds
    model = MeanShiftClustering(n_clusters=4).fit(rows, names)
    near = 5 * np.eye(4, 8)
    assert model.predict(near).tolist() == [3, 1, 2, 0]
    assert model.predict(-near).tolist() == [-1] * 4  # opposite to everything
    assert model.predict(np.eye(8)[7:]).tolist() == [-1]  # at a right angle to everything
    # A fitted row meets itself here, so it never looks lonelier than it was.
    assert (model.predict(rows)[model.outlier_score_ <= model.threshold_] >= 0).all()


def test_predict_does_not_depend_on_the_company(clouds: tuple[np.ndarray, np.ndarray], names: np.ndarray) -> None:
    rows, _ = clouds
    model = MeanShiftClustering(n_clusters=4).fit(rows, names)
    new = rows + 0.3 * np.random.default_rng(3).normal(size=rows.shape)
    assert [int(model.predict(new[i : i + 1])[0]) for i in range(90)] == model.predict(new).tolist()


def test_a_vote_that_ties_goes_to_the_nearest() -> None:
    """Four rows at 0, 10 | 60, 70 degrees, k = 4: two against two; 20 degrees is nearer to the first pair."""
    radians = np.deg2rad([0, 10, 60, 70])
    rows = np.stack([np.cos(radians), np.sin(radians)], axis=1)
    model = MeanShiftClustering(n_clusters=2, n_neighbors=3, outlier_share=0.0).fit(rows, [0, 0, 1, 1])
    model.set_params(n_neighbors=4)
    at = np.deg2rad([20, 50])
    assert model.predict(np.stack([np.cos(at), np.sin(at)], axis=1)).tolist() == [0, 1]


def test_it_works_in_a_pipeline(clouds: tuple[np.ndarray, np.ndarray], names: np.ndarray) -> None:
    rows, group = clouds
    pipeline = make_pipeline(StandardScaler(), MeanShiftClustering(n_clusters=4))
    assert pipeline.fit_predict(rows, names).tolist() == np.array([3, 1, 2, 0])[group].tolist()
    assert pipeline.predict(rows[:2]).tolist() == [3, 3]


def test_it_can_be_cloned_with_its_parameters() -> None:
    model = MeanShiftClustering(5, n_neighbors=3, alpha=0.2, rule="paper")
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize(
    ("y", "classes", "labels"),
    [
        ([4, -1, 2, 4], [2, 4], [1, -1, 0, 1]),
        ([4.0, np.nan, 2.0, -1.0], [2, 4], [1, -1, 0, -1]),
        (["b", None, "a", np.nan], ["a", "b"], [1, -1, 0, -1]),
        (["b", -1, "a", "-1"], ["a", "b"], [1, -1, 0, -1]),
        (["b", "b", "a", np.nan], ["a", "b"], [1, 1, 0, -1]),
        (["b", -1.0, "a", ""], ["a", "b"], [1, -1, 0, -1]),
        (np.array(["b", "", "a", "nan"]), ["a", "b"], [1, -1, 0, -1]),
        (pd.Series([4, None, 2, -1], dtype="Int64"), [2, 4], [1, -1, 0, -1]),
        (np.array(["b", -1, "a", None], dtype=object), ["a", "b"], [1, -1, 0, -1]),
        (pd.Series(["b", pd.NA, "a", None], dtype=object), ["a", "b"], [1, -1, 0, -1]),
        (pd.Series(["b", None, "a", pd.NA]).astype("category"), ["a", "b"], [1, -1, 0, -1]),
        (None, [], [-1, -1, -1, -1]),
    ],
)
def test_labels_are_ints_or_names_with_marks_for_unlabeled(y: object, classes: list, labels: list[int]) -> None:
    found = encode_labels(y, 4)
    assert (found[0], found[1].tolist()) == (classes, labels)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, 2], r"found shape \(3,\), expected \(4,\)"),
        (np.array(["a", 1, None, None], dtype=object), "both names and numbers"),
        ([0.5, 1, 2, 3], "found label 0.5"),
        ([-2, 0, 1, 1], "found -2, expected 0 or more"),
        (["a", 1, None, None], "both names and numbers"),
        ([["a"], ["b"], [""], [""]], r"found shape \(4, 1\)"),
        ([True, False, True, True], "found label True"),
    ],
)
def test_labels_that_cannot_be_read_are_refused(y: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode_labels(y, 4)


def test_a_known_class_without_a_cluster_keeps_its_number() -> None:
    """Classes 0 and 1 share cluster 0, which 0 wins with two images to one; cluster 1 is novel and gets number 2."""
    clusters, labels = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, -1, -1])
    found, n_novel = number_clusters(clusters, labels, 2, np.arange(5.0)[:, None])
    assert (found.tolist(), n_novel) == ([0, 0, 0, 2, 2], 1)


def test_bad_input_is_refused(clouds: tuple[np.ndarray, np.ndarray], names: np.ndarray) -> None:
    rows, group = clouds
    with pytest.raises(UsageError, match="give the number of clusters, or labels"):
        MeanShiftClustering().fit(rows)
    with pytest.raises(UsageError, match="alpha"):
        MeanShiftClustering(alpha=2).fit(rows, names)
    with pytest.raises(UsageError, match="n_neighbors: found 90 with 90 images"):
        MeanShiftClustering(n_neighbors=90).fit(rows, names)
    with pytest.raises(UsageError, match="expected 2 to 90"):
        MeanShiftClustering(n_clusters=1).fit(rows, names)
    with pytest.raises(UsageError, match="expected 2 to 90"):
        MeanShiftClustering(n_clusters=91).fit(rows, names)
    with pytest.raises(DataError, match=r"expected \(90,\)"):
        MeanShiftClustering().fit(rows, names[:5])
    with pytest.raises(DataError, match="only class 0 is labeled"):
        MeanShiftClustering().fit(rows, np.where(group == 1, 0, -1))
    with pytest.raises(UsageError, match="did you mean 'paper'"):
        MeanShiftClustering(rule="papr").fit(rows, names)
    with pytest.raises(UsageError, match="outlier_share"):
        MeanShiftClustering(outlier_share=1.0).fit(rows, names)
    rows = rows.copy()
    rows[7] = 0
    with pytest.raises(DataError, match="only zeros in row 7"):
        MeanShiftClustering().fit(rows, names)
    rows[7] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        MeanShiftClustering().fit(rows, names)


def test_whole_numbers_may_have_rows_of_zeros() -> None:
    """Counts of nothing are data; they take the direction that prefers no column."""
    counts = np.array([[3, 0], [4, 0], [0, 2], [0, 5], [0, 0], [1, 1]])
    model = MeanShiftClustering(n_clusters=3, n_neighbors=1, max_shifts=0).fit(counts)
    assert model.labels_[4] == model.labels_[5]
    assert model.predict(np.zeros((1, 2), dtype=int))[0] in (-1, model.labels_[4])
