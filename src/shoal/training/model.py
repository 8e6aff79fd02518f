"""What a method trains: the encoder's tail and whatever the method adds to it, in one module.

A method subclasses `Model`: the networks it adds, what it computes of a view, its loss, what it
does before an epoch and after a step, and how it predicts. Teachers, memories and classifiers are
its submodules and buffers: all of them go into checkpoints, so that a killed run goes on with the
same bytes. The trainer calls it and knows no method.

V views of each of the B images of a batch, b this process's share of them, n training images, N
images, D entries of an embedding, K clusters, X columns of anything.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from shoal.arrays import UNLABELED, Ints
from shoal.distributed import gather_rows, shard
from shoal.encoders.embed import ImageRows
from shoal.encoders.vision import Encoder
from shoal.settings import to_dict
from shoal.training.sgd import Sgd
from shoal.training.task import Task
from shoal.training.tokens import ImageInputs, TokenCache, cache_tokens
from shoal.training.train_settings import TrainSettings

IMAGES_AT_ONCE = 1024
"""Images whose tokens are held at a time when images outside of the collection are embedded."""

BATCH_OF_IMAGES = 128
"""Images that go through a whole network at a time, where no tokens are kept."""


@dataclass(frozen=True, kw_only=True)
class TaskShape:
    """The numbers of a task that a method needs to make its networks."""

    n_images: int
    """Images that are trained on."""
    n_known: int
    """Classes with a label that the loss sees; in a batch they are numbered 0 … n_known - 1."""
    n_clusters: int | None
    """K where it is given."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What a method is given before an epoch."""

    number: int
    """Counted from 0."""
    labels: Tensor
    """(n,) of the training images, as in a batch."""
    embed: Callable[[], Tensor]
    """(n, D) embeddings of the training images, un-augmented, with the networks as they are now."""
    embed_views: Callable[[], Tensor]
    """(2n, D) the same of two random views of each: view 1 of all, then view 2."""
    generator: torch.Generator
    """For a method that draws: in the same state in every process."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """V views of each image of a batch, as far as they run through this process: view 1 of all,
    then view 2, …"""

    images: Tensor
    """(V·b,) which image each view is of: its position among the training images."""
    inputs: Tensor
    """(V·b, …) the trunk's tokens, or images where the model reads these; for a teacher to run over
    them again."""
    outputs: dict[str, Tensor]
    """(V·b, X) each: what the model's forward gave, with gradients."""
    labels: Tensor
    """(V·B,) labels of all views of the batch, in every process; -1 for unlabeled, else 0 … n_known
    - 1."""
    epoch: int
    """Counted from 0."""
    generator: torch.Generator
    """For a loss that draws: in the same state in every process, so draw for the whole batch, then
    take `own`."""
    n_views: int = 2

    def gather(self, own: Tensor) -> Tensor:
        """Put rows (V·b, X) of this process between those of the others, (V·B, X); only its own
        carry gradients.

        When every process backs the same loss over all rows through its own, their gradients add up
        to the whole.
        """
        return torch.cat([_gather_view(view, self.n_images) for view in own.chunk(self.n_views)])

    def own(self, everyone: Tensor) -> Tensor:
        """Take the rows (V·b, X) of this process out of those of the whole batch, (V·B, X)."""
        mine = shard(self.n_images)
        return torch.cat([view[mine] for view in everyone.chunk(self.n_views)])

    @property
    def n_images(self) -> int:
        """The number of images, B."""
        return len(self.labels) // self.n_views


S = TypeVar("S")
"""The settings of a method, of `methods.method.TrainedSettings`."""

NOT_OF_METHOD = {"encoder", "input_size", "n_tail_blocks", "training", "inference", "estimate_on"}
"""Settings that a training is checked for elsewhere, or does not depend on."""


