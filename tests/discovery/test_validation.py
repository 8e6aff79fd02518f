"""What is set aside, and what is said about it."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.data.collection import Collection
from shoal.discovery.settings import choose_settings
from shoal.discovery.validation import check_collection, describe_hold_out, hold_out
from shoal.errors import DataError


def collection_of(labels: list[int]) -> Collection:
    names = tuple(f"{i:03d}" for i in range(len(labels)))
    n_classes = max(labels) + 1
    images = np.zeros((len(labels), 4, 4), dtype=np.uint8)
    return Collection(names, np.array(labels), tuple("abcdefgh"[:n_classes]), images=images)


def test_the_seed_draws_and_every_category_keeps_labels_on_both_sides() -> None:
    collection = collection_of([0] * 10 + [1] * 3 + [-1] * 30)
    first = hold_out(collection, choose_settings())
    again, other = hold_out(collection, choose_settings()), hold_out(collection, choose_settings(seed=1))
    assert first is not None
    np.testing.assert_array_equal(first.validation, again.validation)
    assert not np.array_equal(first.validation, other.validation)
    for label in (0, 1):
        assert (collection.labels[first.validation] == label).any()
        assert (collection.labels[first.training] == label).any()
    assert describe_hold_out(collection, first) == ["9 images set aside for validation, 3 of them labeled"]


def test_nothing_is_set_aside_where_nothing_is_labeled() -> None:
    assert hold_out(collection_of([-1] * 20), choose_settings()) is None


def test_categories_with_one_labeled_image_are_named_up_to_five() -> None:
    collection = collection_of([0, 0, *range(1, 8)] + [-1] * 20)
    split = hold_out(collection, choose_settings())
    note = describe_hold_out(collection, split)[1]
    assert note.startswith("note: 7 categories have a single labeled image (b, c, d, e, f, …)")


def test_neighbors_need_images() -> None:
    few = collection_of([0, 0, 1, 1] + [-1] * 7)
    with pytest.raises(DataError, match="needs more than 8 images besides the 3 set aside for validation, found 8"):
        check_collection(few, choose_settings())
    check_collection(few, replace(choose_settings(), train=False))
