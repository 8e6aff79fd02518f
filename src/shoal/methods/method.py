"""What every method takes and gives, so that one can stand in for another.

A method is a file: its settings, its model (`training/model.py`) where it trains, and how it
clusters; a `Method` at its end names them. N images, D columns of an embedding, M images that were
not trained on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Generic, Literal, Protocol, Self, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.inference import InferenceSettings, infer
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import embed
from shoal.methods.clusters import Discovery, Representation
from shoal.training.loop import EarlyStopping, OnEpoch, OnProgress, train
from shoal.training.model import Model, TaskShape, shape_of
from shoal.training.task import Task
from shoal.training.train_settings import TrainSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSettings:
    """What the settings of every method have in common."""

    encoder: str = DEFAULT_ENCODER
    input_size: int | None = None
    """Side of the images the encoder sees; None: what it was made for."""
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    """How frozen features are clustered, and those of a method that shifts; its `rule` estimates K
    in all of them."""

    def with_seed(self, seed: int) -> Self:
        """The same settings with another seed; nothing is drawn where nothing is trained."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedSettings(MethodSettings):
    """What those of a method that trains have besides."""

    n_tail_blocks: int | None = None
    """How many of the encoder's last blocks are trained; None: what the encoder's catalog entry
    says."""
    training: TrainSettings = field(default_factory=TrainSettings)
    estimate_on: Literal["validation", "collection"] = "validation"
    """Whose labels estimate K after training: those set aside from the loss, as in the paper, or
    all, on the final embeddings. Where `shoal discover` has a first answer, 'validation' leaves K
    to that, unless the rule is the paper's; a method that needs K before training takes it from the
    frozen encoder in any case."""

    def with_seed(self, seed: int) -> Self:
        """The same settings with another seed."""
        return replace(self, training=replace(self.training, seed=seed))


S = TypeVar("S", bound=MethodSettings)
"""The settings of a method."""

S_in = TypeVar("S_in", bound=MethodSettings, contravariant=True)


class LearnOptions(TypedDict, total=False):
    """How a method learns, as `training.loop.train` takes it."""

    folder: Path | None
    resume: bool
    progress: OnProgress | None
    on_epoch: OnEpoch | None
    stop: Callable[[], bool] | None
    early_stopping: EarlyStopping | None


class Cluster(Protocol[S_in]):
    """From embeddings and some labels to clusters."""

    def __call__(
        self,
        learned: Representation,
        labels: Ints,
        settings: S_in,
        *,
        n_clusters: int | None,
        device: torch.device,
    ) -> Discovery:
        """Cluster what was learned, by this method or another; `n_clusters` None: estimated."""
        ...


class ClusterUnseen(Protocol[S_in]):
    """From what was learned to clusters of images that were not trained on."""

    def __call__(
        self,
        learned: Representation,
        unseen: Tensor,
        labels: Ints,
        validation: Ints,
        settings: S_in,
        *,
        n_clusters: int | None,
        device: torch.device,
    ) -> Discovery:
        """Cluster embeddings `unseen` (M, D); `labels` (N,) are those of the task, `validation` its
        rows kept apart."""
        ...


@dataclass(frozen=True, kw_only=True)
class Method(Generic[S]):
    """A method: its settings, its model, and how it clusters."""

    settings: type[S]
    """A class of `TrainedSettings` where there is a model."""
    title: str
    """What papers call it."""
    cluster: Cluster[S]
    model: type[Model[S]] | None = None
    """The networks of a method that trains."""
    shifts: bool = False
    """Whether its clustering shifts, so that K too is estimated on shifted embeddings."""
    needs_n_clusters: bool = False
    """Whether K has to be known before training, because a classifier has as many outputs."""
    uses_n_clusters: bool = False
    """Whether training is another where K is given."""
    goes_on_from_trial: bool = False
    """Whether a training with all labels may begin with the weights of one with fewer classes. Not
    where a classifier or a memory knows the classes by number, which are others then."""
    cluster_unseen: ClusterUnseen[S] | None = None
    """Clusters of images that were not trained on; None: `nearest_clusters`."""
    protocols: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What the protocols of `protocols.py` decide of this method's own settings, by dotted name."""

    @property
    def trains(self) -> bool:
        """Whether anything is trained."""
        return self.model is not None

    @property
    def reads_images(self) -> bool:
        """Whether its networks begin with the images, so that no tokens can be kept."""
        return self.model is not None and self.model.reads_images

    def run(
        self, task: Task, settings: S, *, device: torch.device, **options: Unpack[LearnOptions]
    ) -> Discovery:
        """Learn from a task and cluster its images.

        K is the given one, else the one estimated on the validation images with the snapshot that
        was kept, else, where no images were set aside, the one estimated on all labels. Without any
        label (K given) there is no supervised loss and nothing to choose a snapshot by: the last
        one is kept.
        """
        learned = self.represent(task, settings, device=device, **options)
        return self.cluster(
            learned, task.labels, settings, n_clusters=task.n_clusters, device=device
        )

    def build(self, settings: S, shape: TaskShape) -> Model[S]:
        """Load the encoder and make the model, whose weights depend on the seed alone."""
        assert self.model is not None
        assert isinstance(settings, TrainedSettings)
        encoder = load_encoder(
            settings.encoder, n_tail_blocks=settings.n_tail_blocks, input_size=settings.input_size
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.training.seed)
            return self.model(encoder, settings, shape)

    def represent(
        self,
        task: Task,
        settings: S,
        *,
        device: torch.device,
        start: Model[S] | None = None,
        **options: Unpack[LearnOptions],
    ) -> Representation:
        """Train the model on a task, or embed its images where there is none. A K in the task
        chooses the snapshot.

        It begins with the weights of the model `start`, or with those that the seed draws.
        """
        if self.model is None:
            encoder = load_encoder(settings.encoder, input_size=settings.input_size).to(device)
            progress = options.get("progress")
            frozen = embed(task.pixels, encoder, progress=progress and partial(progress, "images"))
            return Representation(embeddings=frozen, embed=lambda pixels: embed(pixels, encoder))
        assert isinstance(settings, TrainedSettings)
        if self.needs_n_clusters and task.n_clusters is None:
            task = replace(task, n_clusters=_count_frozen(task, settings, device))
        model = self.build(settings, shape_of(task)).to(device)
        if start is not None:
            model.load_tensors(start.saved_tensors())
        trained = train(
            task,
            model,
            settings.training,
            rule=settings.inference.rule,
            **options,
        )
        return Representation(
            embeddings=trained.embeddings,
            embed=model.embed,
            model=model,
            frozen=partial(_embed_frozen, task, settings, device),
            predicted=trained.predicted,
            n_clusters=trained.validation.n_clusters,
            rule=trained.validation.rule,
            metrics=trained.metrics,
            epoch=trained.epoch,
            is_done=trained.is_done,
        )


def _count_frozen(task: Task, settings: MethodSettings, device: torch.device) -> int:
    """K as the labels that training sees estimate it with the encoder as it comes."""
    labels = task.labels.copy()
    if task.validation is not None:
        labels[task.validation] = UNLABELED
    frozen = _embed_frozen(task, settings, device)
    return infer(frozen, labels, None, settings.inference, device=device).n_clusters


def _embed_frozen(task: Task, settings: MethodSettings, device: torch.device) -> Tensor:
    """(N, C) unit embeddings of a task's images by the encoder as it comes."""
    encoder = load_encoder(settings.encoder, input_size=settings.input_size).to(device)
    return embed(task.pixels, encoder)
