"""Two embeddings at once: distances add up, and the labels that judge choose how much of each."""

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
    """Points around one axis per class: tight groups with little noise, a cloud with much."""
    x = np.eye(6)[truth] + noise * np.random.default_rng(seed).normal(size=(len(truth), 6))
    return torch.nn.functional.normalize(torch.from_numpy(x.astype(np.float32)), dim=1)


@pytest.fixture
def task() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """90 images of six classes; of the first four every other image is labeled, and classes 2 and 3
    judge."""
    truth = np.arange(90) % 6
    labels = np.where((truth < 4) & (np.arange(90) < 45), truth, -1)
    return truth, labels, np.flatnonzero(labels >= 2)


def trial(weight: float, right: list[int]) -> TriedWeight:
    return TriedWeight(weight=weight, n_shifts=1, right=np.array(right, dtype=bool))


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
def test_the_embedding_that_parts_the_classes_is_right_more_often(
    task, noises, good: float, bad: float
) -> None:
    truth, labels, judged = task
    first, second = (points(truth, noise, seed) for seed, noise in enumerate(noises))
    shares = {
        one.weight: one.right.mean()
        for one in try_weights(first, second, labels, judged, 6, SETTINGS, seed=0)
    }
    assert shares[good] == 1.0
    assert shares[bad] < 0.8


def test_a_weight_is_judged_by_the_judging_labels_alone(task) -> None:
    """The labels that training saw may be anything, and hidden ones are not even there."""
    truth, labels, judged = task
    first = points(truth, 0.4)
    second = points(truth, 0.5, seed=1)
    before = try_weights(first, second, labels, judged, 6, SETTINGS, seed=0)
    others = np.setdiff1d(np.arange(90), judged)
    scrambled = labels.copy()
    scrambled[others] = np.random.default_rng(5).permutation(labels[others])
    after = try_weights(first, second, scrambled, judged, 6, SETTINGS, seed=0)
    for one, other in zip(before, after, strict=True):
        assert (one.weight, one.n_shifts) == (other.weight, other.n_shifts)
        np.testing.assert_array_equal(one.right, other.right)


def test_rows_too_much_alike_for_so_many_clusters_are_left_out(task) -> None:
    truth, labels, judged = task
    collapsed = torch.ones(90, 6) / 6**0.5
    found = try_weights(
        points(truth, 0.1), collapsed, labels, judged, 6, SETTINGS, seed=0, weights=(0.0, 1.0)
    )
    assert [one.weight for one in found] == [1.0]


def test_large_collections_are_judged_on_a_sample_that_holds_every_judge(task, monkeypatch) -> None:
    truth, labels, judged = task
    monkeypatch.setattr(module, "MAX_ROWS", 60)
    first = points(truth, 0.05)
    second = points(truth, 0.05, seed=1)
    found = try_weights(first, second, labels, judged, 6, SETTINGS, seed=0)
    assert all(len(one.right) == len(judged) and one.right.all() for one in found)
    assert len(module.sample_rows(90, judged, 3, 0)) == 60
    assert np.isin(judged, module.sample_rows(90, judged, 3, 0)).all()
    assert len(module.sample_rows(90, judged, 20, 0)) == 80, "four for each cluster"
    assert len(module.sample_rows(90, judged, 40, 0)) == 90


@pytest.mark.parametrize(("usual", "taken"), [(0, 0), (1, 1), (2, 2), (5, 2)])
def test_where_every_judge_is_right_anyhow_the_usual_number_of_shifts_is_taken(
    task, usual: int, taken: int
) -> None:
    """After three iterates that are as good, Algorithm 1 looks at no other."""
    truth, labels, judged = task
    rows = points(truth, 0.05), points(truth, 0.05, seed=1)
    for one in try_weights(*rows, labels, judged, 6, SETTINGS, seed=0, usual_shifts=usual):
        assert one.right.all()
        assert one.n_shifts == taken


def test_no_weight_is_taken_that_is_worse_than_the_first_embedding_alone() -> None:
    """One image of one that differs is within the error, but it would be a training for fewer
    images right."""
    first = trial(1.0, [1] * 9 + [0])
    blended = trial(0.65, [1] * 8 + [0] * 2)
    assert choose_weight([trial(0.0, [1] * 5 + [0] * 5), blended, first]).weight == 1.0
    assert choose_weight([trial(0.8, [1] * 10), blended, first]).weight == 0.8
