"""GPC (Zhao, Wen, Han, ICCV 2023): images are drawn to prototypes, as many as a mixture of
Gaussians finds on the way.

Training: before each epoch all images are clustered by semi-supervised k-means; then clusters are
split and joined where that explains them better as Gaussians, and their number is that of the next
epoch. Beside GCD's losses each view is drawn to the prototype of its image's cluster, the mean, the
closer the tighter the cluster is. Inference: GCD's semi-supervised k-means; K, where it is not
given, is the number found.

n training images, N images, B of a batch, C entries of a feature, K clusters.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import Ints
from shoal.clustering.categories import category_centers
from shoal.clustering.kmeans import semi_supervised_kmeans
from shoal.clustering.mixture import principal_columns, prior_of_classes, split_and_merge
from shoal.encoders.vision import Encoder
from shoal.methods.clusters import Representation
from shoal.methods.gcd import Gcd, GcdSettings, clustering_by_kmeans
from shoal.methods.method import Method
from shoal.settings import check_numbers
from shoal.training.model import Batch, Epoch, TaskShape, numbered_labels

KMEANS_STEPS = 20
"""Most iterations of k-means before an epoch; centers move little from one epoch to the next."""

COUNTED_BY = "Gaussians split and joined during training"
"""How K is found where that is searched for."""

SMOOTH = 10
"""Added to the size of a cluster in its temperature, so that small clusters do not get a large
one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpcSettings(GcdSettings):
    """Everything that can be set; `recipes/gpc` holds the published values."""

    search_n_clusters: bool = True
    """Take the number of Gaussians for K; else the one of `inference.rule`. Where `shoal discover`
    takes K from its first answer, that stays."""
    first_novel: int = 10
    """Novel clusters that training begins with, beside the known classes."""
    mixture_columns: int = 64
    """Directions of most variance in which clusters are Gaussians."""
    concentration: float = 1.0
    """α: the larger, the more clusters."""
    prototype_weight: float = 1.0
    """Of the prototype loss beside GCD's."""
    prototype_temperature: float = 1.0
    """Mean of what cosines with the prototypes are divided by."""
    prototype_warmup: int = 1
    """Epochs before the first that has prototypes."""

    def __post_init__(self) -> None:
        GcdSettings.__post_init__(self)  # a dataclass with slots has no super() here
        check_numbers(
            self,
            counts=["mixture_columns"],
            not_negative=["first_novel", "prototype_weight", "prototype_warmup"],
            positive=["concentration", "prototype_temperature"],
        )


