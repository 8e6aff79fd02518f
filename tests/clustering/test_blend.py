"""A blend of two embeddings: squared distances add up. Held-out labels evaluate embeddings."""

import numpy as np
import pytest
import torch

from shoal.clustering.inference import InferenceSettings
from shoal.clustering.mean_shift import ShiftSettings
from shoal.discovery.trained import evaluation as module
from shoal.discovery.trained.evaluation import blend, try_shifts
from small_points import scattered

SETTINGS = InferenceSettings(shift=ShiftSettings(n_neighbors=3))


@pytest.fixture
def task():
    """90 images of six classes. Half of the images of the first four classes are labeled; the
    labels of classes 2 and 3 are held out."""
    truth = np.arange(90) % 6
    labels = np.where((truth < 4) & (np.arange(90) < 45), truth, -1)
    return truth, labels, np.flatnonzero(labels >= 2)


def test_squared_distances_add_up_by_their_weights():
    first = scattered(np.arange(8) % 6, 0.3)
    second = scattered(np.arange(8) % 5, 0.3, seed=1)
    both = blend(first, second, 0.65)
    expected = 0.65 * torch.cdist(first, first) ** 2 + 0.35 * torch.cdist(second, second) ** 2
    torch.testing.assert_close(torch.cdist(both, both) ** 2, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(both.norm(dim=1), torch.ones(8))
    assert blend(first, second, 0.0) is second


def test_embeddings_are_evaluated_by_held_out_labels_alone(task):
    """Permuting the labels that training saw changes nothing; hidden labels are not passed at
    all."""
    truth, labels, held_out = task
    rows = scattered(truth, 0.4)
    before = try_shifts(rows, labels, held_out, 6, SETTINGS, seed=0)
    others = np.setdiff1d(np.arange(90), held_out)
    scrambled = labels.copy()
    scrambled[others] = np.random.default_rng(5).permutation(labels[others])
    after = try_shifts(rows, scrambled, held_out, 6, SETTINGS, seed=0)
    assert before.n_shifts == after.n_shifts
    np.testing.assert_array_equal(before.is_correct, after.is_correct)


def test_embeddings_with_too_few_distinct_rows_are_not_evaluated(task):
    _, labels, held_out = task
    collapsed = torch.ones(90, 6) / 6**0.5
    assert try_shifts(collapsed, labels, held_out, 6, SETTINGS, seed=0) is None


def test_large_collections_are_evaluated_on_a_sample_with_all_held_out_images(task, monkeypatch):
    truth, labels, held_out = task
    monkeypatch.setattr(module, "MAX_ROWS", 60)
    found = try_shifts(scattered(truth, 0.05), labels, held_out, 6, SETTINGS, seed=0)
    assert len(found.is_correct) == len(held_out)
    assert found.is_correct.all()
    assert len(module.sample_rows(90, held_out, 3, 0)) == 60
    assert np.isin(held_out, module.sample_rows(90, held_out, 3, 0)).all()
    assert len(module.sample_rows(90, held_out, 20, 0)) == 80, "four for each cluster"
    assert len(module.sample_rows(90, held_out, 40, 0)) == 90


@pytest.mark.parametrize(("usual", "taken"), [(0, 0), (1, 1), (2, 2), (5, 2)])
def test_among_equally_accurate_numbers_of_shifts_the_usual_one_is_taken(task, usual, taken):
    """Algorithm 1 stops after three equally accurate iterates, so at most two shifts are
    compared."""
    truth, labels, held_out = task
    rows = scattered(truth, 0.05)
    found = try_shifts(rows, labels, held_out, 6, SETTINGS, seed=0, usual_shifts=usual)
    assert found.is_correct.all()
    assert found.n_shifts == taken
