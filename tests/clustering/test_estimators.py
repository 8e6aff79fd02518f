import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.estimator_checks import check_estimator

from shoal import MeanShiftClustering
from shoal.clustering.estimators import encode_labels
from shoal.errors import DataError, UsageError

Clouds = tuple[np.ndarray, np.ndarray]


def on_circle(*degrees):
    """Return unit rows at these angles."""
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


@pytest.fixture
def clouds():
    """Four well-separated groups of 15, 20, 25 and 30 rows, and the group of each row."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(4), [15, 20, 25, 30])
    return 5 * np.eye(4, 8)[group] + 0.4 * rng.normal(size=(90, 8)), group


@pytest.fixture
def names(clouds):
    """Half of the rows of group 1 ('wren') and of group 3 ('auk') are labeled."""
    y = np.full(90, None, dtype=object)
    y[np.flatnonzero(clouds[1] == 1)[::2]] = "wren"
    y[np.flatnonzero(clouds[1] == 3)[::2]] = "auk"
    return y


@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@pytest.mark.slow
@pytest.mark.parametrize("n_clusters", [None, 3])
def test_scikit_learn_accepts_the_estimator(n_clusters):
    """All of scikit-learn's estimator checks pass, with no expected failures."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(MeanShiftClustering(n_clusters=n_clusters), on_skip=None)
    assert {result["status"] for result in results} <= {"passed", "skipped"}


def test_known_classes_come_first_and_novel_ones_by_size(clouds, names):
    """Known classes are auk (group 3) and wren (group 1); novel ones are group 2 with 25 rows and
    group 0 with 15."""
    rows, group = clouds
    model = MeanShiftClustering(n_clusters=4).fit(rows, names)
    assert model.classes_.tolist() == ["auk", "wren", "novel-001", "novel-002"]
    assert model.labels_.tolist() == np.array([3, 1, 2, 0])[group].tolist()
    assert model.n_clusters_ == 4
    assert model.curve_ is None


def test_k_is_estimated_and_its_curve_kept(clouds, names):
    model = MeanShiftClustering().fit(clouds[0], names)
    assert model.n_clusters_ == len(np.unique(model.labels_))
    assert model.curve_.n_clusters[0] == 2
    assert model.shifts_[model.n_shifts_] == model.shifts_.max() == 1.0


def test_the_order_of_rows_changes_no_category(clouds, names):
    rows, _ = clouds
    order = np.random.default_rng(2).permutation(90)
    plain = MeanShiftClustering().fit(rows, names)
    shuffled = MeanShiftClustering().fit(rows[order], names[order])
    assert np.array_equal(shuffled.labels_, plain.labels_[order])
    assert np.array_equal(shuffled.outlier_score_, plain.outlier_score_[order])
    assert shuffled.classes_.tolist() == plain.classes_.tolist()


def test_confidence_is_the_share_of_neighbors_that_agree():
    """Points at 0, 1, 2 and 50 degrees in two clusters: both neighbors of the point at 50 are in
    the other cluster."""
    model = MeanShiftClustering(n_clusters=2, n_neighbors=2, max_shifts=0).fit(
        on_circle(0, 1, 2, 50), [0, -1, -1, 1]
    )
    assert model.labels_.tolist() == [0, 0, 0, 1]
    assert model.confidence_.tolist() == [1.0, 1.0, 1.0, 0.0]
    expected = 1 - (np.cos(np.deg2rad(1)) + np.cos(np.deg2rad(2))) / 2
    assert model.outlier_score_[0] == pytest.approx(expected)
    assert model.outlier_score_.argmax() == 3


