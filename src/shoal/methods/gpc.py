"""GPC (Zhao, Wen, Han, ICCV 2023): Gaussian mixture prototypes that are split and merged during
training.

Training: before each epoch all images are clustered by semi-supervised k-means; then clusters are
split and merged where Gaussians fit them better afterwards, and the next epoch starts with their
number. Besides GCD's losses, the prototype loss pulls each view toward the prototype (mean) of its
image's cluster; the tighter the cluster, the lower its temperature. Inference: GCD's semi-
supervised k-means; K, if not given, is the number of Gaussians.

Shapes: n training images, N images, B per batch, C dimensions of a feature, K clusters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import Ints
from shoal.clustering.categories import category_centers
from shoal.clustering.kmeans import semi_supervised_kmeans
from shoal.clustering.mixture import principal_columns, prior_of_classes, split_and_merge
from shoal.encoders.vision import Encoder
from shoal.methods.clusters import Representation
from shoal.methods.gcd import Gcd, GcdSettings, cluster_by_kmeans
from shoal.methods.method import Method
from shoal.settings import Count, NonNegative, NonNegativeInt, Positive
from shoal.training.model import Batch, Epoch, TaskShape, Tensors, consecutive_labels

KMEANS_STEPS = 20
"""Maximum number of k-means iterations before an epoch; centers move little from one epoch to the
next."""

SMOOTHING = 10
"""Added to the size of a cluster in the formula of its temperature, so that small clusters do not
get a high one."""


@dataclass(frozen=True, kw_only=True)
class GpcSettings(GcdSettings):
    """Settings of GPC; `recipes/gpc` holds the published values."""

    search_n_clusters: bool = True
    """Whether K is the number of Gaussians; else `inference.rule` estimates it. In `shoal
    discover`, the K of the frozen result takes precedence."""
    initial_novel: NonNegativeInt = 10
    """Initial number of clusters in addition to the known classes."""
    mixture_columns: Count = 64
    """Number of principal components in which the Gaussians are fitted."""
    concentration: Positive = 1.0
    """α: the larger, the more clusters."""
    prototype_weight: NonNegative = 1.0
    """Weight of the prototype loss."""
    prototype_temperature: Positive = 1.0
    """Mean temperature of the prototype loss."""
    prototype_warmup: NonNegativeInt = 1
    """Epochs without the prototype loss."""

    def find_n_clusters(self, learned: Representation, points: Tensor, labels: Ints) -> int:
        """Return the number of Gaussians after one more round of splits and merges on points
        (N, C), starting from that of the snapshot."""
        known = consecutive_labels(labels)
        n_known = int(known.max(initial=-1)) + 1
        initial = n_known + self.initial_novel
        if isinstance(learned.model, Gpc):
            initial = int(learned.model.n_clusters)
        initial = min(max(initial, n_known, 1), len(points))
        generator = torch.Generator().manual_seed(self.training.seed)
        return int(fit_mixture(points, known, initial, self, generator=generator).max()) + 1


class Gpc(Gcd):
    """GCD's losses and the prototype loss; only the number of clusters carries over to the next
    epoch."""

    n_clusters: Tensor
    clusters: Tensor
    """(n,) of the current epoch."""
    prototypes: Tensor
    """(K, C) of the clusters, unit rows."""
    temperatures: Tensor
    """(K,) of the clusters."""

    def __init__(self, encoder: Encoder, settings: GpcSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        n_clusters = shape.n_clusters or shape.n_known + settings.initial_novel
        n_clusters = min(max(n_clusters, shape.n_known, 1), shape.n_images)
        self.register_buffer("n_clusters", torch.tensor(n_clusters))

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Cluster the training images, estimate the number of clusters unless it is given, and
        compute the prototypes."""
        if epoch.number < self.settings.prototype_warmup:
            return {"n_prototypes": float(self.n_clusters)}
        points = epoch.embed()
        clusters = fit_mixture(
            points,
            epoch.labels.cpu().numpy(),
            int(self.n_clusters),
            self.settings,
            is_given=self.shape.n_clusters is not None,
            generator=epoch.generator,
        )
        n_clusters = int(clusters.max()) + 1
        self.n_clusters.fill_(n_clusters)
        self.clusters = torch.from_numpy(clusters).to(points.device)
        self.prototypes = category_centers(points, clusters, n_clusters).float()
        widths = relative_widths(points, self.clusters, self.prototypes)
        self.temperatures = self.settings.prototype_temperature * widths
        return {"n_prototypes": float(n_clusters)}

    def loss(self, batch: Batch) -> Tensors:
        losses = super().loss(batch)
        prototype = self.prototype_loss(batch)
        total = losses["loss"] + self.settings.prototype_weight * prototype
        return {**losses, "loss": total, "loss_prototype": prototype}

    def prototype_loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy of the cosines of views with all prototypes, each divided by its
        cluster's temperature."""
        features = batch.gather(batch.outputs["features"])  # (2B, C)
        if batch.epoch < self.settings.prototype_warmup:
            return features.sum() * 0
        logits = features.float() @ self.prototypes.T / self.temperatures  # (2B, K)
        return F.cross_entropy(logits, self.clusters[batch.gather(batch.images)])


def fit_mixture(
    points: Tensor,
    labels: Ints,
    n_clusters: int,
    settings: GpcSettings,
    *,
    generator: torch.Generator,
    is_given: bool = False,
) -> Ints:
    """Return clusters (N,) of unit points (N, C), with those of the classes in `labels` (N,) first.

    Unless K is given, the clusters of k-means are split and merged once.
    """
    found = semi_supervised_kmeans(
        points,
        torch.from_numpy(labels).to(points.device),
        n_clusters,
        generator=generator,
        n_init=1,
        max_iterations=KMEANS_STEPS,
    )
    clusters = found.labels.cpu().numpy()
    if is_given:
        return clusters
    columns = principal_columns(points, settings.mixture_columns)
    prior = prior_of_classes(columns, labels)
    return split_and_merge(
        columns, clusters, labels, prior, concentration=settings.concentration, generator=generator
    )


def relative_widths(points: Tensor, clusters: Tensor, prototypes: Tensor) -> Tensor:
    """Return the width (K,) of each cluster relative to the average width, clipped to its
    middle 80 %. A width is the mean distance to the prototype over log(size + 10).

    A cluster of one image has no width and counts as the widest.
    """
    n_clusters = len(prototypes)
    # On the CPU, because index_add_ on a GPU adds in no fixed order.
    clusters = clusters.cpu()
    rows = prototypes[clusters.to(prototypes.device)]
    distances = torch.linalg.vector_norm(points - rows, dim=1).cpu().double()  # (N,)
    sizes = torch.bincount(clusters, minlength=n_clusters)
    sums = torch.zeros(n_clusters, dtype=torch.float64).index_add_(0, clusters, distances)
    widths = sums / sizes.clamp_min(1) / (sizes + SMOOTHING).log()
    widths[sizes < 2] = widths.max()
    low, high = torch.quantile(widths, torch.tensor([0.1, 0.9], dtype=torch.float64))
    widths = widths.clamp(low, high).clamp_min(1e-6)
    return (widths / widths.mean()).float().to(points.device)


METHOD = Method(
    settings=GpcSettings,
    title="GPC",
    model=Gpc,
    cluster=cluster_by_kmeans,
    uses_n_clusters=True,
)
