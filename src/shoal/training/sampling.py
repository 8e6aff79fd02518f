"""Random choices in training: batches, views of their images, and views in a pool.

All of them are functions of seed and epoch, so a resumed run makes the same choices, and the views
that a run will use are known before a pool of views is computed.

Shapes: N images, n of them for training, B per batch, T steps per epoch, P views of each image in a
pool.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.errors import UsageError
from shoal.training.train_settings import TrainSettings
from shoal.training.views import sample_view_parameters

# Purposes of random numbers; each has its own generator
BATCHES, VIEWS, BANK_VIEWS, OBJECTIVE, POOL, EPOCH = range(6)


@dataclass(frozen=True)
class Sampler:
    """Random choices of a training run on images with labels (n,), -1 for unlabeled."""

    labels: Ints
    settings: TrainSettings

    def __post_init__(self) -> None:
        if self.settings.batch_size > len(self.labels):
            raise UsageError(
                f"batch_size: found {self.settings.batch_size}, but there are only "
                f"{len(self.labels)} images; lower batch_size"
            )

    def steps(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the batches of an epoch, (T, B) training images, and the parameters of their
        views, (T, 2B, 7)."""
        size = self.settings.batch_size
        batches = balanced_batches(self.labels, size, self.generator(BATCHES, epoch))
        view_parameters = sample_view_parameters(2 * batches.numel(), self.generator(VIEWS, epoch))
        return batches, view_parameters.view(len(batches), 2 * size, -1)

    def two_views(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield two views of every training image, view 1 of all, then view 2, in batches: images
        (2B,) and view parameters (2B, 7)."""
        size = 2 * self.settings.batch_size
        images = torch.arange(len(self.labels)).repeat(2)  # (2n,)
        view_parameters = sample_view_parameters(len(images), self.generator(BANK_VIEWS, epoch))
        yield from zip(torch.split(images, size), torch.split(view_parameters, size), strict=True)

    def pooled_views(self, training: Ints) -> Ints:
        """Return the views of a pool that the run will use, as sorted rows image · P + view;
        `training` (n,) are the training images."""
        n_pooled = self.settings.views.pool
        images = torch.from_numpy(training)
        assert n_pooled is not None
        is_used = torch.zeros((int(images.max()) + 1) * n_pooled, dtype=torch.bool)
        for epoch in range(self.settings.epochs):
            batches, view_parameters = self.steps(epoch)
            is_used[choose_views(images[batches].repeat(1, 2), view_parameters, n_pooled)] = True
        return np.asarray(is_used.nonzero()[:, 0])

    def generator(self, purpose: int, epoch: int = 0) -> torch.Generator:
        """Return a CPU generator; seeds, epochs and purposes give independent streams."""
        sequence = np.random.SeedSequence((self.settings.seed, epoch, purpose))
        state = sequence.generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(state) >> 1)


def balanced_batches(labels: Ints, batch_size: int, generator: torch.Generator) -> Tensor:
    """Sample the batches of an epoch, (T, B) rows of labels (n,), with T · B close to n.

    Images are sampled with replacement, half of them labeled on average; if all are labeled, or
    none is, uniformly. The last, incomplete batch is dropped.
    """
    n_steps = len(labels) // batch_size
    is_labeled = torch.from_numpy(labels != UNLABELED)
    n_labeled = int(is_labeled.sum())
    weights = torch.ones(len(labels), dtype=torch.float64)
    if 0 < n_labeled < len(labels):
        weights[~is_labeled] = n_labeled / (len(labels) - n_labeled)
    # Inverse transform sampling; `torch.multinomial` is limited to 2²⁴ images.
    ends = weights.cumsum(0)
    uniform = torch.rand(n_steps, batch_size, dtype=torch.float64, generator=generator)
    rows = torch.searchsorted(ends, uniform * ends[-1], right=True)
    return rows.clamp_max(len(labels) - 1)


def choose_views(images: Tensor, view_parameters: Tensor, n_pooled: int) -> Tensor:
    """Return rows (…, 2b) of a pool for `images` (…, 2b), by uniform numbers (…, 2b, 7).

    The second view of an image differs from the first.
    """
    first, second = view_parameters[..., 0].chunk(2, dim=-1)  # (…, b) each
    first_view = (first * n_pooled).long()
    second_view = (first_view + 1 + (second * (n_pooled - 1)).long()) % n_pooled
    return images * n_pooled + torch.cat([first_view, second_view], dim=-1)
