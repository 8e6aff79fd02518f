"""The model of a method: the encoder's tail and everything that the method adds to it.

A method subclasses `Model` and defines the networks it adds, their outputs for a batch of views,
its loss, what it does before an epoch and around a step, and how it predicts. Teachers, memories
and classifiers are submodules and buffers: all of them are saved in checkpoints, so that a killed
run resumes with the same bytes. The trainer has no code for a specific method.

Shapes: N images, n of them for training, B per batch, b of them in this process, D dimensions of
an embedding, K clusters, X columns of anything.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.arrays import UNLABELED, Ints
from shoal.distributed import gather_rows, is_started, shard
from shoal.encoders.vision import Encoder, ImageRows
from shoal.settings import Plain, to_dict
from shoal.training.inputs import ImageInputs, Task, TokenCache, cache_tokens
from shoal.training.train_settings import TrainSettings

# Images outside the collection whose tokens are in memory together
BLOCK_IMAGES = 1024

# Weights, outputs or losses by name
Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class TaskShape:
    """The numbers of a task that the networks of a method depend on."""

    # Images that are trained on
    n_images: int
    # Classes with a label that the loss sees; in a batch they are 0 … n_known - 1
    n_known: int
    n_clusters: int | None


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The inputs of `Model.begin_epoch`."""

    # Counted from 0
    number: int
    labels: Tensor  # (n,) of the training images, as in a batch
    # Returns embeddings (n, D) of the training images, un-augmented, by the current networks
    embed: Callable[[], Tensor]
    # Returns embeddings (2n, D) of two random views of each: view 1 of all, then view 2
    embed_views: Callable[[], Tensor]
    # For random choices; in the same state in every process
    generator: torch.Generator


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The views of a batch that run through this process: view 1 of all images, then view 2."""

    images: Tensor  # (2b,) the position of each view's image among the training images
    inputs: Tensor  # (2b, …) the trunk's tokens, or images if the model reads these
    outputs: Tensors  # (2b, X) each: the outputs of `Model.forward`, with gradients
    labels: Tensor  # (2B,) labels of all views of the batch, in every process; -1 for unlabeled
    # Counted from 0
    epoch: int
    # For random choices in a loss; in the same state in every process, so sample for the whole
    # batch, then take the rows of this process with `local_rows`
    generator: torch.Generator

    def gather(self, local: Tensor) -> Tensor:
        """Return the rows (2B, X) of all processes from those of this one, (2b, X); only the
        latter carry gradients.

        Every process computes the same loss over all rows, so summing the gradients of all
        processes gives the whole gradient.
        """
        if not is_started():
            return local
        share = shard(self.n_images)
        views = []
        for view in local.chunk(2):
            rows = gather_rows(view.detach())
            views += [rows[: share.start], view, rows[share.stop :]]
        return torch.cat(views)

    def local_rows(self, rows: Tensor) -> Tensor:
        """Return the rows (2b, X) of this process among those of the whole batch, (2B, X)."""
        local = shard(self.n_images)
        return torch.cat([view[local] for view in rows.chunk(2)])

    @property
    def n_images(self) -> int:
        """The number of images, B."""
        return len(self.labels) // 2


# Settings of every method; a resume compares them elsewhere, or training does not depend on them
SHARED_SETTINGS = {"encoder", "input_size", "n_tail_blocks", "training", "inference"}


class Model(nn.Module, ABC):
    """The networks of a method and its loss. Everything but the encoder's trunk is trained and
    saved."""

    # Whether `forward` takes normalized images instead of the trunk's tokens, because something
    # before or in the trunk is trained. The trunk then runs over every view in every step, with
    # gradients.
    reads_images = False
    # Whether a step only launches kernels: the host samples and reads no number, no shape depends
    # on values, and nothing but tensors changes. A GPU then runs a step as one CUDA graph.
    is_recordable = False
    # Whether weight decay also applies to biases and other vectors
    decays_vectors = True

    def __init__(self, encoder: Encoder, settings: Any, shape: TaskShape) -> None:
        super().__init__()
        self.encoder = encoder
        self.settings = settings  # a `methods.method.TrainedSettings`
        self.shape = shape

    # Defined by a method.

    def check(self) -> None:
        """Raise a UsageError, before any work, for a task that the method cannot be trained on."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensors:
        """Return named outputs (b, X) of a batch of views for the loss, under autocast."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensors:
        """Return named scalars, without autocast; 'loss' is minimized, the others are logged."""

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Update what changes once an epoch; return numbers to log."""
        return {}

    def after_step(self, batch: Batch) -> None:
        """Update a teacher or a memory, without gradients, after the optimizer's step."""

    def represent(self, inputs: Tensor) -> Tensor:
        """Return the embeddings (b, D) that images are clustered by, of any norm; by default the
        tail's features."""
        return self.encoder.tail(inputs)

    def predict(self, embeddings: Tensor) -> Tensor | None:
        """Return the cluster (N,) of each unit embedding (N, D) by a learned classifier, 0 … K-1,
        known classes first; None if there is no classifier."""
        return None

    def lr_at(self, epoch: int, settings: TrainSettings) -> float:
        """Return the learning rate of an epoch, counted from 0; a function of the epoch alone, so
        that a resumed run has the same."""
        return settings.lr_at(epoch)

    def identity(self) -> Plain:
        """Return the settings that must be the same for a run of this method to be resumed."""
        settings = to_dict(self.settings)
        for name in SHARED_SETTINGS:
            del settings[name]
        return {"name": type(self).__name__.lower(), **settings}

    # The same for all methods.

    @property
    def device(self) -> torch.device:
        return self.encoder.device

    def saved_tensors(self) -> Tensors:
        """Return everything but the trunk by name: 'tail/…', 'head/…', and so on.

        'encoder.tail.0.weight' of `state_dict` is 'tail/0.weight'.
        """
        return {
            key.removeprefix("encoder.").replace(".", "/", 1): value
            for key, value in self.state_dict().items()
            if key.startswith("encoder.tail.") or not key.startswith("encoder.")
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in self.saved_tensors().items():
            value.copy_(tensors[name])

    def embed(self, pixels: ImageRows) -> Tensor:
        """Return unit embeddings (M, D) of images outside the collection."""
        starts = range(0, len(pixels), BLOCK_IMAGES)
        blocks = (self.inputs_of(pixels[start : start + BLOCK_IMAGES]) for start in starts)
        return torch.cat([block.embed(self.represent, self.device) for block in blocks])

    def inputs_of(self, pixels: ImageRows) -> TokenCache | ImageInputs:
        """Return un-augmented images in the form that `forward` expects: tokens in half
        precision, or the images themselves."""
        if self.reads_images:
            return ImageInputs(pixels, self.encoder)
        return cache_tokens(pixels, self.encoder)


def shape_of(task: Task) -> TaskShape:
    """Return the numbers of a task that the networks of a method depend on."""
    n_known = int(consecutive_labels(task.training_labels).max(initial=-1)) + 1
    return TaskShape(n_images=len(task.training), n_known=n_known, n_clusters=task.n_clusters)


def consecutive_labels(labels: Ints) -> Ints:
    """Return labels renumbered 0 … C-1 without gaps; -1 stays -1."""
    classes = np.unique(labels[labels != UNLABELED])
    return np.where(labels == UNLABELED, UNLABELED, np.searchsorted(classes, labels))
