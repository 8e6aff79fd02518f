"""The interface of a method.

Each method is a module: its settings, its model (`training/model.py`) if it trains one, and its
clustering. The `Method` at the end of the module combines them.

Shapes: N images, D columns of an embedding, M images that were not trained on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from shoal.arrays import UNLABELED
from shoal.clustering.inference import InferenceSettings, infer
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import embed
from shoal.methods.clusters import Discovery, Representation
from shoal.settings import Plain, check_ranges
from shoal.training.loop import train
from shoal.training.model import Model, TaskShape, shape_of
from shoal.training.task import Task
from shoal.training.train_settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """Settings shared by all methods."""

    encoder: str = DEFAULT_ENCODER
    input_size: int | None = None
    """Input size of the encoder in pixels; None: the size it was trained with."""
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    """Clustering of frozen features, and of the embeddings of a method with mean shifts; its `rule`
    estimates K for every method."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def with_seed(self, seed: int) -> Self:
        """Return these settings with another seed; unchanged if nothing is trained."""
        return self


@dataclass(frozen=True, kw_only=True)
class TrainedSettings(MethodSettings):
    """Settings shared by all methods that train a model."""

    n_tail_blocks: int | None = None
    """Number of the encoder's last blocks that are trained; None: the one in its catalog entry."""
    training: TrainSettings = field(default_factory=TrainSettings)

    def with_seed(self, seed: int) -> Self:
        return replace(self, training=replace(self.training, seed=seed))


S = TypeVar("S", bound=MethodSettings)
"""The settings of a method."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: its settings, its model, and how it clusters."""

    settings: type[MethodSettings]
    """The class of its settings; a subclass of `TrainedSettings` if there is a model."""
    title: str
    """The name used in papers."""
    cluster: Callable[..., Discovery]
    """Function that clusters embeddings, learned by this or another method, a `Representation`,
    given labels (N,), settings and K (None: estimate it)."""
    model: type[Model] | None = None
    """The class of its model; None if nothing is trained."""
    shifts: bool = False
    """Whether its clustering shifts embeddings, so that K is also estimated on shifted ones."""
    needs_n_clusters: bool = False
    """Whether K must be known before training, because a classifier has K outputs."""
    uses_n_clusters: bool = False
    """Whether training depends on K if it is given."""
    cluster_unseen: Callable[..., Discovery] | None = None
    """Function that clusters embeddings (M, D) of images that were not trained on, given a
    `Representation`, these embeddings, the labels (N,) and validation rows of the task, settings
    and K; None: `nearest_clusters`."""
    protocols: dict[str, Plain] = field(default_factory=dict)
    """For each protocol of `protocols.py`, values of this method's settings by dotted name."""

    @property
    def trains(self) -> bool:
        return self.model is not None

    @property
    def reads_images(self) -> bool:
        """Whether its model takes images instead of the trunk's tokens, so that none can be
        cached."""
        return self.model is not None and self.model.reads_images

    def uses_validation(self, settings: MethodSettings) -> bool:
        """Return whether validation labels are used, to choose the snapshot or K after training."""
        if not isinstance(settings, TrainedSettings):
            return False
        return settings.training.snapshot == "best" or not self.needs_n_clusters

    def build(self, settings: TrainedSettings, shape: TaskShape) -> Model:
        """Load the encoder and build the model; its initial weights depend only on the seed."""
        assert self.model is not None
        encoder = load_encoder(
            settings.encoder, n_tail_blocks=settings.n_tail_blocks, input_size=settings.input_size
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.training.seed)
            return self.model(encoder, settings, shape)

    def represent(
        self, task: Task, settings: MethodSettings, *, device: torch.device, **options: Any
    ) -> Representation:
        """Train the model on a task and embed its images; without a model, only embed them.

        `options` are keyword arguments of `training.loop.train`.
        """
        if self.model is None:
            encoder = load_encoder(settings.encoder, input_size=settings.input_size).to(device)
            progress = options.get("progress")
            frozen = embed(task.pixels, encoder, progress=progress and partial(progress, "images"))
            return Representation(embeddings=frozen, embed=lambda pixels: embed(pixels, encoder))
        assert isinstance(settings, TrainedSettings)
        embed_frozen = partial(_embed_frozen, task, settings, device)
        if self.needs_n_clusters and task.n_clusters is None:
            task = replace(task, n_clusters=_estimate_frozen(task, settings, embed_frozen()))
        model = self.build(settings, shape_of(task)).to(device)
        trained = train(task, model, settings.training, rule=settings.inference.rule, **options)
        validation = trained.validation
        assert validation is not None
        return Representation(
            **vars(trained),
            embed=model.embed,
            model=model,
            frozen=embed_frozen,
            n_frozen=0,
            n_clusters=validation.n_clusters,
            rule=validation.rule,
        )


def _estimate_frozen(task: Task, settings: MethodSettings, frozen: Tensor) -> int:
    """Return K estimated on frozen embeddings with the labels that training sees."""
    labels = task.labels.copy()
    if task.validation is not None:
        labels[task.validation] = UNLABELED
    return infer(frozen, labels, None, settings.inference).n_clusters


def _embed_frozen(task: Task, settings: MethodSettings, device: torch.device) -> Tensor:
    """Return unit embeddings (N, C) of a task's images from the frozen encoder."""
    encoder = load_encoder(settings.encoder, input_size=settings.input_size).to(device)
    return embed(task.pixels, encoder)
