"""The labels that no method sees, and how they judge."""

import numpy as np
import pytest

from shoal.data.collection import Collection
from shoal.discovery.comparison.comparison_settings import choose_comparison
from shoal.discovery.comparison.judge_methods import kept_right
from shoal.discovery.comparison.label_draw import (
    LabelDraw,
    withhold_labels,
    without_labels,
)
from shoal.discovery.trained.held_out import hold_out
from shoal.errors import DataError
from shoal.runs import Assignment


@pytest.fixture
def settings(options):
    return choose_comparison(**options).first


def test_methods_are_given_neither_the_kept_labels_nor_the_names_of_whole_categories(
    collection, settings
) -> None:
    kept = withhold_labels(collection, settings)
    (name,) = kept.hidden_names
    assert name not in kept.given.classes
    assert (kept.given.labels[kept.rows] == -1).all()
    assert (collection.labels[kept.rows] == kept.labels).all()
    seen = np.setdiff1d(np.flatnonzero(collection.is_labeled), kept.rows)
    names = [kept.given.classes[label] for label in kept.given.labels[seen]]
    assert names == [collection.classes[label] for label in collection.labels[seen]]
    assert set(names) == set(kept.given.classes)


def test_the_first_draw_is_that_of_discover_and_others_keep_other_labels(
    collection, settings
) -> None:
    kept = [withhold_labels(collection, settings, draw) for draw in range(3)]
    assert (kept[0].rows == hold_out(collection, settings).rows).all()
    assert len({tuple(one.rows) for one in kept}) == 3


def test_a_whole_category_is_one_unit_and_an_image_is_another(collection, settings) -> None:
    kept = withhold_labels(collection, settings)
    assert len(set(kept.units[kept.is_novel])) == 1
    assert len(set(kept.units[~kept.is_novel])) == (~kept.is_novel).sum()
    assert not set(kept.units[kept.is_novel]) & set(kept.units[~kept.is_novel])


def in_memory(labels: list[int], classes: tuple[str, ...]) -> Collection:
    names = tuple(f"{i:02d}" for i in range(len(labels)))
    return Collection(
        names, np.array(labels), classes, images=[np.zeros((8, 8, 3), np.uint8)] * len(labels)
    )


def test_a_category_without_labels_is_forgotten_and_the_others_are_numbered_anew() -> None:
    found = without_labels(in_memory([0, 1, 1, 2, 2], ("a", "b", "c")), np.array([1, 2, 3]))
    assert found.classes == ("a", "c")
    assert found.labels.tolist() == [0, -1, -1, -1, 1]


def assigned(*categories: str) -> list[Assignment]:
    found = {
        "label_given": "",
        "confidence": 1.0,
        "outlier_score": 0.0,
        "nearest_known": "",
        "second_category": "",
    }
    return [
        Assignment(
            path=f"{i}", category_id=0, category=name, is_novel=name.startswith("novel"), **found
        )
        for i, name in enumerate(categories)
    ]


@pytest.mark.parametrize(
    ("categories", "right"),
    [
        (("a", "a", "novel-1", "novel-1", "novel-2"), "11110"),
        (("novel-1", "b", "novel-1", "novel-1", "novel-1"), "00111"),
        (("a", "a", "a", "a", "novel-2"), "11001"),
        (("b", "b", "b", "b", "b"), "00000"),
    ],
)
def test_a_known_image_is_right_by_name_and_a_whole_category_in_one_novel_category(
    categories, right: str
) -> None:
    """Two kept images of a, three of c, which was kept whole: most of them together, not in a known
    category, count."""
    kept = LabelDraw(
        given=in_memory([-1] * 5, ("a", "b")),
        rows=np.arange(5),
        labels=np.array([0, 0, 2, 2, 2]),
        classes=("a", "b", "c"),
        hidden=(2,),
    )
    assert kept_right(kept, assigned(*categories)).astype(int).tolist() == [
        int(digit) for digit in right
    ]


def test_two_whole_categories_do_not_share_one_novel_category() -> None:
    given = in_memory([-1] * 5, ())
    rows = np.arange(5)
    kept = LabelDraw(
        given=given, rows=rows, labels=np.array([0, 0, 0, 1, 1]), classes=("a", "b"), hidden=(0, 1)
    )
    assert kept_right(kept, assigned(*["novel-1"] * 5)).tolist() == [True, True, True, False, False]


def test_too_few_labels_are_refused_with_how_many_there_are(collection, settings) -> None:
    few = without_labels(collection, np.flatnonzero(collection.is_labeled)[:-12])
    with pytest.raises(
        DataError,
        match=r"\d+ labels? could be kept to judge by, and a comparison needs 10; label more",
    ):
        withhold_labels(few, settings)


def test_what_would_be_left_for_a_method_is_checked(collection, settings) -> None:
    one = Collection(
        collection.names, np.zeros(len(collection), int), ("red",), images=collection.images
    )
    with pytest.raises(
        DataError, match=r"without the labels that are kept to judge by, .* at least 2 categories"
    ):
        withhold_labels(one, settings)
