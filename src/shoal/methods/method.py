"""The interface of a method: what it learns, how it clusters, its settings, and the outputs of the
frozen trunk that all its trainings share.

Each method is a module: its settings, its model (`training/model.py`) if it trains one, and its
clustering. The `Method` at the end of the module combines them.

Training runs on one collection share tokens if they split the same encoder at the same block, and a
pool of views if they sample the same views.

Shapes: N images, D columns of an embedding, M images that were not trained on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints, digest_rows
from shoal.clustering.categories import category_centers
from shoal.clustering.inference import Inference, InferenceSettings, LinkageMethod, infer
from shoal.clustering.mean_shift import NeighborAttention
from shoal.clustering.n_clusters import NClustersEstimate, clip_n_clusters
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import BLOCK_ROWS
from shoal.data.pixels.loading import Pixels
from shoal.device import describe_device
from shoal.distributed import n_local, world_size
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.vision import ImageRows, embed
from shoal.files import cache_folder, scratch_array, writing
from shoal.progress import Progress, count_after
from shoal.runs import environment
from shoal.settings import Plain
from shoal.training.inputs import Task, TokenCache, ViewPool, cache_tokens, pool_views, resident
from shoal.training.loop import Trained, train
from shoal.training.model import Model, TaskShape, shape_of
from shoal.training.sampling import POOL, Sampler
from shoal.training.train_settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class Representation(Trained):
    """Embeddings that a method has learned, or those of the frozen encoder; several clusterings can
    share them."""

    # Embeds other images
    embed: Callable[[ImageRows], Tensor]
    model: Model | None = None
    # Returns unit embeddings (N, C) of the same images by the frozen encoder; None if `embeddings`
    # are these
    frozen: Callable[[], Tensor] | None = None
    # K as the validation images estimate it, if there are any
    n_clusters: int | None = None
    # Number of shifts, if labels cannot choose it: on embeddings trained with all of them
    n_shifts: int | None = None
    # How small clusters are joined, if labels cannot choose it
    linkage_method: LinkageMethod | None = None
    # Number of leading columns of `embeddings` that were not trained with labels; None: all
    n_frozen: int | None = None


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """The clusters that a method found; rows are those of the task."""

    clusters: Ints  # (N,) the cluster of every image, 0 … K-1
    n_clusters: int
    embeddings: Floats  # (N, D) unit rows
    # The neighbors of each of these rows, if clustering has searched for them
    neighbors: Neighbors | None = None
    # (N,) the output of the model's classifier, if the clusters come from it
    predicted: Ints | None = None
    unlinked: Ints | None = None  # (N,) the clusters without must-links, if there are any links
    shifted: Floats | None = None  # (N, D) after the mean shifts, if the method shifts
    linkage: Floats | None = None  # (N-1, 4) the tree that was cut, if there is one
    # Accuracy on the labeled images after 0, 1, 2 … shifts
    accuracies: tuple[float, ...] = ()
    n_shifts: int = 0
    linkage_method: LinkageMethod = "ward"
    # The estimate of K with its curve, if these labels estimated it
    estimate: NClustersEstimate | None = None
    # Description of the method's own search for K; empty if it made none
    n_clusters_source: str = ""


def shift_and_cut(
    learned: Representation,
    labels: Ints,
    inference: InferenceSettings,
    *,
    n_clusters: int | None,
    seed: int,
    attention: NeighborAttention | None = None,
) -> Discovery:
    """Shift until the labeled accuracy stops rising, then cut Ward's tree at K (Algorithm 1).

    This is how CMS clusters, and how frozen features are clustered for every method that trains.
    """
    result = infer(
        learned.embeddings,
        labels,
        n_clusters,
        inference,
        attention=attention,
        generator=torch.Generator().manual_seed(seed),
        n_shifts=learned.n_shifts,
        linkage_method=learned.linkage_method,
        n_frozen=learned.n_frozen,
    )
    return as_discovery(result, learned.embeddings)


def as_discovery(inference: Inference, embeddings: Tensor) -> Discovery:
    # Neighbors are those of the embeddings only if these were neither rounded nor scaled.
    is_first = embeddings is inference.first.points and embeddings.dtype == torch.float32
    return Discovery(
        clusters=inference.labels,
        unlinked=inference.unlinked,
        n_clusters=inference.n_clusters,
        embeddings=to_numpy(embeddings),
        neighbors=inference.first.neighbors if is_first else None,
        shifted=to_numpy(inference.embeddings),
        linkage=inference.tree.linkage,
        accuracies=inference.accuracies,
        n_shifts=inference.n_shifts,
        linkage_method=inference.linkage_method,
        estimate=inference.estimate,
    )


def nearest_clusters(learned: Representation, discovery: Discovery, unseen: Tensor) -> Ints:
    """Return clusters (M,) of images that were not trained on, by the classifier, else by the
    nearest center.

    `unseen` (M, D) are their embeddings, `discovery` the clusters of the training images.
    """
    if learned.predicted is not None:
        assert learned.model is not None
        predicted = learned.model.predict(unseen)
        assert predicted is not None
        return predicted.cpu().numpy()
    # (K, D)
    centers = category_centers(learned.embeddings, discovery.clusters, discovery.n_clusters)
    return k_nearest(unseen, centers.to(unseen.dtype), 1).indices[:, 0].cpu().numpy()


def resolve_n_clusters(
    n_clusters: int | None,
    learned: Representation,
    labels: Ints,
    inference: InferenceSettings,
) -> int | None:
    """Return K if it is given, else the one from the validation images, clipped to the range in
    `inference`, and at least the known classes; None: estimate it on all labels."""
    if n_clusters is not None:
        return n_clusters
    if learned.n_clusters is None:
        return None
    clipped = clip_n_clusters(learned.n_clusters, inference.min_clusters, inference.max_clusters)
    # A class may have no image among the validation images.
    return max(clipped, len(np.unique(labels[labels != UNLABELED])))


def to_numpy(tensor: torch.Tensor) -> Floats:
    """Return a tensor (N, …) as a float32 array: a view if possible, else a copy, beyond 1 GiB
    in a mapped file."""
    rows = tensor.detach()
    if rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.is_contiguous():
        return rows.numpy()
    cache = cache_folder()
    with writing(cache):
        array = scratch_array(tuple(rows.shape), np.float32, cache)
    for start in range(0, len(rows), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        array[part] = rows[part].float().cpu().numpy()
    return array


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """Settings shared by all methods."""

    encoder: str = DEFAULT_ENCODER
    input_size: int | None = None
    """Input size of the encoder in pixels; None: the size it was trained with."""
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    """Clustering of frozen features, and of the embeddings of a method with mean shifts; its `rule`
    estimates K for every method."""


S = TypeVar("S", bound=MethodSettings)


@dataclass(frozen=True, kw_only=True)
class TrainedSettings(MethodSettings):
    """Settings shared by all methods that train a model."""

    n_tail_blocks: int | None = None
    """Number of the encoder's last blocks that are trained; None: the one in its catalog entry."""
    training: TrainSettings = field(default_factory=TrainSettings)


