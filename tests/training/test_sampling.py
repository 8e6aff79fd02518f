import numpy as np
import pytest
import torch

from shoal.errors import UsageError
from shoal.training.sampling import Sampler, balanced_batches
from shoal.training.train_settings import TrainSettings

LABELS = np.array([0, 1, 2, 0] + [-1] * 396)


def epoch_generator(seed, epoch, purpose=0):
    return Sampler(LABELS, TrainSettings(seed=seed)).generator(purpose, epoch)


def test_about_half_of_the_sampled_images_are_labeled():
    sampled = balanced_batches(LABELS, 40, epoch_generator(0, 0))
    assert sampled.shape == (10, 40)
    assert 0.4 < (LABELS[sampled.numpy()] >= 0).mean() < 0.6
    assert len(sampled.unique()) > 100


@pytest.mark.parametrize("label", [-1, 3])
def test_without_labeled_or_unlabeled_images_sampling_is_uniform(label):
    sampled = torch.stack(
        [balanced_batches(np.full(50, label), 10, epoch_generator(0, e)) for e in range(60)]
    )
    counts = sampled.flatten().bincount(minlength=50)
    assert counts.min() > 30
    assert counts.max() < 95


def test_the_incomplete_batch_is_dropped():
    assert balanced_batches(LABELS, 150, epoch_generator(0, 0)).shape == (2, 150)


def test_batches_depend_only_on_seed_and_epoch():
    first = balanced_batches(LABELS, 40, epoch_generator(1, 5))
    torch.rand(100)  # the global generator must not matter
    assert torch.equal(balanced_batches(LABELS, 40, epoch_generator(1, 5)), first)
    assert not torch.equal(balanced_batches(LABELS, 40, epoch_generator(1, 6)), first)
    assert not torch.equal(balanced_batches(LABELS, 40, epoch_generator(2, 5)), first)
    assert not torch.equal(balanced_batches(LABELS, 40, epoch_generator(1, 5, purpose=1)), first)


def test_every_row_can_be_sampled_including_the_last():
    sampled = torch.stack(
        [balanced_batches(np.array([0, -1]), 2, epoch_generator(0, e)) for e in range(30)]
    )
    assert sampled.unique().tolist() == [0, 1]


def test_batches_larger_than_the_collection_are_refused():
    with pytest.raises(UsageError, match="batch_size"):
        Sampler(LABELS, TrainSettings(batch_size=401))
