"""What every method takes and gives, so that one can stand in for another."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from shoal.arrays import UNLABELED, Bools, Floats, Ints, as_labels
from shoal.encoders.embed import Progress, check_pixels
from shoal.errors import DataError, UsageError
from shoal.training.tokens import Pixels


@dataclass(frozen=True, kw_only=True)
class Task:
    """Images and the labels a user has; no hidden label is ever in here."""

    pixels: Pixels
    """(N, S, S, 3) uint8; a memory map will do."""
    labels: Ints
    """(N,) -1 for unlabeled."""
    validation: Ints | None = None
    """Rows set aside from the loss, to choose K and the snapshot."""
    n_clusters: int | None = None
    """K where it is known; None: estimated."""

    def __post_init__(self) -> None:
        check_pixels(self.pixels)
        as_labels(self.labels, len(self.pixels), name="labels")
        if self.n_clusters is None and not self.is_labeled.any():
            raise DataError("labels: no image is labeled, so K cannot be estimated; label a few, or give n_clusters")
        if self.n_clusters is not None and not 1 <= self.n_clusters <= len(self.labels):
            raise UsageError(
                f"n_clusters: found {self.n_clusters}, expected 1 to {len(self.labels)}, the number of images"
            )

    @property
    def is_labeled(self) -> Bools:
        """(N,) which images carry a label."""
        mask: Bools = self.labels != UNLABELED
        return mask


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """What a method found; rows are those of the task."""

    clusters: Ints
    """(N,) the cluster of every image, 0 … K-1."""
    n_clusters: int
    embeddings: Floats
    """(N, D) from the encoder, unit rows."""
    shifted: Floats | None = None
    """(N, D) after the mean shifts, where the method shifts."""
    linkage: Floats | None = None
    """(N-1, 4) the tree that was cut, where the method grows one."""
    accuracies: tuple[float, ...] = ()
    """Accuracy on the labeled images after 0, 1, 2 … shifts."""
    n_shifts: int = 0
    """How many of them the clusters come from."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """A row per epoch of training."""
    epoch: int = 0
    """The epoch of the snapshot that was kept; 0 where nothing was trained."""


class Method(Protocol):
    """A way from images and some labels to clusters."""

    def __call__(
        self,
        task: Task,
        settings: Any,
        *,
        device: torch.device,
        folder: Path | None = None,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> Discovery:
        """Discover the categories of a task. `folder` takes checkpoints and metrics; `resume` goes on from there."""
        ...


def to_numpy(tensor: torch.Tensor) -> Floats:
    """A tensor as a float32 array in the host's memory."""
    array: Floats = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
    return array
