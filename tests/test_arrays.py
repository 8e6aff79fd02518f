from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from shoal.arrays import (
    as_class,
    as_count,
    as_labels,
    as_number,
    as_stored_embeddings,
    nan_to_null,
    sort_classes,
)
from shoal.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("given", "kept"),
    [("f2", "f2"), ("f4", "f4"), ("f8", "f8"), ("i8", "f8"), ("u1", "f8"), ("?", "f8")],
)
def test_embeddings_keep_floats_and_convert_the_rest(given: str, kept: str) -> None:
    assert as_stored_embeddings(np.ones((3, 2), dtype=given)).dtype == np.dtype(kept)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones(3), "shape (3,)"),
        (np.ones((0, 3)), "shape (0, 3)"),
        (np.ones((3, 0)), "shape (3, 0)"),
        ([[1.0], [1.0, 2.0]], "rows of different lengths"),
        (np.array([["a"]]), "expected numbers"),
        (np.array([[1.0], [np.nan], [np.inf]]), "rows 1, 2 (2 of 3)"),
    ],
)
def test_embeddings_that_cannot_be_used_are_refused_with_the_place(x: object, words: str) -> None:
    with pytest.raises(DataError) as caught:
        as_stored_embeddings(x)
    assert str(caught.value).startswith("X: ")
    assert words in str(caught.value)


def test_labels_are_whole_numbers_from_minus_one_up() -> None:
    assert as_labels([0, -1, 2.0], 3).tolist() == [0, -1, 2]
    for bad in ([0, 1], [0, -2, 1], [0.5, 1, 2], ["a", "b", "c"], [np.nan, 1, 2], [np.inf, 1, 2]):
        with pytest.raises(DataError, match="y: "):
            as_labels(bad, 3)


def test_every_mark_for_unlabeled_means_it() -> None:
    numbers = [None, pd.NA, pd.NaT, np.nan, np.float32(np.nan), -1, -1.0, np.int8(-1)]
    texts = ["", "  ", "-1", "-1.0", " -1.00", "nan", "NaN", "unlabeled", "Unknown"]
    for label in [*numbers, *texts]:
        assert as_class(label) is None, label


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (0, 0),
        (np.int64(3), 3),
        (3.0, 3),
        ("3", "3"),
        (" cat ", "cat"),
        (np.str_("a"), "a"),
        ("-x", "-x"),
        ("3.0", "3"),
        ("3.", "3"),
        (" 12.000 ", "12"),
        ("007.0", "007"),
        ("-0.0", "0"),
        (Decimal("3.00"), "3"),
        ("1.0.0", "1.0.0"),
        ("v3.0", "v3.0"),
        ("3.0 mm", "3.0 mm"),
        ("٣.0", "٣.0"),
        ("1e3", "1e3"),
        (True, "True"),
        (np.False_, "False"),
    ],
)
def test_whole_numbers_are_ints_or_digits_and_other_texts_stay(
    label: object, expected: object
) -> None:
    found = as_class(label)
    assert (found, type(found)) == (expected, type(expected))


def test_fractions_and_numbers_below_minus_one_are_no_class() -> None:
    fractions = [0.5, -0.5, np.float32(1.5), np.inf, "0.5", " 1.50 ", "-7.25", Decimal("1.5")]
    for label in [*fractions, -2, -2.0, np.int64(-7), "-2", "-2.0"]:
        with pytest.raises(DataError, match="labels: found"):
            as_class(label)


def test_classes_that_are_all_whole_numbers_are_sorted_by_number_as_text_too() -> None:
    assert sort_classes({10, 2, 1}) == [1, 2, 10]
    assert sort_classes({"10", "2", "1"}) == ["1", "2", "10"]
    assert sort_classes({"10", "2", "002"}) == ["002", "2", "10"]
    assert sort_classes({"10", "2", "cat"}) == [
        "10",
        "2",
        "cat",
    ]  # one is a name, so all sort as names
    assert sort_classes([]) == []


def test_a_count_is_a_whole_number_and_nothing_like_one() -> None:
    for value in (4.0, "4", None, True, np.array(4), float("nan"), 0):
        with pytest.raises(UsageError, match="k: found"):
            as_count(value, name="k", least=1)
    assert as_count(np.int32(4), name="k") == 4


def test_a_number_is_a_real_one() -> None:
    for value in ("0.5", None, True, 1j, np.array([0.5])):
        with pytest.raises(UsageError, match="alpha: found"):
            as_number(value, name="alpha")
    assert as_number(np.float32(0.5), name="alpha") == as_number(0.5, name="alpha") == 0.5


def test_nan_is_null_wherever_it_is_and_nothing_else_changes() -> None:
    nan = float("nan")
    given = {"share": nan, "rows": [1, nan, ("a", nan)], "in": {"x": np.float64("nan"), "y": 0.0}}
    found = {"share": None, "rows": [1, None, ["a", None]], "in": {"x": None, "y": 0.0}}
    assert nan_to_null(given) == found
