"""The embedded digits are real, seedable, and hide their truth."""

import numpy as np
from sklearn.datasets import load_digits

from shoal.data.collection import check_for_discovery
from shoal.data.digits import digits


def test_five_digits_are_known_and_half_of_them_labeled() -> None:
    collection, truth = digits()
    assert collection.count() == "1,797 images, 450 labeled in 5 categories, 1,347 unlabeled"
    assert collection.classes == ("0", "1", "2", "3", "4")
    assert int(truth.is_known.sum()) == 901
    labeled = collection.is_labeled
    np.testing.assert_array_equal(collection.labels[labeled], truth.labels[labeled])
    check_for_discovery(collection)


def test_pixels_are_those_of_scikit_learn() -> None:
    collection, truth = digits()
    images = np.asarray(collection.images)
    np.testing.assert_array_equal(np.rint(images / 255 * 16), load_digits().images)
    np.testing.assert_array_equal(truth.labels, load_digits().target)


def test_the_seed_chooses_which_are_labeled() -> None:
    first = digits(1)[0]
    again = digits(1)[0]
    other = digits(2)[0]
    np.testing.assert_array_equal(first.labels, again.labels)
    assert not np.array_equal(first.labels, other.labels)