class Gpc(Gcd[GpcSettings]):
    """GCD's losses and the prototype loss. Of the clusters only their number goes on from epoch to
    epoch."""

    n_clusters: Tensor

    def __init__(self, encoder: Encoder, settings: GpcSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        first = shape.n_clusters
        if first is None:
            first = shape.n_known + settings.first_novel
        self.register_buffer(
            "n_clusters", torch.tensor(min(max(first, shape.n_known, 1), shape.n_images))
        )
        self.clusters = torch.zeros(shape.n_images, dtype=torch.int64)  # (n,)
        self.prototypes = torch.empty(0, encoder.feature_dim)  # (K, C) unit rows
        self.temperatures = torch.empty(0)  # (K,)

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Cluster the training images, change the number of clusters unless it is given, and make
        the prototypes."""
        if epoch.number < self.settings.prototype_warmup:
            return {"n_prototypes": float(self.n_clusters)}
        points = epoch.embed()
        labels = epoch.labels.cpu().numpy()
        clusters = fit_mixture(
            points,
            labels,
            int(self.n_clusters),
            self.settings,
            is_given=self.shape.n_clusters is not None,
            generator=epoch.generator,
        )
        self.n_clusters.fill_(int(clusters.max()) + 1)
        self.clusters = torch.from_numpy(clusters).to(points.device)
        self.prototypes = category_centers(points, clusters, int(clusters.max()) + 1).float()
        self.temperatures = self.settings.prototype_temperature * spread_of(
            points, self.clusters, self.prototypes
        )
        return {"n_prototypes": float(self.n_clusters)}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The whole loss and its parts."""
        losses = super().loss(batch)
        drawn = self.prototype_loss(batch)
        total = losses["loss"] + self.settings.prototype_weight * drawn
        return {**losses, "loss": total, "loss_prototype": drawn}

    def prototype_loss(self, batch: Batch) -> Tensor:
        """Cross-entropy of the cosines of views with all prototypes, each divided by its cluster's
        temperature."""
        features = batch.gather(batch.outputs["features"])  # (2B, C)
        if len(self.prototypes) == 0:
            return features.sum() * 0
        with torch.autocast(features.device.type, enabled=False):
            logits = features.float() @ self.prototypes.T / self.temperatures  # (2B, K)
            return F.cross_entropy(logits, self.clusters[batch.gather(batch.images)])


def fit_mixture(
    points: Tensor,
    labels: Ints,
    n_clusters: int,
    settings: GpcSettings,
    *,
    is_given: bool,
    generator: torch.Generator,
) -> Ints:
    """(N,) the clusters of unit points (N, C); first those of the classes in `labels` (N,), 0 …
    without gaps.

    Unless K is given, those of k-means are split and joined once.
    """
    given = torch.from_numpy(labels).to(points.device)
    found = semi_supervised_kmeans(
        points, given, n_clusters, generator=generator, n_init=1, max_iterations=KMEANS_STEPS
    )
    clusters: Ints = found.labels.cpu().numpy()
    if is_given:
        return clusters
    columns = principal_columns(points, settings.mixture_columns)
    prior = prior_of_classes(columns, labels)
    return split_and_merge(
        columns, clusters, labels, prior, concentration=settings.concentration, generator=generator
    )


def spread_of(points: Tensor, clusters: Tensor, prototypes: Tensor) -> Tensor:
    """(K,) how wide each cluster is: mean distance to the prototype over log(size + 10), cut to the
    middle 80 %.

    A cluster of one image has no width of its own and counts as the widest. Their mean is 1.
    """
    n_clusters = len(prototypes)
    distances = (
        torch.linalg.vector_norm(points - prototypes[clusters], dim=1).cpu().double()
    )  # (N,)
    sizes = torch.bincount(clusters.cpu(), minlength=n_clusters)
    # On the CPU: a GPU adds into rows in no fixed order.
    sums = torch.zeros(n_clusters, dtype=torch.float64).index_add_(0, clusters.cpu(), distances)
    widths = sums / sizes.clamp_min(1) / (sizes + SMOOTH).log()
    widths[sizes < 2] = widths.max()
    low, high = torch.quantile(widths, torch.tensor([0.1, 0.9], dtype=torch.float64))
    widths = widths.clamp(low, high).clamp_min(1e-6)
    return (widths / widths.mean()).float().to(points.device)


def count_gaussians(
    learned: Representation, points: Tensor, labels: Ints, settings: GpcSettings
) -> int:
    """K after one more round on points (N, C), from the number of the snapshot, within the range in
    `inference`."""
    given = numbered_labels(labels)
    n_known = int(given.max(initial=-1)) + 1
    begun = n_known + settings.first_novel
    if isinstance(learned.model, Gpc):
        begun = int(learned.model.n_clusters)
    begun = int(np.clip(begun, max(n_known, 1), len(points)))
    generator = torch.Generator().manual_seed(settings.training.seed)
    clusters = fit_mixture(points, given, begun, settings, is_given=False, generator=generator)
    return settings.keep_to_range(int(clusters.max()) + 1, labels)


METHOD = Method(
    settings=GpcSettings,
    title="GPC",
    model=Gpc,
    cluster=clustering_by_kmeans(count_gaussians, COUNTED_BY),
    uses_n_clusters=True,
)
