"""Collections: ids stay fixed, and counts are reported."""

import numpy as np
import pytest

from shoal.data.collection import Collection, check_for_discovery
from shoal.errors import DataError


def collection(
    given: list[int], classes: tuple[str, ...] = ("cat", "dog"), /, **changes: object
) -> Collection:
    names = tuple(f"image-{i:04d}" for i in range(len(given)))
    images = np.zeros((len(given), 4, 4), dtype=np.uint8)
    return Collection(
        **{"names": names, "labels": np.array(given), "classes": classes, "images": images}
        | changes
    )


def test_images_and_labels_are_counted() -> None:
    found = collection([0, 0, 1, -1])
    assert (len(found), found.n_labeled, len(found.classes)) == (4, 3, 2)
    np.testing.assert_array_equal(found.is_labeled, [True, True, True, False])
    np.testing.assert_array_equal(found.class_sizes, [2, 1])


def test_a_subset_keeps_class_ids_names_and_images() -> None:
    images = np.arange(4 * 16, dtype=np.uint8).reshape(4, 4, 4)
    part = collection([0, 1, -1, 1], images=images).subset([1, 3])
    assert part.names == ("image-0001", "image-0003")
    assert part.classes == ("cat", "dog")
    np.testing.assert_array_equal(part.labels, [1, 1])
    np.testing.assert_array_equal(part.source(1), images[3])


def test_labels_cannot_be_changed_behind_its_back() -> None:
    given = np.array([0, 1, -1])
    found = collection([0, 1, -1], labels=given)
    given[:] = 1
    np.testing.assert_array_equal(found.labels, [0, 1, -1])
    with pytest.raises(ValueError, match="read-only"):
        found.labels[0] = 1


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0] * 5 + [-1] * 5, "labeled images of at least 2 categories .found 1"),
        ([-1] * 10, "none labeled.*at least 2 categories .found 0"),
        ([0, 1] * 5, "0 unlabeled, read as .* and unlabeled images"),
        ([0, 1, -1], "3 images, .* at least 10 images"),
    ],
)
def test_discovery_is_refused_with_what_it_needs(labels: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_for_discovery(collection(labels))


def test_discovery_accepts_two_known_classes_and_something_unlabeled() -> None:
    check_for_discovery(collection([0, 1] + [-1] * 8))