def test_predict_gives_existing_categories_and_minus_one_far_away(clouds, names):
    rows, _ = clouds
    model = MeanShiftClustering(n_clusters=4).fit(rows, names)
    near = 5 * np.eye(4, 8)
    assert model.predict(near).tolist() == [3, 1, 2, 0]
    assert model.predict(-near).tolist() == [-1] * 4  # opposite to everything
    assert model.predict(np.eye(8)[7:]).tolist() == [-1]  # orthogonal to everything
    # A fitted row is its own neighbor here, so its outlier score cannot rise.
    assert (model.predict(rows)[model.outlier_score_ <= model.threshold_] >= 0).all()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_the_stated_share_of_fitted_rows_lies_beyond_the_threshold(clouds, names, share):
    model = MeanShiftClustering(n_clusters=4, outlier_share=share).fit(clouds[0], names)
    assert (model.outlier_score_ > model.threshold_).sum() == 90 * share


def test_predict_asks_the_rows_where_they_were_given_not_where_they_were_shifted():
    """Rows at 0, 30 | 70, 80 degrees; one shift moves them to 15, 15 | 75, 75.

    46 degrees is nearer to 30 than to 70, but nearer to 75 than to 15.
    """
    model = MeanShiftClustering(n_clusters=2, n_neighbors=1, outlier_share=0.0).fit(
        on_circle(0, 30, 70, 80)
    )
    assert model.n_shifts_ == 1
    assert model.labels_[0] == model.labels_[1] != model.labels_[2]
    assert model.predict(on_circle(46)).tolist() == [model.labels_[1]]


def test_duplicates_rounded_to_float32_are_not_far_from_themselves():
    """Ten copies of each of three directions: all outlier scores, and so the threshold, are 0
    except for rounding."""
    directions = np.random.default_rng(0).normal(size=(3, 50))
    rows = np.repeat(directions, 10, axis=0)
    model = MeanShiftClustering(n_clusters=3).fit(rows)
    assert model.predict(rows.astype(np.float32)).tolist() == model.labels_.tolist()
    assert model.predict(-directions).tolist() == [-1] * 3


def test_a_fitted_model_holds_nothing_of_a_device_and_predicts_alike_once_loaded(clouds, names):
    """A pickle without tensors can be loaded on a machine without a GPU, wherever the model was
    fitted."""
    model = MeanShiftClustering(n_clusters=4).fit(clouds[0], names)
    stored = pickle.dumps(model)
    assert b"torch" not in stored
    assert np.array_equal(
        pickle.loads(stored).predict(clouds[0] + 0.1), model.predict(clouds[0] + 0.1)
    )


@pytest.mark.parametrize(
    ("y", "classes", "labels"),
    [
        ([4, -1, 2, 4], [2, 4], [1, -1, 0, 1]),
        (["b", None, "a", np.nan], ["a", "b"], [1, -1, 0, -1]),
        (["b", -1, "a", "-1"], ["a", "b"], [1, -1, 0, -1]),
        (np.array(["b", "", "a", "nan"]), ["a", "b"], [1, -1, 0, -1]),
        (pd.Series([4, None, 2, -1], dtype="Int64"), [2, 4], [1, -1, 0, -1]),
        (pd.Series(["b", pd.NA, "a", None], dtype=object), ["a", "b"], [1, -1, 0, -1]),
        (pd.Series(["b", None, "a", pd.NA]).astype("category"), ["a", "b"], [1, -1, 0, -1]),
        (["10.0", "", "3.0", "10"], ["3", "10"], [1, -1, 0, 1]),
        ([True, None, False, True], ["False", "True"], [1, -1, 0, 1]),
        (None, [], [-1, -1, -1, -1]),
    ],
)
def test_labels_are_ints_or_names_with_marks_for_unlabeled(y, classes, labels):
    found = encode_labels(y, 4)
    assert (found[0], found[1].tolist()) == (classes, labels)


@pytest.mark.parametrize(
    "y",
    [
        [0, 1, 2],
        np.array(["a", 1, None, None], dtype=object),
        [0.5, 1, 2, 3],
        [-2, 0, 1, 1],
        ["a", 1, None, None],
        [["a"], ["b"], [""], [""]],
        [b"a", b"b", b"", b""],
        ["0.5", "1", "2", "3"],
    ],
)
def test_labels_that_cannot_be_read_are_refused(y):
    with pytest.raises(DataError):
        encode_labels(y, 4)