@dataclass(frozen=True, kw_only=True)
class Method(Generic[S]):
    """A method: its settings, its model, and how it clusters."""

    # The class of its settings; a subclass of `TrainedSettings` if there is a model
    settings: type[S]
    title: str
    # Clusters embeddings that this or another method has learned, given labels (N,), settings and K
    # (None: estimate it)
    cluster: Callable[[Representation, Ints, S, int | None], Discovery]
    model: type[Model] | None = None
    # Whether its clustering shifts embeddings, so that K is also estimated on shifted ones
    shifts: bool = False
    # Whether K must be known before training, because a classifier has K outputs
    needs_n_clusters: bool = False
    # Whether training depends on K if it is given
    uses_n_clusters: bool = False
    # Clusters embeddings (M, D) of images that were not trained on, given what was learned, these
    # embeddings, the labels (N,) and validation rows of the task, settings and K; None:
    # `nearest_clusters`
    cluster_unseen: (
        Callable[[Representation, Tensor, Ints, Ints, S, int | None], Discovery] | None
    ) = None
    # Values of this method's settings by dotted name, for each of the protocols
    protocols: dict[str, Plain] = field(default_factory=dict)

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
        embed_frozen = partial(_embed_frozen, settings, device)
        if self.model is None:
            return Representation(embeddings=embed_frozen(task.pixels), embed=embed_frozen)
        assert isinstance(settings, TrainedSettings)
        if self.needs_n_clusters and task.n_clusters is None:
            n_clusters = infer(
                embed_frozen(task.pixels), task.visible_labels, None, settings.inference
            ).n_clusters
            task = replace(task, n_clusters=n_clusters)
        model = self.build(settings, shape_of(task)).to(device)
        trained = train(task, model, settings.training, rule=settings.inference.rule, **options)
        validation = trained.validation
        assert validation is not None
        return Representation(
            **vars(trained),
            embed=model.embed,
            model=model,
            frozen=partial(embed_frozen, task.pixels),
            n_frozen=0,
            n_clusters=validation.n_clusters,
        )


