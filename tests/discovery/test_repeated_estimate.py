"""The estimate repeated on random parts of the collection."""

import numpy as np
import pytest

from shoal.clustering.inference import PAPER, InferenceSettings, infer
from shoal.discovery.answers import _draw, repeat_estimate


def bundles(noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = np.arange(100) % 5
    x = np.eye(5)[truth] + noise * rng.normal(size=(100, 5))
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.where(
        (truth < 3) & (np.arange(100) < 60), truth, -1
    )


def test_clear_bundles_give_nearly_the_same_number_each_time() -> None:
    """Labels tell the three known bundles from the rest; whether the rest is one bundle or two they cannot tell."""
    assert set(repeat_estimate(*bundles(0.02), 6, InferenceSettings(), seed=0)) <= {4, 5}


def test_the_seed_decides() -> None:
    x, labels = bundles(0.6)
    first, again = (repeat_estimate(x, labels, 6, PAPER, seed=1) for _ in range(2))
    assert first == again
    assert len(first) == 6


def test_a_class_with_one_labeled_image_is_never_left_out() -> None:
    members = np.array([7])
    for seed in range(20):
        assert _draw(members, np.random.default_rng(seed)).tolist() == [7]


@pytest.mark.parametrize(
    "settings", [PAPER, InferenceSettings(), InferenceSettings(estimate_shifts=3)]
)
def test_on_all_images_it_is_the_estimate_that_is_used(settings: InferenceSettings) -> None:
    x, labels = bundles(0.5)
    assert (
        repeat_estimate(x, labels, 2, settings, seed=0, share=1.0)
        == [infer(x, labels, None, settings).n_clusters] * 2
    )


def test_a_range_is_kept_to_on_parts_with_fewer_images_than_it_begins_at() -> None:
    x, labels = bundles(0.1)
    assert repeat_estimate(x, labels, 2, InferenceSettings().with_range((90, 95)), seed=0) == [
        90,
        90,
    ]
