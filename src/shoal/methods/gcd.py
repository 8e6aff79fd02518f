"""Generalized category discovery as Vaze et al. (CVPR 2022) first did it, on the same trainer as
CMS.

Training: InfoNCE of two views over all images and the supervised contrastive loss over the labeled
ones, through a head that is then discarded. Inference: semi-supervised k-means of the encoder's
features. The snapshot is the one with the highest accuracy on labeled validation images; the
released code takes the one that does best on the test images.

B images of a batch, D entries of an embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.kmeans import KMeansResult, semi_supervised_kmeans
from shoal.clustering.n_clusters import (
    NClustersEstimate,
    check_n_clusters,
    keep_to,
    search_n_clusters,
)
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.encoders.head import Head, HeadSettings, unit
from shoal.encoders.vision import Encoder
from shoal.methods.clusters import Discovery, Representation, n_clusters_to_use
from shoal.methods.method import Cluster, Method, TrainedSettings
from shoal.settings import check_numbers
from shoal.training.losses import GcdLossSettings, contrastive_loss, supervised_loss
from shoal.training.model import Batch, Model, TaskShape, numbered_labels

COUNTED_BY = (
    "highest accuracy of k-means, started once, on frozen features by all given labels, "
    "Brent's search"
)
"""How K is found where that is searched for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GcdSettings(TrainedSettings):
    """Everything that can be set; `recipes/gcd` holds the published values for DINO and CLIP.

    Of `inference` only `rule`, `min_clusters` and `max_clusters` are used: nothing is shifted.
    """

    head: HeadSettings = field(default_factory=HeadSettings)
    loss: GcdLossSettings = field(default_factory=GcdLossSettings)
    search_n_clusters: bool = False
    """Estimate K as published: by the highest labeled accuracy of k-means on the encoder's features
    as they come, found by Brent's search; else by `inference.rule`. Where `shoal discover` takes K
    from its first answer, that stays."""
    n_init: int = 10
    """Starts of k-means; the released code makes 100. With 6,000 images and K = 200 each costs 6 to
    7 CPU seconds."""

    def __post_init__(self) -> None:
        check_numbers(self, counts=["n_init"])

    def search(self, find: Callable[[int], Ints], labels: Ints) -> int:
        """K by the labeled accuracy of what `find` makes of it, within the range in `inference`."""
        inference = self.inference
        return search_n_clusters(
            find, labels, least=inference.min_clusters, most=inference.max_clusters
        )

    def keep_to_range(self, n_found: int, labels: Ints) -> int:
        """A number of clusters within the range in `inference`, and no fewer than known classes."""
        n_known = len(np.unique(labels[labels != UNLABELED]))
        inference = self.inference
        return max(keep_to(n_found, inference.min_clusters, inference.max_clusters), n_known)


G = TypeVar("G", bound=GcdSettings)


