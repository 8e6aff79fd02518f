"""What every method takes and gives, so that one can stand in for another.

A method is a file: its settings, its model (`training/model.py`) where it trains, how it clusters, and what tables say
of it; a `Method` at its end names them.
N images, D columns of an embedding, M images that were not trained on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypedDict, Unpack

import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.inference import InferenceSettings, infer
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import embed
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.clusters import Discovery, Representation
from shoal.methods.task import Task
from shoal.training.loop import GoesOn, OnProgress, train
from shoal.training.model import Model, TaskShape, shape_of
from shoal.training.train_settings import TrainSettings

OnEpoch = Callable[[dict[str, Any]], None]
"""Called with an epoch's row of metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSettings:
    """What the settings of every method have in common."""

    encoder: str = DEFAULT_ENCODER
    input_size: int | None = None
    """Side of the images the encoder sees; None: what it was made for."""
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    """How frozen features are clustered, and those of a method that shifts; its `rule` estimates K in all of them."""

    def with_seed(self, seed: int) -> Self:
        """The same settings with another seed; nothing is drawn where nothing is trained."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedSettings(MethodSettings):
    """What those of a method that trains have besides."""

    n_tail_blocks: int | None = None
    """How many of the encoder's last blocks are trained; None: what the encoder's catalog entry says."""
    training: TrainSettings = field(default_factory=TrainSettings)
    estimate_on: Literal["validation", "collection"] = "validation"
    """Whose labels estimate K after training: those set aside from the loss, as in the paper, or all, on the final
    embeddings. Where `shoal discover` has a first answer, 'validation' leaves K to that, unless the rule is the
    paper's; a method that needs K before training takes it from the frozen encoder in any case."""

    def __post_init__(self) -> None:
        """Refuse what would have no effect: CMS alone has a bank, and checks it itself."""
        if self.training.bank != "images":
            raise UsageError(
                f"training.bank: found {self.training.bank!r} for a method without a bank; leave it out, or name the "
                "method it is for, as in cms.training.bank"
            )

    def with_seed(self, seed: int) -> Self:
        """The same settings with another seed."""
        return replace(self, training=replace(self.training, seed=seed))


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierSettings(TrainedSettings):
    """What those of a method with a classifier of features have besides."""

    start: Literal["random", "images"] = "random"
    """Where the classifier's outputs begin: at random directions, as published, or those of known classes at the mean
    of their labeled images and the others at unlabeled images. Where all features lie on one side, as those of an
    encoder that ends in a ReLU do, random outputs are far from every image, and novel ones may never win."""


class LearnOptions(TypedDict, total=False):
    """How a method learns; nothing of it changes what is learned."""

    folder: Path | None
    """Takes checkpoints and metrics."""
    resume: bool
    """Go on from what is in the folder."""
    progress: OnProgress | None
    """Told how much is done of what."""
    on_epoch: OnEpoch | None
    """Told each row of metrics."""
    goes_on: GoesOn | None
    """Asked after each epoch whether another one is needed; this alone may change what is learned."""
    keeps_trunk: bool
    """Hand on what the trunk has computed, for another training."""


class Cluster(Protocol):
    """From embeddings and some labels to clusters."""

    def __call__(
        self,
        learned: Representation,
        labels: Ints,
        settings: Any,
        *,
        n_clusters: int | None,
        device: torch.device,
    ) -> Discovery:
        """Cluster what was learned, by this method or another; `n_clusters` None: estimated."""
        ...


class ClusterUnseen(Protocol):
    """From what was learned to clusters of images that were not trained on."""

    def __call__(
        self,
        learned: Representation,
        unseen: Tensor,
        labels: Ints,
        validation: Ints,
        settings: Any,
        *,
        n_clusters: int | None,
        device: torch.device,
    ) -> Discovery:
        """Cluster embeddings `unseen` (M, D); `labels` (N,) are those of the task, `validation` its rows kept apart."""
        ...


