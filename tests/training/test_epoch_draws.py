import numpy as np
import pytest
import torch

from shoal.errors import UsageError
from shoal.training.epoch_draws import EpochDraws, balanced_batches
from shoal.training.train_settings import TrainSettings

LABELS = np.array([0, 1, 2, 0] + [-1] * 396)


def epoch_generator(seed, epoch, purpose=0):
    return EpochDraws(LABELS, TrainSettings(seed=seed)).generator(purpose, epoch)


def test_about_half_of_the_images_drawn_are_labeled():
    drawn = balanced_batches(LABELS, 40, epoch_generator(0, 0))
    assert drawn.shape == (10, 40)
    assert 0.4 < (LABELS[drawn.numpy()] >= 0).mean() < 0.6
    assert len(drawn.unique()) > 100


@pytest.mark.parametrize("label", [-1, 3])
def test_a_collection_without_one_of_the_two_is_drawn_evenly(label):
    drawn = torch.stack(
        [balanced_batches(np.full(50, label), 10, epoch_generator(0, e)) for e in range(60)]
    )
    counts = drawn.flatten().bincount(minlength=50)
    assert counts.min() > 30
    assert counts.max() < 95


def test_the_incomplete_batch_is_left_out():
    assert balanced_batches(LABELS, 150, epoch_generator(0, 0)).shape == (2, 150)


def test_batches_depend_on_seed_and_epoch_alone():
    first = balanced_batches(LABELS, 40, epoch_generator(1, 5))
    torch.rand(100)  # the global generator plays no part
    assert torch.equal(balanced_batches(LABELS, 40, epoch_generator(1, 5)), first)
    assert not torch.equal(balanced_batches(LABELS, 40, epoch_generator(1, 6)), first)
    assert not torch.equal(balanced_batches(LABELS, 40, epoch_generator(2, 5)), first)
    assert not torch.equal(balanced_batches(LABELS, 40, epoch_generator(1, 5, purpose=1)), first)


def test_every_row_can_be_drawn_the_last_one_too():
    drawn = torch.stack(
        [balanced_batches(np.array([0, -1]), 2, epoch_generator(0, e)) for e in range(30)]
    )
    assert drawn.unique().tolist() == [0, 1]


@pytest.mark.parametrize("size", [401, 1])
def test_a_batch_larger_than_the_collection_or_of_one_image_is_refused(size):
    with pytest.raises(UsageError, match="batch_size"):
        balanced_batches(LABELS, size, epoch_generator(0, 0))
