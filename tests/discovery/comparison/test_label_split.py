"""Held-out labels, and how methods are evaluated on them."""

import numpy as np
import pytest

from shoal.data.collection import Collection
from shoal.discovery.comparison.evaluation import (
    LabelSplit,
    find_correct,
    split_labels,
    without_labels,
)
from shoal.discovery.discovery_settings import choose_comparison
from shoal.discovery.trained.evaluation import hold_out
from shoal.errors import DataError
from shoal.runs import Assignment


@pytest.fixture
def settings(options):
    return choose_comparison(**options).frozen


def test_methods_see_neither_the_held_out_labels_nor_the_names_of_whole_categories(
    collection, settings
) -> None:
    split = split_labels(collection, settings)
    (name,) = split.hidden_names
    assert name not in split.collection.classes
    assert (split.collection.labels[split.rows] == -1).all()
    assert (collection.labels[split.rows] == split.labels).all()
    seen = np.setdiff1d(np.flatnonzero(collection.is_labeled), split.rows)
    names = [split.collection.classes[label] for label in split.collection.labels[seen]]
    assert names == [collection.classes[label] for label in collection.labels[seen]]
    assert set(names) == set(split.collection.classes)


def test_the_first_split_is_that_of_discover_and_others_hold_out_other_labels(
    collection, settings
) -> None:
    splits = [split_labels(collection, settings, repeat) for repeat in range(3)]
    assert (splits[0].rows == hold_out(collection, settings).rows).all()
    assert len({tuple(split.rows) for split in splits}) == 3


def test_units_are_hidden_categories_and_single_images(collection, settings) -> None:
    split = split_labels(collection, settings)
    assert len(set(split.units[split.is_novel])) == 1
    assert len(set(split.units[~split.is_novel])) == (~split.is_novel).sum()
    assert not set(split.units[split.is_novel]) & set(split.units[~split.is_novel])


def in_memory(labels: list[int], classes: tuple[str, ...]) -> Collection:
    names = tuple(f"{i:02d}" for i in range(len(labels)))
    return Collection(
        names, np.array(labels), classes, images=[np.zeros((8, 8, 3), np.uint8)] * len(labels)
    )


def test_categories_without_labels_are_removed_and_the_others_renumbered() -> None:
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
def test_known_images_are_scored_by_name_and_hidden_categories_by_matching(
    categories, right: str
) -> None:
    """Of five held-out images, two are in the known category a and three in c, of which all labels
    are held out: images of c are correct in the novel category that contains most of them."""
    split = LabelSplit(
        collection=in_memory([-1] * 5, ("a", "b")),
        rows=np.arange(5),
        labels=np.array([0, 0, 2, 2, 2]),
        classes=("a", "b", "c"),
        hidden=(2,),
    )
    assert find_correct(split, assigned(*categories)).astype(int).tolist() == [
        int(digit) for digit in right
    ]


def test_two_hidden_categories_are_not_matched_with_the_same_novel_category() -> None:
    collection = in_memory([-1] * 5, ())
    rows = np.arange(5)
    split = LabelSplit(
        collection=collection,
        rows=rows,
        labels=np.array([0, 0, 0, 1, 1]),
        classes=("a", "b"),
        hidden=(0, 1),
    )
    assert find_correct(split, assigned(*["novel-1"] * 5)).tolist() == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_too_few_labels_are_refused_with_their_number(collection, settings) -> None:
    few = without_labels(collection, np.flatnonzero(collection.is_labeled)[:-12])
    with pytest.raises(DataError, match="needs 10"):
        split_labels(few, settings)


def test_a_split_that_leaves_too_few_labels_is_refused(collection, settings) -> None:
    one = Collection(
        collection.names, np.zeros(len(collection), int), ("red",), images=collection.images
    )
    with pytest.raises(DataError, match="without the held-out labels, "):
        split_labels(one, settings)
