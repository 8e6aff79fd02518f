"""What every method takes and gives, so that one can stand in for another."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Floats, Ints, as_labels
from shoal.clustering.inference import InferenceSettings
from shoal.clustering.mean_shift import NeighborAttention
from shoal.clustering.n_clusters import NClustersEstimate
from shoal.clustering.n_clusters_range import keep_to
from shoal.encoders.embed import ImageRows, check_pixels
from shoal.encoders.head import Head
from shoal.encoders.vision import Encoder
from shoal.errors import DataError, UsageError
from shoal.training.data import TrainingData
from shoal.training.loop import OnProgress, Trained, train
from shoal.training.objective import Objective
from shoal.training.pool import ViewPool
from shoal.training.settings import TrainSettings
from shoal.training.tokens import TokenCache
from shoal.training.validation import Judge

OnEpoch = Callable[[dict[str, Any]], None]
"""Called with an epoch's row of metrics."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Images and the labels a user has; a hidden label has no way in but a `judge`."""

    pixels: ImageRows
    """(N, S, S, 3) uint8; a memory map will do."""
    labels: Ints
    """(N,) -1 for unlabeled."""
    validation: Ints | None = None
    """Rows whose labels are kept from the loss, to choose K and the snapshot."""
    trains_on_validation: bool = True
    """Whether the loss sees these images, unlabeled; False for a protocol in which they stand for unseen ones."""
    judge: Judge | None = None
    """Images of their own that choose K and the snapshot instead of the validation rows. For reproducing what released
    code did with test labels, and for nothing else."""
    n_clusters: int | None = None
    """K where it is known; None: estimated."""
    tokens: TokenCache | None = None
    """The trunk's tokens of these images, where an earlier run with the same encoder has left them."""
    pool: ViewPool | None = None
    """The same for a pool of views, of the same seed."""
    pool_labels: tuple[Ints, ...] = ()
    """Labels (N,) of other trainings that will use the pool which this one makes."""

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

    @property
    def training_data(self) -> TrainingData:
        """What the training loop takes of it."""
        return TrainingData(
            pixels=self.pixels,
            labels=self.labels,
            validation=self.validation,
            trains_on_validation=self.trains_on_validation,
            judge=self.judge,
            tokens=self.tokens,
            pool=self.pool,
            pool_labels=self.pool_labels,
        )


@dataclass(frozen=True, kw_only=True)
class Representation:
    """What a method has learned, before any image is put into a cluster; several clusterings can share it."""

    embeddings: Tensor
    """(N, D) of the task's images, unit rows, on the device."""
    embed: Callable[[ImageRows], Tensor]
    """The same for other images."""
    n_clusters: int | None = None
    """K as the validation images estimate it with the snapshot that was kept; None where there was none to ask."""
    rule: str | None = None
    """The rule that decided on that K, where one did."""
    attention: NeighborAttention | None = None
    """Learned weights of the neighbors, where the method learns them."""
    n_shifts: int | None = None
    """How often to shift, where labels cannot say: on embeddings that were trained with all of them."""
    tokens: TokenCache | None = None
    """The trunk's tokens of the task's images, where they were to be kept for another training."""
    pool: ViewPool | None = None
    """The same for the pool of views."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """A row per epoch of training."""
    epoch: int = 0
    """The epoch of the snapshot that was kept; 0 where nothing was trained."""


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """What a method found; rows are those of the task."""

    clusters: Ints
    """(N,) the cluster of every image, 0 … K-1."""
    n_clusters: int
    embeddings: Floats
    """(N, D) from the encoder, unit rows."""
    unlinked: Ints | None = None
    """(N,) the same without must-links, where there were any: clusters that no label has a part in."""
    shifted: Floats | None = None
    """(N, D) after the mean shifts, where the method shifts."""
    linkage: Floats | None = None
    """(N-1, 4) the tree that was cut, where the method grows one."""
    accuracies: tuple[float, ...] = ()
    """Accuracy on the labeled images after 0, 1, 2 … shifts."""
    n_shifts: int = 0
    """How many of them the clusters come from."""
    estimate: NClustersEstimate | None = None
    """Where the number of clusters was estimated on these labels: the curve it was read from."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """A row per epoch of training."""
    epoch: int = 0
    """The epoch of the snapshot that was kept; 0 where nothing was trained."""


class MethodSettings(Protocol):
    """What the settings of every method have in common."""

    @property
    def encoder(self) -> str:
        """The name of the encoder."""
        ...

    @property
    def input_size(self) -> int | None:
        """Side of the images the encoder sees; None: what it was made for."""
        ...

    @property
    def inference(self) -> InferenceSettings:
        """How images are clustered, as far as the method uses it; its `rule` estimates K in all of them."""
        ...

    def with_seed(self, seed: int) -> Self:
        """The same settings with another seed."""
        ...


class TrainedSettings(MethodSettings, Protocol):
    """What those of a method that trains have besides."""

    @property
    def training(self) -> TrainSettings:
        """How long, how fast and on which batches."""
        ...


class Options(TypedDict, total=False):
    """How the first half of a method is run; nothing of it changes what is learned."""

    folder: Path | None
    """Takes checkpoints and metrics."""
    resume: bool
    """Go on from what is in the folder."""
    progress: OnProgress | None
    """Told how much is done of what."""
    on_epoch: OnEpoch | None
    """Told each row of metrics."""
    keeps_trunk: bool
    """Hand on what the trunk has computed, for another training."""


class Represent(Protocol):
    """The first half of a method: from images and some labels to embeddings."""

    def __call__(
        self, task: Task, settings: Any, *, device: torch.device, **options: Unpack[Options]
    ) -> Representation:
        """Learn from a task. A K in the task serves to choose the snapshot."""
        ...


class Cluster(Protocol):
    """The second half: from embeddings and some labels to clusters."""

    def __call__(
        self, learned: Representation, labels: Ints, settings: Any, *, n_clusters: int | None, device: torch.device
    ) -> Discovery:
        """Cluster what was learned, by this method or another; `n_clusters` None: estimated."""
        ...


class Build(Protocol):
    """The networks of a method that trains, before any training."""

    def __call__(self, settings: Any) -> tuple[Encoder, Head, Objective]:
        """Load the encoder and make a new head and objective, whose weights depend on the seed alone."""
        ...


def learn(
    task: Task,
    networks: tuple[Encoder, Head, Objective],
    settings: TrainedSettings,
    *,
    device: torch.device,
    **options: Unpack[Options],
) -> Trained:
    """Train the networks of a method on a task."""
    encoder, head, objective = networks
    return train(
        task.training_data,
        encoder.to(device),
        head.to(device),
        objective.to(device),
        settings.training,
        n_clusters=task.n_clusters,
        rule=settings.inference.rule,
        **options,
    )


def n_clusters_to_use(
    given: int | None,
    learned: Representation,
    labels: Ints,
    estimate_on: str,
    inference: InferenceSettings | None = None,
) -> int | None:
    """The K given, else the one from the validation images, else None: to be estimated on all labels.

    That from the validation images keeps to the range in `inference`, where there is one.
    """
    if given is not None:
        return given
    if learned.n_clusters is None or estimate_on == "collection":
        return None
    # The validation images may have missed a class that has no image among them.
    found = max(learned.n_clusters, len(np.unique(labels[labels != UNLABELED])))
    return found if inference is None else keep_to(found, inference.min_clusters, inference.max_clusters)


def to_numpy(tensor: torch.Tensor) -> Floats:
    """A tensor as a float32 array in the host's memory."""
    array: Floats = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
    return array
