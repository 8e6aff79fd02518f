"""What a method has learned, what it finds in it, and the ways of clustering that methods share.

N images, D columns of an embedding, M images that were not trained on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.average import LinkageMethod
from shoal.clustering.categories import category_centers
from shoal.clustering.inference import Inference, InferenceSettings, infer
from shoal.clustering.mean_shift import NeighborAttention
from shoal.clustering.n_clusters import NClustersEstimate, keep_to
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import ROWS_AT_ONCE
from shoal.encoders.embed import ImageRows
from shoal.files import cache_folder, scratch_array, writing
from shoal.training.model import Model
from shoal.words import AVERAGE_LINKAGE


@dataclass(frozen=True, kw_only=True)
class Representation:
    """What a method has learned, before any image is put into a cluster; several clusterings can
    share it."""

    embeddings: Tensor
    """(N, D) of the task's images, unit rows, on the device."""
    embed: Callable[[ImageRows], Tensor]
    """The same for other images."""
    model: Model[Any] | None = None
    """What was trained; None where nothing was."""
    frozen: Callable[[], Tensor] | None = None
    """(N, C) unit embeddings of the same images by the encoder as it came; None where `embeddings`
    are these."""
    predicted: Ints | None = None
    """(N,) the cluster of each image by the model's classifier, where it has one."""
    n_clusters: int | None = None
    """K as the validation images estimate it with the snapshot that was kept; None where there was
    none to ask."""
    rule: str | None = None
    """The rule that decided on that K, where one did."""
    n_shifts: int | None = None
    """How often to shift, where labels cannot say: on embeddings that were trained with all of
    them."""
    linkage_method: LinkageMethod | None = None
    """How to join small clusters, where labels cannot say."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """A row per epoch of training."""
    epoch: int = 0
    """The epoch of the snapshot that was kept; 0 where nothing was trained."""
    is_done: bool = True
    """Whether training was not stopped before its end."""

    def answer(self, clusters: Ints, n_clusters: int) -> "Discovery":
        """Clusters (N,) of what was learned, as methods answer."""
        return Discovery(
            clusters=clusters,
            n_clusters=n_clusters,
            embeddings=to_numpy(self.embeddings),
            metrics=self.metrics,
            epoch=self.epoch,
        )

    def embed_frozen(self) -> Tensor:
        """(N, C) what the encoder made of the images as it came, unit rows, on the device."""
        return self.embeddings if self.frozen is None else self.frozen()


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """What a method found; rows are those of the task."""

    clusters: Ints
    """(N,) the cluster of every image, 0 … K-1."""
    n_clusters: int
    embeddings: Floats
    """(N, D) from the encoder, unit rows."""
    neighbors: Neighbors | None = None
    """The neighbors of each of these rows, where clustering has looked them up."""
    predicted: Ints | None = None
    """(N,) the output of the model's classifier, where the clusters come from it."""
    unlinked: Ints | None = None
    """(N,) the clusters without must-links, where there were any: clusters that no label has a part
    in."""
    shifted: Floats | None = None
    """(N, D) after the mean shifts, where the method shifts."""
    linkage: Floats | None = None
    """(N-1, 4) the tree that was cut, where the method grows one."""
    accuracies: tuple[float, ...] = ()
    """Accuracy on the labeled images after 0, 1, 2 … shifts."""
    n_shifts: int = 0
    """How many of them the clusters come from."""
    linkage_method: LinkageMethod = "ward"
    """How the tree joins small clusters."""
    cuts: tuple[Ints, ...] = ()
    """(N,) each: the clusters after 0, 1, 2 … shifts, without must-links, as far as labels judged
    them."""
    estimate: NClustersEstimate | None = None
    """Where the number of clusters was estimated on these labels: the curve it was read from."""
    counted_by: str = ""
    """Where the method has found the number of clusters itself: how, in words."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    """A row per epoch of training."""
    epoch: int = 0
    """The epoch of the snapshot that was kept; 0 where nothing was trained."""


def shift_and_cut(
    learned: Representation,
    labels: Ints,
    inference: InferenceSettings,
    *,
    n_clusters: int | None,
    seed: int,
    device: torch.device,
    attention: NeighborAttention | None = None,
) -> Discovery:
    """Shift until the labeled accuracy stops rising, cut Ward's tree at K (section 4.4, Algorithm
    1).

    That is how the method cms clusters, and how the frozen features are clustered for every method
    that trains.
    """
    result = infer(
        learned.embeddings,
        labels,
        n_clusters,
        inference,
        attention=attention,
        generator=torch.Generator().manual_seed(seed),
        device=device,
        n_shifts=learned.n_shifts,
        linkage_method=learned.linkage_method,
    )
    return replace(
        as_discovery(result, learned.embeddings),
        metrics=learned.metrics,
        epoch=learned.epoch,
    )


def linkage_in_words(discovery: Discovery) -> str:
    """Say that clusters are not joined by Ward's linkage, and why; nothing where they are."""
    return AVERAGE_LINKAGE if discovery.linkage_method == "average" else ""


def as_discovery(inference: Inference, embeddings: Tensor) -> Discovery:
    """What Algorithm 1 found in embeddings (N, D), as methods answer."""
    # Others are rounded, or scaled.
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
        cuts=inference.cuts,
        estimate=inference.estimate,
    )


def nearest_clusters(learned: Representation, discovery: Discovery, unseen: Tensor) -> Ints:
    """(M,) clusters of images that were not trained on: what the classifier predicts, else the
    nearest mean.

    `unseen` (M, D) are their embeddings, `discovery` the clusters of the images that were trained
    on.
    """
    if learned.predicted is not None:
        assert learned.model is not None
        predicted = learned.model.predict(unseen)
        assert predicted is not None
        outputs: Ints = predicted.cpu().numpy()
        return outputs
    centers = category_centers(
        learned.embeddings, discovery.clusters, discovery.n_clusters
    )  # (K, D)
    nearest: Ints = k_nearest(unseen, centers.to(unseen.dtype), 1).indices[:, 0].cpu().numpy()
    return nearest


def n_clusters_to_use(
    given: int | None,
    learned: Representation,
    labels: Ints,
    estimate_on: str,
    inference: InferenceSettings | None = None,
) -> int | None:
    """The K given, else the one from the validation images, else None: to be estimated on all
    labels.

    That from the validation images keeps to the range in `inference`, where there is one.
    """
    if given is not None:
        return given
    if learned.n_clusters is None or estimate_on == "collection":
        return None
    # The validation images may have missed a class that has no image among them.
    number = max(learned.n_clusters, len(np.unique(labels[labels != UNLABELED])))
    if inference is None:
        return number
    return keep_to(number, inference.min_clusters, inference.max_clusters)


def to_numpy(tensor: torch.Tensor) -> Floats:
    """A tensor (N, …) as a float32 array: its own memory where it is one, else a copy, past 1 GiB
    in a mapped file."""
    rows = tensor.detach()
    cache = cache_folder()
    if rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.is_contiguous():
        return rows.numpy()
    with writing(cache):
        array: Floats = scratch_array(tuple(rows.shape), np.float32, cache)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        array[part] = rows[part].float().cpu().numpy()
    return array