def _embed_frozen(settings: MethodSettings, device: torch.device, pixels: ImageRows) -> Tensor:
    """Return unit embeddings (N, C) of images from the frozen encoder."""
    encoder = load_encoder(settings.encoder, input_size=settings.input_size).to(device)
    return embed(pixels, encoder)


# An encoder, how many of its last blocks are trained, and its input size
TrunkKey = tuple[str, int | None, int | None]


@dataclass(kw_only=True)
class TrunkOutputs:
    """Tokens of N images by trunk, and the last requested pool of views of each trunk."""

    pixels: ImageRows
    device: torch.device
    tokens: dict[TrunkKey, Tensor] = field(default_factory=dict)
    pools: dict[TrunkKey, tuple[object, ViewPool]] = field(default_factory=dict)

    def prepare(
        self,
        task: Task,
        settings: TrainedSettings,
        planned: Sequence[tuple[Task, TrainedSettings]] = (),
        *,
        with_pool: bool = True,
        progress: Progress | None = None,
    ) -> Task:
        """Return the task with tokens and pool; `progress` counts images and views that have to be
        computed.

        The pool holds the views that all `planned` training runs use, of which this is one.
        """
        key = trunk_key(settings)
        training = settings.training
        has_pool = with_pool and training.views.pool is not None
        pool_key = ""
        views = np.empty(0, dtype=np.int64)
        if has_pool:
            used = _used_views(planned or [(task, settings)], settings)
            pool_key = f"{training.views} {training.seed} {digest_rows(used)}"
            if key not in self.pools or self.pools[key][0] != pool_key:
                views = used
        is_missing = key not in self.tokens
        if is_missing or len(views):
            encoder = load_encoder(
                settings.encoder,
                n_tail_blocks=settings.n_tail_blocks,
                input_size=settings.input_size,
            ).to(self.device)
            pixels = resident(self.pixels, self.device)
        n_views = n_local(len(views))
        n_images = n_local(len(self.pixels)) if is_missing else 0
        total = n_views + n_images
        if len(views):
            self.pools.pop(key, None)  # its memory is needed
            cache_key = None
            # A GPU computes views faster than a disk reads them.
            if self.device.type == "cpu" and world_size() == 1 and isinstance(self.pixels, Pixels):
                cache_key = (
                    f"{self.pixels.checksum} {pool_key} {encoder.identity()} {encoder} "
                    f"{describe_device(self.device)} {environment()}"
                )
            pool = pool_views(
                pixels,
                encoder,
                training.views,
                generator=Sampler(task.training_labels, training).generator(POOL),
                only=views,
                # Views come first, so that cached ones do not distort the time left.
                progress=count_after(progress, 0, total),
                cache_key=cache_key,
            )
            self.pools[key] = (pool_key, pool)
        if is_missing:
            counted = count_after(progress, n_views, total)
            self.tokens[key] = cache_tokens(pixels, encoder, counted).tokens
        if isinstance(self.pixels, Pixels):
            self.pixels.unload()  # training needs only the tokens
        return replace(
            task,
            tokens=TokenCache(self.tokens[key]),
            pool=self.pools[key][1] if has_pool else None,
        )

    def free(self) -> None:
        self.tokens.clear()
        self.pools.clear()


def trunk_key(settings: TrainedSettings) -> TrunkKey:
    return settings.encoder, settings.n_tail_blocks, settings.input_size


def _used_views(planned: Sequence[tuple[Task, TrainedSettings]], settings: TrainedSettings) -> Ints:
    """Return the views of a pool that are used by the planned training runs that sample views as
    one with these settings does."""
    views = np.empty(0, dtype=np.int64)
    training = settings.training
    for task, other in planned:
        is_same = (other.training.views, other.training.seed) == (training.views, training.seed)
        if is_same and trunk_key(other) == trunk_key(settings):
            used = Sampler(task.training_labels, other.training).pooled_views(task.training)
            views = np.union1d(views, used)
    return views