def test_bad_input_is_refused(clouds, names):
    rows, group = clouds
    with pytest.raises(UsageError):
        MeanShiftClustering().fit(rows)
    for y in (names[:5], np.where(group == 1, 0, -1)):
        with pytest.raises(DataError):
            MeanShiftClustering().fit(rows, y)
    model = MeanShiftClustering(n_clusters=4).fit(rows)
    for value in (0, np.nan, np.inf):
        broken = rows.copy()
        broken[7] = value
        for use in (model.fit, model.predict):
            with pytest.raises(DataError):
                use(broken)


@pytest.mark.parametrize(
    "given",
    [
        *({"alpha": 2}, {"n_neighbors": 90}, {"n_clusters": 1}, {"n_clusters": 91}),
        *({"rule": "papr"}, {"n_clusters": 4, "rule": "papr"}, {"rule": ["paper"]}),
        *({"n_clusters": 4.0}, {"n_clusters": True}, {"n_neighbors": None}),
        *({"alpha": "0.5"}, {"max_shifts": 2.0}, {"outlier_share": 1.0}),
        *({"outlier_share": None}, {"alpha": 1j}),
    ],
    ids=str,
)
def test_a_parameter_that_cannot_be_used_is_refused(clouds, names, given):
    with pytest.raises(UsageError):
        MeanShiftClustering(**given).fit(clouds[0], names)


def test_what_is_set_after_fitting_waits_for_the_next_fit_and_a_device_that_is_none_is_refused(
    clouds,
):
    """The threshold was computed with the k of the fit; with another k it would accept or reject
    every row."""
    model = MeanShiftClustering(n_clusters=4).fit(clouds[0])
    before = model.predict(clouds[0]).tolist()
    assert model.set_params(n_neighbors=60).predict(clouds[0]).tolist() == before
    with pytest.raises(UsageError):
        model.set_params(device=[]).predict(clouds[0])


def test_the_rule_that_decided_is_reported(clouds):
    few = np.where(np.isin(np.arange(90), [0, 15, 35]), clouds[1], -1)  # one each in three groups
    assert MeanShiftClustering().fit(clouds[0], few).rule_ == "gap"
    assert MeanShiftClustering(rule="paper").fit(clouds[0], few).rule_ == "paper"
    assert MeanShiftClustering(n_clusters=4).fit(clouds[0]).rule_ is None


def test_a_novel_category_never_takes_the_name_of_a_known_one(
    clouds,
):
    """The labels include the name of a category found earlier, so 'novel-001' is now known."""
    y = np.where((clouds[1] == 1) & (np.arange(90) % 2 == 0), "novel-001", "")
    assert MeanShiftClustering(n_clusters=4).fit(clouds[0], y).classes_.tolist() == [
        *("novel-001", "novel-002", "novel-003", "novel-004"),
    ]


@pytest.mark.parametrize("container", [np.array, np.ndarray.tolist, pd.DataFrame])
def test_whole_numbers_may_have_rows_of_zeros_whatever_holds_them(container):
    """Counts may all be zero in a row; such rows get the direction with equal entries, and a
    warning names them."""
    counts = np.array([[3, 0], [4, 0], [0, 2], [0, 5], [0, 0], [1, 1]])
    model = MeanShiftClustering(n_clusters=3, n_neighbors=1, max_shifts=0)
    with pytest.warns(
        UserWarning, match=r"only zeros in row 4 \(1 of 6\), so no direction; taken for"
    ) as warned:
        model.fit(container(counts))
    assert warned[0].filename == __file__
    assert model.labels_[4] == model.labels_[5]
    with pytest.warns(UserWarning, match=r"only zeros in row 0 \(1 of 1\)"):
        assert model.predict(container(np.zeros((1, 2), dtype=int)))[0] in (-1, model.labels_[4])
    with pytest.raises(DataError):
        model.fit(container(counts.astype(float)))
