"""What a run draws: batches, views of their images, and for a pool which of its views; all of it in
advance.

Everything is a function of seed and epoch, so a resumed run draws the same, and which views of a
pool a run will ever look at is known before the first of them is made. N images, n of them for
training, B of a batch, T steps of an epoch, V views of each image in a pool.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.training.train_settings import TrainSettings, check_batch_size
from shoal.training.views import draw_views

BATCHES, VIEWS, BANK_VIEWS, OBJECTIVE, POOL, EPOCH = range(6)
"""What random numbers are drawn for; each has a generator of its own."""


@dataclass(frozen=True, eq=False)
class EpochDraws:
    """All random choices of a run with these labels of the training images, (n,), -1 for
    unlabeled."""

    labels: Ints
    settings: TrainSettings
    n_views: int = 2
    """Of each image in a batch, W."""

    def steps(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The batches of an epoch, (T, B) training images, and what their views look like, (T, W·B,
        7)."""
        assert epoch < self.settings.epochs, "a pool holds the views of these epochs alone"
        size = self.settings.batch_size
        batches = balanced_batches(self.labels, size, self.generator(BATCHES, epoch))
        view_draws = draw_views(self.n_views * batches.numel(), self.generator(VIEWS, epoch))
        return batches, view_draws.view(len(batches), self.n_views * size, -1)

    def two_views(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Two views of every training image, view 1 of all, then view 2, in batches: (2B,) images
        and (2B, 7)."""
        size = 2 * self.settings.batch_size
        images = torch.arange(len(self.labels)).repeat(2)  # (2n,)
        view_draws = draw_views(len(images), self.generator(BANK_VIEWS, epoch))
        yield from zip(torch.split(images, size), torch.split(view_draws, size), strict=True)

    def for_pool(self) -> torch.Generator:
        """What the views of a pool are drawn with."""
        return self.generator(POOL)

    def pooled_views(self, training: Ints) -> Ints:
        """The views of a pool that the run will look at, as rows image · V + view, sorted;
        `training` (n,) of N."""
        n_views = self.settings.views.pool
        images = torch.from_numpy(training)
        assert n_views is not None
        is_used = torch.zeros((int(images.max()) + 1) * n_views, dtype=torch.bool)
        for epoch in range(self.settings.epochs):
            batches, view_draws = self.steps(epoch)
            chosen = choose_views(
                images[batches].repeat(1, self.n_views), view_draws, n_views, self.n_views
            )
            is_used[chosen] = True
        used: Ints = is_used.nonzero()[:, 0].numpy()
        return used

    def generator(self, purpose: int, epoch: int = 0) -> torch.Generator:
        """A CPU generator; different seeds, epochs and purposes give unrelated streams."""
        sequence = np.random.SeedSequence((self.settings.seed, epoch, purpose))
        state = sequence.generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def balanced_batches(labels: Ints, batch_size: int, generator: torch.Generator) -> Tensor:
    """Draw an epoch's batches, (T, B) rows, as many images as there are; about half of them
    labeled.

    Drawn with replacement, a labeled and an unlabeled image being equally likely; a collection that
    is all one of them is drawn evenly. The last, incomplete batch is left out.
    """
    check_batch_size(batch_size, len(labels))
    n_steps = len(labels) // batch_size
    is_labeled = torch.from_numpy(labels != UNLABELED)
    n_labeled = int(is_labeled.sum())
    weights = torch.ones(len(labels), dtype=torch.float64)
    if 0 < n_labeled < len(labels):
        weights[~is_labeled] = n_labeled / (len(labels) - n_labeled)
    ends = weights.cumsum(0)
    drawn = torch.rand(n_steps * batch_size, dtype=torch.float64, generator=generator) * ends[-1]
    rows = torch.searchsorted(ends, drawn, right=True).clamp_max(len(labels) - 1)
    return rows.view(n_steps, batch_size)


def choose_views(images: Tensor, view_draws: Tensor, n_pooled: int, n_views: int = 2) -> Tensor:
    """Views of a pool for each image: rows (…, W·b) of `images` (…, W·b), by uniform numbers (…,
    W·b, 7).

    The second view, and any after it, is another one than the first.
    """
    first, *others = view_draws[..., 0].chunk(n_views, dim=-1)  # (…, b) each
    one = (first * n_pooled).long()
    rest = [(one + 1 + (other * (n_pooled - 1)).long()) % n_pooled for other in others]
    return images * n_pooled + torch.cat([one, *rest], dim=-1)
