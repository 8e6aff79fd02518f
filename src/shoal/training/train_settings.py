"""Settings of the training loop and of random views, and schedules over epochs."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from shoal.settings import BelowOne, Count, Fraction, NonNegativeInt, Positive, Range


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Settings of random views."""

    flip: Fraction = 0.5
    """Probability of a horizontal flip."""
    jitter: BelowOne = 0.2
    """Brightness, contrast and saturation are each multiplied by a number in [1 - jitter, 1 +
    jitter]; 0, as effectively in the released code, leaves colors unchanged."""
    pool: Annotated[
        int | None,
        Range("2 or more, or null for new views in every step", lambda n: n is None or n >= 2),
    ] = None
    """Number of views of each image that are computed once and sampled in every step, so that the
    frozen trunk runs only on these; None, as in the CMS paper: new views in every step."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Length, learning rate and batches of a training run; the defaults are the CMS paper's for
    fine-grained images."""

    epochs: Count = 200
    batch_size: Annotated[
        int,
        Range("at least 2, because the loss contrasts images of a batch", lambda size: size >= 2),
    ] = 128
    lr: Positive = 0.05
    """Initial learning rate; it follows a cosine, epoch by epoch."""
    min_lr: Fraction = 0.005
    """Final learning rate, as a fraction of `lr`."""
    momentum: BelowOne = 0.9
    weight_decay: BelowOne = 5.0e-05
    max_gradient: Annotated[
        float | None,
        Range("a number above 0, or null for no clipping", lambda norm: norm is None or norm > 0),
    ] = None
    """Gradients are clipped to this norm; None, as in the CMS paper, clips none."""
    snapshot: Literal["best", "last"] = "best"
    """Which epoch's networks are used: the one with the highest validation accuracy, as in the
    paper, or the last. With a few hundred labeled validation images, the highest accuracy is
    largely chance once it has stopped rising."""
    views: ViewSettings = field(default_factory=ViewSettings)
    seed: NonNegativeInt = 0

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        cosine = (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.lr * (self.min_lr + (1 - self.min_lr) * cosine)


def ramp_up(epoch: int, n_epochs: float) -> float:
    """Return the position in [0, 1] on a linear ramp from epoch 0 to epoch `n_epochs`."""
    return min(1.0, epoch / n_epochs) if n_epochs else 1.0


def linear_schedule(epoch: int, first: float, last: float, n_epochs: int) -> float:
    """Return the value at an epoch, counted from 0, of `numpy.linspace(first, last, n_epochs)`, and
    `last` after that."""
    if epoch >= n_epochs - 1:
        return last
    return first + (last - first) * epoch / (n_epochs - 1)
