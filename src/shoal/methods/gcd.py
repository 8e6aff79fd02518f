"""GCD (Vaze et al., CVPR 2022): contrastive learning, then semi-supervised k-means.

Training: InfoNCE of two views over all images and the supervised contrastive loss over the labeled
ones, through a projection head that is then discarded. Inference: semi-supervised k-means of the
encoder's features. The snapshot that is kept is the one with the highest accuracy on labeled
validation images; the released code keeps the one that is best on the test images.

Shapes: B images per batch, D dimensions of an embedding, N images.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.kmeans import KMeansResult, semi_supervised_kmeans
from shoal.clustering.n_clusters import search_n_clusters
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.encoders.vision import Encoder, Head, HeadSettings, unit
from shoal.methods.method import (
    Discovery,
    Method,
    Representation,
    TrainedSettings,
    resolve_n_clusters,
    to_numpy,
)
from shoal.settings import Count
from shoal.training.losses import ContrastSettings, contrastive_loss, supervised_loss
from shoal.training.model import Batch, Model, TaskShape, Tensors, consecutive_labels


@dataclass(frozen=True, kw_only=True)
class GcdSettings(TrainedSettings):
    """Settings of GCD; `recipes/gcd` holds the published values for DINO and CLIP.

    Of `inference`, only `rule`, `min_clusters` and `max_clusters` are used: nothing is shifted.
    """

    head: HeadSettings = field(default_factory=HeadSettings)
    loss: ContrastSettings = field(default_factory=ContrastSettings)
    search_n_clusters: bool = False
    """Whether K is estimated as published, by the highest labeled accuracy of k-means on frozen
    features, found by Brent's method; else by `inference.rule`. In `shoal discover`, the K of the
    frozen result takes precedence."""
    n_init: Count = 10
    """Number of initializations of k-means; 100 in the released code. With 6,000 images and K =
    200, each costs 6 to 7 CPU seconds."""

    def find_n_clusters(self, learned: Representation, points: Tensor, labels: Ints) -> int:
        """Return K for unit points (N, D) as published: that at which plain k-means of frozen
        features, with one initialization, has the highest labeled accuracy."""
        frozen = learned.embeddings if learned.frozen is None else learned.frozen()
        frozen = unit_points(frozen, device=points.device)
        return self.search(
            lambda n_clusters: plain_kmeans(frozen, n_clusters, self.training.seed).labels, labels
        )

    def search(self, find: Callable[[int], Tensor], labels: Ints) -> int:
        """Return the K, in the range of `inference`, for which the clusters `find(K)` (N,) have the
        highest labeled accuracy."""
        return search_n_clusters(
            lambda n_clusters: np.asarray(find(n_clusters).cpu()),
            labels,
            min_clusters=self.inference.min_clusters,
            max_clusters=self.inference.max_clusters,
        )

    def assign(self, points: Tensor, labels: Ints, n_clusters: int) -> Tensor:
        """Return K clusters (N,) of unit points (N, D) by semi-supervised k-means; labeled images
        keep their class."""
        return cluster_points(points, labels, n_clusters, self).labels


class Gcd(Model):
    """λ · L_supervised + (1 - λ) · InfoNCE, both through a projection head."""

    def __init__(self, encoder: Encoder, settings: GcdSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.head = Head(encoder.feature_dim, settings.head)

    def forward(self, inputs: Tensor) -> Tensors:
        """Return projections and features of views, unit rows."""
        features = self.encoder.tail(inputs)
        return {"projections": self.head(features), "features": unit(features.float())}

    def loss(self, batch: Batch) -> Tensors:
        views = batch.gather(batch.outputs["projections"])  # (2B, D)
        return gcd_losses(views, batch.labels, self.settings.loss)


def gcd_losses(views: Tensor, labels: Tensor, loss: ContrastSettings) -> Tensors:
    """Return λ · L_supervised + (1 - λ) · InfoNCE of unit rows (2B, D) with labels (2B,), and both
    terms."""
    unsupervised = contrastive_loss(views, loss.temperature)
    supervised = supervised_loss(views, labels, loss.supervised_temperature, with_positives=True)
    total = loss.supervised_weight * supervised + (1 - loss.supervised_weight) * unsupervised
    return {"loss": total, "loss_supervised": supervised, "loss_contrastive": unsupervised}


def cluster_by_kmeans(
    learned: Representation,
    labels: Ints,
    settings: GcdSettings,
    n_clusters: int | None,
) -> Discovery:
    """Cluster by `settings.assign`; empty clusters are dropped.

    K is the given one, else that of `settings.find_n_clusters` if the settings ask for it, else
    that of `inference.rule`.
    """
    points = unit_points(learned.embeddings)
    source = ""
    if n_clusters is None and settings.search_n_clusters:
        source = "the method's published search"
        learned = replace(learned, n_clusters=settings.find_n_clusters(learned, points, labels))
    n_clusters = resolve_n_clusters(n_clusters, learned, labels, settings.inference)
    estimate = None
    if n_clusters is None:
        tree = Tree(ward_linkage(points, device=points.device))
        estimate = settings.inference.estimate(tree, labels)
        n_clusters = estimate.n_clusters
    assigned = settings.assign(points, labels, n_clusters)
    used, clusters = np.unique(assigned.cpu().numpy(), return_inverse=True)
    return Discovery(
        clusters=clusters,
        n_clusters=len(used),
        embeddings=to_numpy(learned.embeddings),
        estimate=estimate,
        n_clusters_source=source,
    )


def cluster_points(
    points: Tensor, labels: Ints, n_clusters: int, settings: GcdSettings
) -> KMeansResult:
    """Return semi-supervised k-means of unit points (N, D); clusters 0 … C-1 are the classes in
    `labels` (N,), in order."""
    return semi_supervised_kmeans(
        points,
        # Labels without gaps, because a class without a labeled image has no initial center.
        torch.from_numpy(consecutive_labels(labels)).to(points.device),
        n_clusters,
        generator=torch.Generator().manual_seed(settings.training.seed),
        n_init=settings.n_init,
    )


def plain_kmeans(points: Tensor, n_clusters: int, seed: int) -> KMeansResult:
    """Return k-means of unit points (N, D) without labels, from one initialization."""
    no_labels = torch.full((len(points),), UNLABELED, device=points.device)
    return semi_supervised_kmeans(
        points,
        no_labels,
        n_clusters,
        generator=torch.Generator().manual_seed(seed),
        n_init=1,
        max_iterations=100,
    )


METHOD = Method(
    settings=GcdSettings,
    title="GCD",
    model=Gcd,
    cluster=cluster_by_kmeans,
)
