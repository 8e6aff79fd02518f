"""The script behind the recorded gaps of confidence: what it counts."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def confidence(load_script):
    return load_script("confidence")


def test_the_gap_is_that_of_each_bin_weighed_by_its_images(confidence) -> None:
    assert confidence.gap(
        np.array([0.9, 0.9, 0.95, 1.0]), np.array([1.0, 1.0, 1.0, 0.0])
    ) == pytest.approx(0.75 / 4)
    assert confidence.gap(np.array([0.25, 0.75]), np.array([0.75, 0.25])) == pytest.approx(
        0.5
    )  # bins do not cancel


def test_right_is_the_class_in_a_known_category_and_a_share_in_a_novel_one(confidence) -> None:
    right = confidence.truth_of(np.array([0, 0, 1, 1, 1]), np.array([0, 2, 2, 2, 3]), n_known=1)
    assert right == pytest.approx([1, 0, 2 / 3, 2 / 3, 1 / 3])


def test_a_small_collection_is_measured(confidence) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(240) % 8
    found = confidence.measure(np.eye(8)[y] + 0.3 * rng.normal(size=(240, 8)), y, 200, seed=0)
    assert found.shape == (3, 2)
    assert ((found >= 0) & (found <= 1)).all()


def test_draws_in_which_confidence_is_farther_from_the_truth_are_counted(confidence) -> None:
    gaps = np.array([[0.1, 0.05], [0.1, 0.104], [0.1, 0.13], [0.2, 0.21]])
    assert confidence.farther(gaps) == "2 of 4, by up to 0.030"
    assert confidence.farther(gaps[:2]) == "0 of 2"
