"""GPC (Zhao, Wen, Han, ICCV 2023): Gaussian mixture prototypes that are split and merged during
training.

Training: before each epoch all images are clustered by semi-supervised k-means; then clusters are
split and merged where Gaussians fit them better afterwards, and the next epoch starts with their
number. Besides GCD's losses, the prototype loss pulls each view toward the prototype (mean) of its
image's cluster; the tighter the cluster, the lower its temperature. Inference: GCD's semi-
supervised k-means; K, if not given, is the number of Gaussians.

Each cluster is a Gaussian with unknown mean and covariance and a normal-inverse-Wishart prior, so
the evidence of its points has a closed form. A split in two, or a merge, is accepted with the
probability that the ratio of the evidences after and before gives (the Hastings ratio). The prior
comes from the labeled classes: clusters are expected to be as wide as these, and as far apart.

Shapes: n training images, or points of a cluster, N images, B per batch, D dimensions of a feature,
K clusters, C known classes.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import gammaln, multigammaln
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.categories import category_centers
from shoal.clustering.kmeans import semi_supervised_kmeans
from shoal.encoders.vision import Encoder
from shoal.methods.gcd import Gcd, GcdSettings, cluster_by_kmeans
from shoal.methods.method import Method, Representation
from shoal.settings import Count, NonNegative, NonNegativeInt, Positive
from shoal.training.model import Batch, Epoch, TaskShape, Tensors, consecutive_labels

# Fewest points of each part of a split
SMALLEST_PART = 6

# The prior without labeled classes: the weight of the mean in points, and the variance of each
# column
VAGUE_MEAN = 1e-4
VAGUE_VARIANCE = 0.005

# Maximum number of k-means iterations before an epoch; centers move little from one epoch to the
# next
KMEANS_STEPS = 20

# Added to the size of a cluster in the formula of its temperature, so that small clusters do not
# get a high one
SMOOTHING = 10


@dataclass(frozen=True)
class Prior:
    """A normal-inverse-Wishart prior of a cluster."""

    mean: Floats  # (D,) expected mean
    # κ: the weight of the expected mean, in points
    mean_weight: float
    scatter: Floats  # (D, D) Ψ: expected scatter of the points around their mean
    # ν: the degrees of freedom, D plus the weight of the scatter in points
    freedom: float


def prior_of_classes(points: Floats, labels: Ints) -> Prior:
    """Return the prior by the labeled classes among points (N, D), `labels` (N,) with -1 for
    unlabeled.

    Their pooled covariance has the weight of the points it comes from.
    """
    n_columns = points.shape[1]
    mean = points.mean(axis=0)
    by_class = np.argsort(labels, kind="stable")
    labeled = by_class[labels[by_class] != UNLABELED]
    classes, class_of = np.unique(labels[labeled], return_inverse=True)
    weight = float(len(labeled) - len(classes))
    if len(classes) < 2 or not weight:
        return Prior(mean, VAGUE_MEAN, VAGUE_VARIANCE * np.eye(n_columns), n_columns + 2.0)
    centers = np.stack([points[labels == label].mean(axis=0) for label in classes])  # (C, D)
    apart = points[labeled] - centers[class_of]
    within = apart.T @ apart / weight  # (D, D)
    # A little variance in every direction: few labels do not span all of them.
    within += 1e-3 * np.trace(within) / n_columns * np.eye(n_columns)
    between = ((centers - mean) ** 2).mean(axis=0).sum()
    mean_weight = float(np.clip(np.trace(within) / max(between, 1e-12), VAGUE_MEAN, 1.0))
    return Prior(mean, mean_weight, weight * within, n_columns + 1.0 + weight)


def log_evidence(points: Floats, prior: Prior) -> float:
    """Return the log-density of points (n, D) as one cluster, its mean and covariance integrated
    out."""
    n, n_columns = points.shape
    weight = prior.mean_weight + n
    freedom = prior.freedom + n
    center = points.mean(axis=0)
    apart = points - center
    off = center - prior.mean
    scatter = prior.scatter + apart.T @ apart + prior.mean_weight * n / weight * np.outer(off, off)
    before = float(np.linalg.slogdet(prior.scatter)[1])
    after = float(np.linalg.slogdet(scatter)[1])
    return float(
        -n * n_columns / 2 * math.log(math.pi)
        + multigammaln(freedom / 2, n_columns)
        - multigammaln(prior.freedom / 2, n_columns)
        + prior.freedom / 2 * before
        - freedom / 2 * after
        + n_columns / 2 * math.log(prior.mean_weight / weight)
    )


def split_and_merge(
    points: Floats,
    clusters: Ints,
    labels: Ints,
    prior: Prior,
    *,
    concentration: float,
    generator: torch.Generator,
) -> Ints:
    """Propose a split of each cluster, then a merge of each one that was not split with the nearest
    other; return the clusters (N,).

    `labels` (N,) are 0 … C-1, the clusters of the known classes, and -1 for unlabeled. A known
    class may lose unlabeled points but no labeled one, and is never merged. Novel clusters are
    renumbered from C up. Equal states of the generator give equal results.
    """

    def accepts(parts: list[Ints], sign: int) -> bool:
        """Return True with the probability min(1, ratio) by the Hastings ratio of a split into
        these two parts, or of their merge if `sign` is -1."""
        whole, first, second = (
            float(gammaln(len(rows))) + log_evidence(points[rows], prior)
            for rows in (np.concatenate(parts), *parts)
        )
        ratio = math.log(concentration) + first + second - whole
        return float(torch.rand(1, dtype=torch.float64, generator=generator).log()) < sign * ratio

    n_known = int(labels.max(initial=-1)) + 1
    novel: list[Ints] = []
    unsplit: list[Ints] = []
    for number in range(int(clusters.max(initial=-1)) + 1):
        rows = np.flatnonzero(clusters == number)
        parts = _halves(points, rows, labels, generator)
        if min(map(len, parts)) < SMALLEST_PART or not accepts(parts, 1):
            parts = [rows]
        if number < n_known:
            novel += parts[1:]  # the first part stays with the class
        elif len(parts) == 2:
            novel += parts
        elif len(rows):
            unsplit.append(rows)
    while unsplit:
        rows = unsplit.pop(0)
        center = points[rows].mean(axis=0)
        apart = [((points[other].mean(axis=0) - center) ** 2).sum() for other in unsplit]
        if apart and accepts([rows, unsplit[int(np.argmin(apart))]], -1):
            rows = np.concatenate([rows, unsplit.pop(int(np.argmin(apart)))])
        novel.append(rows)
    renumbered = clusters.copy()
    for number, rows in enumerate(novel):
        renumbered[rows] = n_known + number
    return renumbered


def _halves(points: Floats, rows: Ints, labels: Ints, generator: torch.Generator) -> list[Ints]:
    """Return the rows (n,) of a cluster in two parts, labeled ones in the first; no second part if
    a split is not possible."""
    known = np.where(labels[rows] == UNLABELED, UNLABELED, 0)
    members = points[rows]
    if len(rows) < 2 * SMALLEST_PART or not known.any() or not np.ptp(members, axis=0).any():
        return [rows, rows[:0]]
    halves = semi_supervised_kmeans(
        torch.from_numpy(members), torch.from_numpy(known), 2, generator=generator, n_init=1
    ).labels.numpy()  # (n,)
    return [rows[halves == 0], rows[halves == 1]]


def principal_columns(points: Tensor, n_columns: int) -> Floats:
    """Return points (N, D) in their first `n_columns` principal components, float64."""
    rows = points.double()
    centered = rows - rows.mean(dim=0)
    directions = torch.linalg.eigh(centered.T @ centered).eigenvectors  # (D, D) ascending
    return (centered @ directions[:, -n_columns:]).cpu().numpy()


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
    clusters: Tensor  # (n,) of the current epoch
    prototypes: Tensor  # (K, C) of the clusters, unit rows
    temperatures: Tensor  # (K,) of the clusters

    def __init__(self, encoder: Encoder, settings: GpcSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        n_clusters = shape.n_clusters or shape.n_known + settings.initial_novel
        n_clusters = min(max(n_clusters, shape.n_known, 1), shape.n_images)
        self.register_buffer("n_clusters", torch.tensor(n_clusters))

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
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
        self.temperatures = self.settings.prototype_temperature * relative_widths(
            points, self.clusters, self.prototypes
        )
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