def _says_nothing(settings: Any) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: its settings, its model, how it clusters, and what is said of it."""

    settings: type[Any]
    """A class of `MethodSettings`; of `TrainedSettings` where there is a model."""
    title: str
    """What papers call it."""
    about: str
    cluster: Cluster
    model: Callable[[Encoder, Any, TaskShape], Model] | None = None
    """Makes the networks of a method that trains."""
    shifts: bool = False
    """Whether its clustering shifts, so that K too is estimated on shifted embeddings."""
    needs_n_clusters: bool = False
    """Whether K has to be known before training, because a classifier has as many outputs."""
    measured_gain: str = ""
    """What training brought where its default recipes were measured, in words."""
    goes_on_from_trial: bool = False
    """Whether a training with all labels may begin with the weights of one with fewer classes. Not where a classifier
    or a memory knows the classes by number, which are others then."""
    cluster_unseen: ClusterUnseen | None = None
    """Clusters of images that were not trained on; None: `nearest_clusters`."""
    protocols: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the protocols of `protocols.py` decide of this method's own settings, block by block."""

    losses: Callable[[Any], str] = _says_nothing
    """The losses in a few words, for under a table."""
    head: Callable[[Any], str] = _says_nothing
    """The head, or the classifier."""
    number: Callable[[Any], str] = _says_nothing
    """How the method finds K, where it does that itself and not by the rule of `inference` on labeled images."""
    number_remark: str = ""
    """What is added where K is found by that rule."""
    starts: Callable[[Any], str] = _says_nothing
    """How often k-means starts, where there is one."""
    released: str = ""
    """What the protocol 'reference' takes from the released code."""

    @property
    def trains(self) -> bool:
        """Whether anything is trained."""
        return self.model is not None

    def run(
        self, task: Task, settings: Any, *, device: torch.device, **options: Unpack[LearnOptions]
    ) -> Discovery:
        """Learn from a task and cluster its images.

        K is the given one, else the one estimated on the validation images with the snapshot that was kept, else, where
        no images were set aside, the one estimated on all labels. Without any label (K given) there is no supervised
        loss and nothing to choose a snapshot by: the last one is kept.
        """
        learned = self.represent(task, settings, device=device, **options)
        return self.cluster(
            learned, task.labels, settings, n_clusters=task.n_clusters, device=device
        )

    def build(self, settings: Any, shape: TaskShape) -> Model:
        """Load the encoder and make the model, whose weights depend on the seed alone."""
        assert self.model is not None
        encoder = load_encoder(
            settings.encoder, n_tail_blocks=settings.n_tail_blocks, input_size=settings.input_size
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.training.seed)
            return self.model(encoder, settings, shape)

    def represent(
        self,
        task: Task,
        settings: Any,
        *,
        device: torch.device,
        start: Model | None = None,
        **options: Unpack[LearnOptions],
    ) -> Representation:
        """Train the model on a task, or embed its images where there is none. A K in the task chooses the snapshot.

        It begins with the weights of the model `start`, or with those that the seed draws.
        """
        if self.model is None:
            encoder = load_encoder(settings.encoder, input_size=settings.input_size).to(device)
            progress = options.get("progress")
            frozen = embed(task.pixels, encoder, progress=progress and partial(progress, "images"))
            return Representation(embeddings=frozen, embed=lambda pixels: embed(pixels, encoder))
        if self.needs_n_clusters and task.n_clusters is None:
            task = replace(task, n_clusters=_count_frozen(task, settings, device))
        data = task.training_data
        model = self.build(settings, shape_of(data, task.n_clusters)).to(device)
        if start is not None:
            model.load_tensors(start.saved_tensors())
        rule = settings.inference.rule
        trained = train(
            data, model, settings.training, n_clusters=task.n_clusters, rule=rule, **options
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
            tokens=trained.tokens,
            pool=trained.pool,
        )


def _count_frozen(task: Task, settings: Any, device: torch.device) -> int:
    """K as the labels that training sees estimate it with the encoder as it comes."""
    labels = task.labels.copy()
    if task.validation is not None:
        labels[task.validation] = UNLABELED
    inference = infer(
        _embed_frozen(task, settings, device), labels, None, settings.inference, device=device
    )
    return inference.n_clusters


def _embed_frozen(task: Task, settings: Any, device: torch.device) -> Tensor:
    """(N, C) unit embeddings of a task's images by the encoder as it comes."""
    return embed(
        task.pixels, load_encoder(settings.encoder, input_size=settings.input_size).to(device)
    )