class Model(nn.Module, ABC, Generic[S]):
    """The networks of a method and its loss. Only the encoder's trunk is not trained, and not in a
    checkpoint."""

    n_views = 2
    """Random views of each image in a batch; the contrastive losses of `losses.py` are those of
    two."""
    reads_images = False
    """Whether `forward` takes normalized images instead of the trunk's tokens, because something in
    the trunk is trained. Tokens cannot be kept then: the trunk runs over every view in every step,
    with gradients."""
    is_recordable = False
    """Whether loss, optimizer and `after_step` launch kernels and do nothing else: no number is
    drawn or read by the host, no shape depends on values, nothing but tensors is changed. A GPU is
    then given a step as one CUDA graph."""

    def __init__(self, encoder: Encoder, settings: S, shape: TaskShape) -> None:
        super().__init__()
        self.encoder = encoder
        self.settings = settings
        self.shape = shape

    # What a method says.

    def check(self) -> None:
        """Refuse, before any work, a task that the method cannot do with."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Named outputs (b, X) of a batch of views for the loss, under autocast."""

    @abstractmethod
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Named scalars; 'loss' is minimized, the others are recorded."""

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Renew what is made once an epoch; numbers to record."""
        return {}

    def after_step(self, batch: Batch) -> None:
        """Follow a step that was taken: move a teacher, write into a memory. Without gradients."""

    def represent(self, inputs: Tensor) -> Tensor:
        """(b, D) what images are clustered by, of any length; the tail's features unless a method
        says otherwise."""
        features: Tensor = self.encoder.tail(inputs)
        return features

    def compact(self, embeddings: Tensor) -> Tensor:
        """Unit embeddings (N, D) in fewer columns with the same dot products, where they lie in a
        subspace."""
        return embeddings

    def predict(self, embeddings: Tensor) -> Tensor | None:
        """(N,) the cluster of each unit embedding (N, D) by a learned classifier, 0 … K-1; None
        where there is none.

        The first n_known are the classes that the loss has labels of.
        """
        return None

    def make_optimizer(self, settings: TrainSettings) -> Sgd:
        """What takes the steps; every parameter that wants gradients is trained."""
        return Sgd(
            self.trained_parameters(),
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )

    def lr_at(self, epoch: int, settings: TrainSettings) -> float:
        """The learning rate of an epoch, counted from 0. A function of the epoch alone, so that it
        is resumed."""
        return settings.lr_at(epoch)

    def identity(self) -> dict[str, object]:
        """The settings that make two runs of this method the same, for the check of a resume."""
        of_method = to_dict(self.settings)
        for name in NOT_OF_METHOD:
            del of_method[name]
        return {"name": type(self).__name__.lower(), **of_method}

    # What follows from it.

    @property
    def device(self) -> torch.device:
        """The device of the networks."""
        return self.encoder.device

    def trained_parameters(self) -> list[nn.Parameter]:
        """The parameters of the tail, then those that the method adds."""
        own = [value for name, value in self.named_parameters() if not name.startswith("encoder.")]
        return [value for value in (*self.encoder.tail.parameters(), *own) if value.requires_grad]

    def saved_tensors(self) -> dict[str, Tensor]:
        """Everything but the trunk, by name: 'tail/…', 'head/…', and so on for what the method
        adds."""
        return {
            _file_name(name): value for name, value in self.state_dict().items() if _is_saved(name)
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `saved_tensors` gave; a name or a shape that does not fit is a
        RuntimeError."""
        ours = {_file_name(name): name for name in self.state_dict() if _is_saved(name)}
        apart = ours.keys() ^ tensors.keys()
        if apart:
            raise RuntimeError(
                f"weights that only one of the two has: {', '.join(sorted(apart)[:3])}"
            )
        self.load_state_dict({ours[name]: value for name, value in tensors.items()}, strict=False)

    def embed(self, pixels: ImageRows) -> Tensor:
        """Unit embeddings (M, D), compact, of images outside of the collection."""
        parts = (
            pixels[start : start + IMAGES_AT_ONCE]
            for start in range(0, len(pixels), IMAGES_AT_ONCE)
        )
        return self.compact(
            torch.cat([self.inputs_of(part).embed(self.represent, self.device) for part in parts])
        )

    def inputs_of(
        self, pixels: ImageRows, *, batch_size: int = BATCH_OF_IMAGES
    ) -> TokenCache | ImageInputs:
        """Un-augmented images as `forward` takes them: tokens, kept in half precision, or the
        images themselves."""
        if self.reads_images:
            return ImageInputs(pixels, self.encoder, BATCH_OF_IMAGES)
        return cache_tokens(pixels, self.encoder, batch_size=batch_size)


def shape_of(task: Task) -> TaskShape:
    """The numbers of a task that a model is made with."""
    n_known = int(numbered_labels(task.training_labels).max(initial=-1)) + 1
    return TaskShape(n_images=len(task.training), n_known=n_known, n_clusters=task.n_clusters)


def numbered_labels(labels: Ints) -> Ints:
    """Labels 0 … C-1 without gaps, -1 kept."""
    classes = np.unique(labels[labels != UNLABELED])
    return np.where(labels == UNLABELED, UNLABELED, np.searchsorted(classes, labels))


def _is_saved(name: str) -> bool:
    return name.startswith("encoder.tail.") or not name.startswith("encoder.")


def _file_name(name: str) -> str:
    """'encoder.tail.0.weight' is 'tail/0.weight' in a file, 'head.layers.0.weight' is
    'head/layers.0.weight'."""
    return name.removeprefix("encoder.").replace(".", "/", 1)


def _gather_view(own: Tensor, n_rows: int) -> Tensor:
    mine = shard(n_rows)
    if mine == slice(0, n_rows):
        return own
    everyone = gather_rows(own.detach())  # (B, X)
    return torch.cat([everyone[: mine.start], own, everyone[mine.stop :]])
