"""A blend of two embeddings: squared distances add up, and held-out labels choose the weights."""

import numpy as np
import pytest
import torch

from shoal.clustering import blend as module
from shoal.clustering.blend import (
    TriedWeight,
    blend,
    choose_weight,
    try_weights,
)
from shoal.clustering.inference import InferenceSettings
from shoal.clustering.mean_shift import ShiftSettings

SETTINGS = InferenceSettings(shift=ShiftSettings(n_neighbors=3))


def points(truth: np.ndarray, noise: float, seed: int = 0) -> torch.Tensor:
    """Sample points around one axis per class: tight groups if `noise` is small, one cloud if it is
    large."""
    x = np.eye(6)[truth] + noise * np.random.default_rng(seed).normal(size=(len(truth), 6))
    return torch.nn.functional.normalize(torch.from_numpy(x.astype(np.float32)), dim=1)


@pytest.fixture
def task() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """90 images of six classes. Half of the images of the first four classes are labeled; the
    labels of classes 2 and 3 are held out."""
    truth = np.arange(90) % 6
    labels = np.where((truth < 4) & (np.arange(90) < 45), truth, -1)
    return truth, labels, np.flatnonzero(labels >= 2)


def trial(weight: float, right: list[int]) -> TriedWeight:
    return TriedWeight(weight=weight, n_shifts=1, is_correct=np.array(right, dtype=bool))


def test_squared_distances_add_up_by_their_weights() -> None:
    first = points(np.arange(8) % 6, 0.3)
    second = points(np.arange(8) % 5, 0.3, seed=1)
    both = blend(first, second, 0.65)
    expected = 0.65 * torch.cdist(first, first) ** 2 + 0.35 * torch.cdist(second, second) ** 2
    torch.testing.assert_close(torch.cdist(both, both) ** 2, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(both.norm(dim=1), torch.ones(8))
    assert blend(first, second, 1.0) is first
    assert blend(first, second, 0.0) is second


@pytest.mark.parametrize(
    ("noises", "good", "bad"), [((0.05, 1.5), 1.0, 0.0), ((1.5, 0.05), 0.0, 1.0)]
)
def test_the_embedding_that_separates_the_classes_is_more_accurate(
    task, noises, good: float, bad: float
) -> None:
    truth, labels, held_out = task
    first, second = (points(truth, noise, seed) for seed, noise in enumerate(noises))
    shares = {
        one.weight: one.is_correct.mean()
        for one in try_weights(first, second, labels, held_out, 6, SETTINGS, seed=0)
    }
    assert shares[good] == 1.0
    assert shares[bad] < 0.8


def test_a_weight_is_evaluated_by_held_out_labels_alone(task) -> None:
    """Permuting the labels that training saw changes nothing; hidden labels are not passed at
    all."""
    truth, labels, held_out = task
    first = points(truth, 0.4)
    second = points(truth, 0.5, seed=1)
    before = try_weights(first, second, labels, held_out, 6, SETTINGS, seed=0)
    others = np.setdiff1d(np.arange(90), held_out)
    scrambled = labels.copy()
    scrambled[others] = np.random.default_rng(5).permutation(labels[others])
    after = try_weights(first, second, scrambled, held_out, 6, SETTINGS, seed=0)
    for one, other in zip(before, after, strict=True):
        assert (one.weight, one.n_shifts) == (other.weight, other.n_shifts)
        np.testing.assert_array_equal(one.is_correct, other.is_correct)


def test_a_weight_with_too_few_distinct_rows_is_left_out(task) -> None:
    truth, labels, held_out = task
    collapsed = torch.ones(90, 6) / 6**0.5
    found = try_weights(
        points(truth, 0.1), collapsed, labels, held_out, 6, SETTINGS, seed=0, weights=(0.0, 1.0)
    )
    assert [one.weight for one in found] == [1.0]


def test_large_collections_are_evaluated_on_a_sample_with_all_held_out_images(
    task, monkeypatch
) -> None:
    truth, labels, held_out = task
    monkeypatch.setattr(module, "MAX_ROWS", 60)
    first = points(truth, 0.05)
    second = points(truth, 0.05, seed=1)
    found = try_weights(first, second, labels, held_out, 6, SETTINGS, seed=0)
    assert all(len(one.is_correct) == len(held_out) and one.is_correct.all() for one in found)
    assert len(module.sample_rows(90, held_out, 3, 0)) == 60
    assert np.isin(held_out, module.sample_rows(90, held_out, 3, 0)).all()
    assert len(module.sample_rows(90, held_out, 20, 0)) == 80, "four for each cluster"
    assert len(module.sample_rows(90, held_out, 40, 0)) == 90


@pytest.mark.parametrize(("usual", "taken"), [(0, 0), (1, 1), (2, 2), (5, 2)])
def test_among_equally_accurate_numbers_of_shifts_the_usual_one_is_taken(
    task, usual: int, taken: int
) -> None:
    """Algorithm 1 stops after three equally accurate iterates, so at most two shifts are
    compared."""
    truth, labels, held_out = task
    rows = points(truth, 0.05), points(truth, 0.05, seed=1)
    for one in try_weights(*rows, labels, held_out, 6, SETTINGS, seed=0, usual_shifts=usual):
        assert one.is_correct.all()
        assert one.n_shifts == taken


def test_no_weight_is_taken_that_is_worse_than_the_first_embedding_alone() -> None:
    """One image fewer is within the standard error of the best, but training must not make the
    result worse than the first embedding."""
    first = trial(1.0, [1] * 9 + [0])
    blended = trial(0.65, [1] * 8 + [0] * 2)
    assert choose_weight([trial(0.0, [1] * 5 + [0] * 5), blended, first]).weight == 1.0
    assert choose_weight([trial(0.8, [1] * 10), blended, first]).weight == 0.8
