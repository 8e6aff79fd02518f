import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.clustering.matching import (
    Accuracy,
    gcd_accuracy,
    matched_accuracy,
    recall_at_k,
)
from shoal.errors import DataError


def all_best_matchings(y_true, y_pred):
    """Return which images are correct, for every one-to-one matching with the most correct
    images."""
    clusters = np.unique(y_pred).tolist()
    classes = np.unique(y_true).tolist()
    width = max(len(clusters), len(classes))
    classes += [None] * (width - len(classes))
    clusters += [None] * (width - len(clusters))
    rights = [
        np.array(
            [
                dict(zip(clusters, order, strict=True))[p] == t
                for t, p in zip(y_true, y_pred, strict=True)
            ]
        )
        for order in itertools.permutations(classes)
    ]
    most = max(right.sum() for right in rights)
    return [right for right in rights if right.sum() == most]


def test_one_matching_serves_known_and_novel():
    """Six images: cluster 5 holds a, a, b and cluster 7 holds b, c, c. The best matching is 5=a,
    7=c, with four of six correct.

    Known are a and b: both images of a are correct and both of b wrong, so 2 of 4. Novel is c: 2 of
    2.
    """
    y_true = np.array(["a", "a", "b", "b", "c", "c"])
    y_pred = np.array([5, 5, 5, 7, 7, 7])
    accuracy = gcd_accuracy(y_true, y_pred, np.isin(y_true, ["a", "b"]))
    assert accuracy == Accuracy(all=4 / 6, known=0.5, novel=1.0)
    assert str(accuracy) == "All 66.7 / Known 50.0 / Novel 100.0"


def test_a_subset_without_images_is_nan():
    accuracy = gcd_accuracy([0, 1], [0, 1], [True, True])
    assert (accuracy.all, accuracy.known) == (1.0, 1.0)
    assert math.isnan(accuracy.novel)
    assert math.isnan(matched_accuracy([], []))


def middle(values):
    return (min(values) + max(values)) / 2


@pytest.mark.parametrize("n_clusters", [1, 3, 4, 6])
@pytest.mark.parametrize("seed", range(6))
def test_known_and_novel_are_the_middle_over_all_best_permutations(n_clusters, seed):
    rng = np.random.default_rng(seed)
    y_true = rng.integers(0, 4, 12)
    y_pred = rng.integers(0, n_clusters, 12)
    known = y_true < 2
    best = all_best_matchings(y_true, y_pred)
    found = gcd_accuracy(y_true, y_pred, known)
    assert found.all == best[0].mean() == matched_accuracy(y_true, y_pred)
    assert found.known == pytest.approx(middle([float(right[known].mean()) for right in best]))
    assert found.novel == pytest.approx(middle([float(right[~known].mean()) for right in best]))


Labels = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(Labels, st.randoms(use_true_random=False))
def test_no_name_and_no_order_of_images_changes_an_accuracy(pairs, random):
    """Small counts make many ties between matchings; neither names nor the order of images may
    break them."""
    y_true, y_pred = np.array(pairs).T
    rng = np.random.default_rng(random.getrandbits(32))
    classes = rng.permutation(6)
    clusters = rng.permutation(7)
    order = rng.permutation(len(pairs))
    expected = gcd_accuracy(y_true, y_pred, y_true < 3)
    found = gcd_accuracy(classes[y_true][order], clusters[y_pred][order], (y_true < 3)[order])
    assert (found.all, found.known, found.novel) == pytest.approx(
        (expected.all, expected.known, expected.novel), abs=1e-12, nan_ok=True
    )


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_images_without_a_label_are_named_not_counted_as_wrong(missing):
    names = np.array(["a", missing, "b"], dtype=object)
    with pytest.raises(DataError):
        gcd_accuracy(names, [0, 0, 1], [True, True, False])
    with pytest.raises(DataError):
        gcd_accuracy([0, 0, 1], names, [True, True, False])


@pytest.mark.parametrize(
    "y_true", [[0, -1, 1], [0.0, -1.0, 1.0], ["a", -1, "b"], np.array([0, -1, 1], dtype=object)]
)
def test_the_mark_of_unlabeled_images_is_not_scored_as_a_class(y_true):
    with pytest.raises(DataError):
        gcd_accuracy(y_true, [0, -1, 1], [True, True, False])


def test_recall_asks_for_one_neighbor_of_the_same_class():
    """The neighbors of query 0 (class a) are b, a: a hit from k = 2 on. Those of query 1 (class b)
    are a, a: never a hit."""
    bank = np.array(["b", "a", "a"])
    neighbors = np.array([[0, 1], [1, 2]])
    assert recall_at_k(neighbors[:, :1], ["a", "b"], bank) == 0.0
    assert recall_at_k(neighbors, ["a", "b"], bank) == 0.5


@pytest.mark.parametrize(
    ("y_true", "y_pred", "is_known"),
    [
        ([0, 1], [0, 1, 2], [True, True]),
        ([0, 1], [0, 1], [1, 0]),
        ([0, 1], [0, 1], [True, True, False]),
        ([0, 1], [[0], [1]], [True, False]),
    ],
)
def test_bad_input_is_refused(y_true, y_pred, is_known):
    with pytest.raises(DataError):
        gcd_accuracy(y_true, y_pred, is_known)
