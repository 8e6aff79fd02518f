"""Random choices in training: batches, views of their images, and views in a pool.

All of them are functions of seed and epoch, so a resumed run makes the same choices, and the views
that a run will use are known before a pool of views is computed. The random parameters of all views
of an epoch are sampled in advance, into one small table by one CPU generator, so that views are the
same on every device and with any number of processes. A view is made on the device that holds the
pixels.

Shapes: N images, n of them for training, B views or images per batch, T steps per epoch, P views of
each image in a pool; S the side of a stored image, C of the crop, I of the encoder's input.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.encoders.vision import Encoder, crop_size, resize, to_float
from shoal.errors import UsageError
from shoal.training.train_settings import TrainSettings, ViewSettings

# Uniform random numbers that determine a view: top, left, flip, brightness, contrast, saturation,
# and one that is unused. Without it, the same seed would give other views.
N_PARAMETERS = 7

# Weights of red, green and blue in a pixel's brightness
LUMA = (0.299, 0.587, 0.114)


def sample_view_parameters(n_views: int, generator: torch.Generator) -> Tensor:
    """Return uniform numbers in [0, 1) that determine `n_views` views, (n_views, 7)."""
    return torch.rand(n_views, N_PARAMETERS, generator=generator)


def make_views(
    pixels: Tensor, rows: Tensor, view_parameters: Tensor, encoder: Encoder, settings: ViewSettings
) -> Tensor:
    """Return one view (B, 3, I, I), normalized for the trunk, of each of the images `rows` (B,) of
    `pixels` (N, S, S, 3).

    The crop keeps 7/8 of the side, at a random place, and is resized to the encoder's input.
    """
    side = pixels.shape[1]
    crop = crop_size(side)
    steps = torch.arange(crop, device=pixels.device)
    corners = (view_parameters[:, :2] * (side - crop + 1)).long()  # (B, 2)
    is_flipped = view_parameters[:, 2:3] < settings.flip
    down = corners[:, :1] + steps  # (B, C)
    across = corners[:, 1:] + torch.where(is_flipped, steps.flip(0), steps)  # (B, C)
    # One gather, in uint8, so that no larger copy is made.
    crops = pixels[rows[:, None, None], down[:, :, None], across[:, None]]  # (B, C, C, 3)
    images = resize(to_float(crops), encoder.input_format.size)
    if settings.jitter > 0:
        images = jitter(images, view_parameters[:, 3:6], settings.jitter)
    return encoder.normalize(images)


def jitter(images: Tensor, parameters: Tensor, strength: float) -> Tensor:
    """Change brightness, contrast and saturation of images (B, 3, H, W) in [0, 1] by `parameters`
    (B, 3).

    All three are linear in the colors, so one 3 x 3 matrix and one offset per image suffice.
    """
    spread = strength * (2 * parameters - 1)
    brightness, contrast, saturation = (1 + spread).T[..., None, None]  # (B, 1, 1) each
    # Filled on the device; a copy from the host would synchronize.
    luma = torch.stack([torch.full((), value, device=images.device) for value in LUMA])  # (3,)
    gray = luma.expand(3, 3)  # every channel becomes the brightness
    identity = torch.eye(3, device=images.device)
    color = saturation * identity + (1 - saturation) * gray  # (B, 3, 3)
    matrix = brightness * contrast * color
    # Contrast scales the distance to the mean brightness.
    mean = brightness[:, 0] * (images.mean(dim=(2, 3)) @ luma)[:, None]  # (B, 1)
    offset = (1 - contrast[:, 0]) * mean  # (B, 1)
    flat = torch.baddbmm(offset[:, :, None], matrix, images.flatten(2))  # (B, 3, H*W)
    return flat.view_as(images).clamp(0, 1)


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
