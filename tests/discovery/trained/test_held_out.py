"""Held-out labels and the messages about them."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.data.collection import Collection
from shoal.discovery.discovery_settings import choose_settings
from shoal.discovery.job import check_collection
from shoal.discovery.trained.evaluation import describe_held_out, hold_out
from shoal.errors import DataError


def collection_of(labels: list[int]) -> Collection:
    names = tuple(f"{i:03d}" for i in range(len(labels)))
    n_classes = max(labels) + 1
    images = np.zeros((len(labels), 4, 4), dtype=np.uint8)
    return Collection(names, np.array(labels), tuple("abcdefgh"[:n_classes]), images=images)


def test_the_seed_samples_held_out_labels_and_every_category_has_both_kinds() -> None:
    collection = collection_of([0] * 10 + [1] * 3 + [-1] * 30)
    first = hold_out(collection, choose_settings())
    again = hold_out(collection, choose_settings())
    other = hold_out(collection, choose_settings(seed=1))
    assert first.validation is not None
    np.testing.assert_array_equal(first.validation, again.validation)
    assert not np.array_equal(first.validation, other.validation)
    training = np.setdiff1d(np.arange(43), first.validation)
    for label in (0, 1):
        assert (collection.labels[first.validation] == label).any()
        assert (collection.labels[training] == label).any()


def test_without_labels_nothing_is_held_out() -> None:
    collection = collection_of([-1] * 20)
    found = hold_out(collection, choose_settings())
    assert (found.validation, found.hidden, len(found.rows)) == (None, (), 0)
    assert describe_held_out(collection, found) == []


def test_one_of_five_known_categories_is_hidden() -> None:
    collection = collection_of([label for label in range(5) for _ in range(10)] + [-1] * 20)
    found = hold_out(collection, choose_settings())
    (hidden,) = found.hidden
    is_validation = np.isin(np.arange(70), found.validation)
    assert found.labels[is_validation].tolist() == collection.labels[is_validation].tolist()
    seen = np.where(collection.labels == hidden, -1, collection.labels)
    assert found.labels[~is_validation].tolist() == seen[~is_validation].tolist()
    # All ten images of the hidden category and the two validation images of each other category are
    # held out.
    assert np.bincount(collection.labels[found.rows]).tolist() == [
        10 if c == hidden else 2 for c in range(5)
    ]


@pytest.mark.parametrize(
    ("labels", "share", "n_hidden"),
    [
        ([0, 0, 1, 1, 2, 2, 3, 3], 0.2, 0),  # four known categories are too few
        ([0, 0, 1, 1, 2, 2, 3, 3, 4], 0.2, 0),  # a fifth with one labeled image does not count
        ([0, 0, 1, 1, 2, 2, 3, 3, 4, 4], 0.2, 1),
        ([0, 0, 1, 1, 2, 2, 3, 3, 4, 4], 0.01, 1),  # a share above 0 hides at least one category
        ([0, 0, 1, 1, 2, 2, 3, 3, 4, 4], 0.0, 0),
        ([label for label in range(8) for _ in range(2)], 0.25, 2),
    ],
)
def test_the_number_of_hidden_categories_follows_the_share(
    labels: list[int], share: float, n_hidden: int
) -> None:
    settings = replace(choose_settings(), hidden_share=share)
    found = hold_out(collection_of(labels + [-1] * 20), settings)
    assert len(found.hidden) == n_hidden


def test_too_few_images_for_the_neighbors_are_refused() -> None:
    settings = choose_settings()
    wide = replace(
        settings.method_settings.inference, shift=replace(settings.shift, n_neighbors=11)
    )
    settings = replace(settings, method_settings=replace(settings.method_settings, inference=wide))
    with pytest.raises(
        DataError, match="a mean over 11 neighbors needs more than 11 images, found 11"
    ):
        check_collection(collection_of([0, 0, 1, 1] + [-1] * 7), settings)
    check_collection(collection_of([0, 0, 1, 1] + [-1] * 8), settings)