class Gcd(Model[G]):
    """λ · L_supervised + (1 - λ) · InfoNCE, both through a head; images are clustered by the tail's
    features."""

    def __init__(self, encoder: Encoder, settings: G, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.head = Head(encoder.feature_dim, settings.head)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """What the head makes of the features of views, and the features, unit rows."""
        features = self.encoder.tail(inputs)
        return {"projections": self.head(features), "features": unit(features.float())}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The objective and its two parts."""
        return gcd_losses(
            batch.gather(batch.outputs["projections"]), batch.labels, self.settings.loss
        )


def gcd_losses(views: Tensor, labels: Tensor, loss: GcdLossSettings) -> dict[str, Tensor]:
    """λ · L_supervised + (1 - λ) · InfoNCE of unit rows (2B, D) with labels (2B,), and the two."""
    unsupervised = contrastive_loss(views, loss.temperature)
    is_reference = loss.denominator == "reference"
    supervised = supervised_loss(
        views, labels, loss.supervised_temperature, with_positives=is_reference
    )
    total = loss.supervised_weight * supervised + (1 - loss.supervised_weight) * unsupervised
    return {"loss": total, "loss_supervised": supervised, "loss_contrastive": unsupervised}


Search = Callable[[Representation, Tensor, Ints, G], int]
"""Finds K of unit points (N, D), of what was learned, with labels (N,), by settings."""


def clustering_by_kmeans(search: Search[G], counted_by: str) -> Cluster[G]:
    """Semi-supervised k-means for a method that finds K by a `search` of its own; `counted_by` says
    in words how.

    Labeled images keep their class, the others go to the nearest center.
    """

    def cluster(
        learned: Representation,
        labels: Ints,
        settings: G,
        *,
        n_clusters: int | None,
        device: torch.device,
    ) -> Discovery:
        points = unit_points(learned.embeddings, device=device)
        number = decide_n_clusters(n_clusters, learned, points, labels, settings, search)
        found = cluster_points(points, labels, number.n_clusters, settings)
        return replace(
            learned.answer(found.labels.cpu().numpy(), number.n_clusters),
            estimate=number.estimate,
            counted_by=counted_by if number.is_searched else "",
        )

    return cluster


@dataclass(frozen=True, kw_only=True)
class Number:
    """K, and where it comes from."""

    n_clusters: int
    estimate: NClustersEstimate | None = None
    """Where the rule in `inference` was asked on the tree of the points."""
    is_searched: bool = False
    """Whether the method's own search has found it."""


def decide_n_clusters(
    given: int | None,
    learned: Representation,
    points: Tensor,
    labels: Ints,
    settings: G,
    search: Search[G],
) -> Number:
    """The K given, else that of the method's own search where it is asked for, else that of the
    rule in `inference`."""
    is_searched = given is None and settings.search_n_clusters
    if is_searched:
        given = search(learned, points, labels, settings)
    wanted = n_clusters_to_use(given, learned, labels, settings.estimate_on, settings.inference)
    if wanted is not None:
        return Number(
            n_clusters=check_n_clusters(wanted, labels, len(labels)), is_searched=is_searched
        )
    estimate = settings.inference.estimate(Tree(ward_linkage(points, device=points.device)), labels)
    return Number(n_clusters=estimate.n_clusters, estimate=estimate)


def cluster_points(
    points: Tensor, labels: Ints, n_clusters: int, settings: GcdSettings
) -> KMeansResult:
    """Semi-supervised k-means of unit points (N, D); clusters 0 … C-1 are the classes in `labels`
    (N,), in order."""
    return semi_supervised_kmeans(
        points,
        # Without gaps: a class without a labeled image has no center to start from.
        torch.from_numpy(numbered_labels(labels)).to(points.device),
        n_clusters,
        generator=torch.Generator().manual_seed(settings.training.seed),
        n_init=settings.n_init,
    )


def search_by_kmeans(
    learned: Representation, points: Tensor, labels: Ints, settings: GcdSettings
) -> int:
    """K by the labeled accuracy of plain k-means, started once each, on the encoder's features as
    they came."""
    frozen = unit_points(learned.embed_frozen(), device=points.device)

    def find(n_clusters: int) -> Ints:
        found = plain_kmeans(frozen, n_clusters, settings.training.seed)
        clusters: Ints = found.labels.cpu().numpy()
        return clusters

    return settings.search(find, labels)


def plain_kmeans(points: Tensor, n_clusters: int, seed: int) -> KMeansResult:
    """K-means of unit points (N, D) that knows no label, started once."""
    nobody = torch.full((len(points),), UNLABELED, dtype=torch.int64, device=points.device)
    return semi_supervised_kmeans(
        points,
        nobody,
        n_clusters,
        generator=torch.Generator().manual_seed(seed),
        n_init=1,
        max_iterations=100,
    )


METHOD = Method(
    settings=GcdSettings,
    title="GCD",
    model=Gcd,
    cluster=clustering_by_kmeans(search_by_kmeans, COUNTED_BY),
)
