"""Which images are in which batch: balanced between labeled and unlabeled, and a function of seed and epoch alone.

Because an epoch's batches do not depend on any epoch before it, a resumed run sees the same ones.
N images, T steps, B images of a batch.
"""

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.errors import UsageError


def epoch_generator(seed: int, epoch: int, purpose: int = 0) -> torch.Generator:
    """A CPU generator for one epoch; different seeds, epochs and purposes give unrelated streams."""
    state = np.random.SeedSequence((seed, epoch, purpose)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def balanced_batches(labels: Ints, batch_size: int, generator: torch.Generator) -> Tensor:
    """Draw an epoch's batches, (T, B) rows, as many images as there are; about half of them labeled.

    Drawn with replacement, a labeled and an unlabeled image being equally likely; a collection that is all one of them
    is drawn evenly. The last, incomplete batch is left out.
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


def check_batch_size(batch_size: int, n_images: int | None = None) -> None:
    """Refuse a batch that has no negatives, or that is larger than the collection, where its size is known."""
    if batch_size < 2:
        raise UsageError(f"batch_size: found {batch_size}, expected at least 2, or no image has another to differ from")
    if n_images is not None and batch_size > n_images:
        raise UsageError(f"batch_size: found {batch_size}, but there are only {n_images} images; lower batch_size")
