"""How a run is trained: how long, how fast and on which batches."""

import math
from dataclasses import dataclass, field
from typing import Literal

from shoal.errors import UsageError
from shoal.training.views import ViewSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """How long, how fast and on which batches; the defaults are the paper's for fine-grained
    images."""

    epochs: int = 200
    batch_size: int = 128
    lr: float = 0.05
    """Learning rate at the start; it falls along a cosine, epoch by epoch."""
    min_lr: float = 0.005
    """Where it ends, as a share of `lr`."""
    momentum: float = 0.9
    weight_decay: float = 5.0e-05
    max_gradient: float | None = None
    """Longer gradients are cut to this length; None, as in the paper, cuts none."""
    snapshot: Literal["best", "last"] = "best"
    """Which epoch's networks are kept: the one with the highest validation accuracy, as in the
    paper, or the last. Of a few hundred labeled validation images the highest accuracy is largely
    chance once it has stopped rising."""
    views: ViewSettings = field(default_factory=ViewSettings)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UsageError(f"epochs: found {self.epochs}, expected at least 1")
        check_batch_size(self.batch_size)
        if not 0 < self.lr < 100:
            raise UsageError(
                f"lr: found {self.lr}, expected a number above 0 and below 100, say 0.01"
            )
        if not 0 <= self.min_lr <= 1:
            raise UsageError(f"min_lr: found {self.min_lr}, expected a share of lr in [0, 1]")
        if self.max_gradient is not None and not self.max_gradient > 0:
            raise UsageError(
                f"max_gradient: found {self.max_gradient}, expected a number above 0, or null for "
                "none"
            )
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < 1:
            raise UsageError(
                f"momentum, weight_decay: found {self.momentum}, {self.weight_decay}, expected "
                "both in [0, 1)"
            )
        if self.seed < 0:
            raise UsageError(f"seed: found {self.seed}, expected 0 or more")

    def risen(self, epoch: int, share: float) -> float:
        """How far something has risen, from 0 to 1, before an epoch, counted from 0; it takes a
        share of all epochs."""
        return risen(epoch, share * self.epochs)

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        wave = (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.lr * (self.min_lr + (1 - self.min_lr) * wave)


def risen(epoch: int, n_epochs: float) -> float:
    """How far something that rises for so many epochs has risen, from 0 to 1."""
    return min(1.0, epoch / n_epochs) if n_epochs else 1.0


def ramp(epoch: int, first: float, last: float, n_epochs: int) -> float:
    """The value of an epoch, counted from 0: from `first` to `last` in `n_epochs` equal steps, both
    ends included, then `last`."""
    if epoch >= n_epochs - 1:
        return last
    return first + (last - first) * epoch / (n_epochs - 1)


def check_batch_size(batch_size: int, n_images: int | None = None) -> None:
    """Refuse a batch that has no negatives, or that is larger than the collection, where its size
    is known."""
    if batch_size < 2:
        raise UsageError(
            f"batch_size: found {batch_size}, expected at least 2, or no image has another to "
            "differ from"
        )
    if n_images is not None and batch_size > n_images:
        raise UsageError(
            f"batch_size: found {batch_size}, but there are only {n_images} images; lower "
            "batch_size"
        )
