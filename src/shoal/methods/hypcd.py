"""HypCD (Liu, He, Han, CVPR 2025) applied to SimGCD: its losses and classifier in hyperbolic space.

Training: features and projections are clipped to a maximum norm and mapped into the Poincaré ball.
The contrastive losses compare projections by angle and, with a weight that grows over the epochs,
by hyperbolic distance. A hyperbolic linear layer is the classifier, trained by SimGCD's
self-distillation. Inference: the class with the largest output.

Shapes: B images per batch, b of them in this process, C dimensions of a feature, D of a
projection, K clusters, N rows of X columns.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.encoders.vision import Encoder, unit
from shoal.methods.classifier import CosineClassifier, cluster_by_classifier
from shoal.methods.method import Method
from shoal.methods.simgcd import SimGcd, SimGcdSettings
from shoal.settings import Fraction, Positive
from shoal.training.losses import (
    contrastive_loss,
    info_nce,
    supervised_contrast,
    supervised_loss,
)
from shoal.training.model import Batch, TaskShape, Tensors
from shoal.training.train_settings import linear_schedule

# Points are at least this share of the ball's radius away from its boundary
BOUNDARY_MARGIN = 1e-3


@dataclass(frozen=True, kw_only=True)
class HypCdSettings(SimGcdSettings):
    """Settings of HypCD; `recipes/hypcd` holds the published values for fine-grained (`dino`) and
    generic images.

    The temperatures of `loss` are those of the distance-based losses.
    """

    curvature: Positive = 0.05
    """c: the ball has radius 1/√c."""
    clip: Positive = 2.3
    """r: maximum norm of a feature or projection before it is mapped into the ball."""
    distance_weight: Fraction = 1.0
    """α_d in the last epoch, increasing linearly from 0: weight of the distance-based losses; the
    angle-based ones have 1 - α_d."""
    angle_temperature: Positive = 0.3
    """Factor of both temperatures in the angle-based losses."""


class HypCd(SimGcd):
    """SimGCD's loss with hyperbolic contrastive losses and a hyperbolic classifier."""

    def __init__(self, encoder: Encoder, settings: HypCdSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        n_clusters, dim = self.classifier.weight.shape
        self.classifier = HyperbolicClassifier(dim, n_clusters, settings.curvature)

    def forward(self, inputs: Tensor) -> Tensors:
        """Return clipped projections (b, D), and the classifier's scores (b, K), which are the
        coordinates of a point in a ball."""
        features = self.encoder.tail(inputs)
        return {
            "projections": clip_rows(self.head.layers(features).float(), self.settings.clip),
            "scores": self.classifier(clip_rows(features.float(), self.settings.clip)),
        }

    def contrastive_losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return InfoNCE and the supervised contrastive loss, each as α_d · (distance-based loss) +
        (1 - α_d) · (angle-based loss)."""
        settings = self.settings
        weight = linear_schedule(
            batch.epoch, 0.0, settings.distance_weight, settings.training.epochs
        )
        projections = batch.gather(batch.outputs["projections"])  # (2B, D)
        views = unit(projections)  # the map into the ball preserves angles at its center
        closeness = -distances(exp_map(projections, settings.curvature), settings.curvature)
        angle = settings.angle_temperature
        temperature = settings.loss.temperature
        contrastive = torch.lerp(
            contrastive_loss(views, angle * temperature), info_nce(closeness / temperature), weight
        )
        temperature = settings.loss.supervised_temperature
        labels = batch.labels
        supervised = torch.lerp(
            supervised_loss(views, labels, angle * temperature, with_positives=True),
            supervised_contrast(closeness / temperature, labels, with_positives=True),
            weight,
        )
        return contrastive, supervised

    def represent(self, inputs: Tensor) -> Tensor:
        """Return clipped features (b, C) and one more column that brings each row to norm r, so
        that the norm of the features survives normalization."""
        clip = self.settings.clip
        features = self.encoder.tail(inputs).float()
        norms = torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp_max(clip)  # (b, 1)
        missing = ((clip - norms) * (clip + norms)).sqrt()
        return torch.cat([clip_rows(features, clip), missing], dim=1)

    def predict(self, embeddings: Tensor) -> Tensor:
        return self.classifier(self.settings.clip * embeddings[:, :-1]).argmax(dim=1)  # of (N, K)


class HyperbolicClassifier(CosineClassifier):
    """HypFFN: a hyperbolic linear layer, whose outputs are the coordinates of a point in a ball of
    K dimensions."""

    def __init__(self, dim: int, n_clusters: int, curvature: float) -> None:
        super().__init__(dim, n_clusters)
        self.curvature = curvature
        self.bias = nn.Parameter(torch.zeros(n_clusters))

    def forward(self, rows: Tensor) -> Tensor:
        """Return outputs (N, K) of clipped features (N, C), in float32 even under autocast.

        Möbius matrix-vector multiplication of a mapped point equals mapping the ordinary product:
        M ⊗ exp₀(x) = exp₀(Mx).
        """
        curvature = self.curvature
        with torch.autocast(rows.device.type, enabled=False):
            products = exp_map(F.linear(rows.float(), self.weight), curvature)
            biases = exp_map(self.bias[None], curvature)
            return project(mobius_add(products, biases, curvature), curvature)

    def start_at_images(
        self, rows: Tensor, labels: Tensor, n_known: int, generator: torch.Generator
    ) -> None:
        """Set the weights to embeddings (n, C + 1) without their last column."""
        super().start_at_images(rows[:, :-1], labels, n_known, generator)


def clip_rows(rows: Tensor, limit: float) -> Tensor:
    """Scale rows (N, X) whose norm exceeds a limit to this norm."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # (N, 1)
    return rows * (limit / norms.clamp_min(limit))


def project(points: Tensor, curvature: float) -> Tensor:
    """Project points (N, X) near or beyond the boundary back into the ball."""
    return clip_rows(points, (1 - BOUNDARY_MARGIN) * curvature**-0.5)


def exp_map(rows: Tensor, curvature: float) -> Tensor:
    """Apply the exponential map at the origin to tangent vectors (N, X)."""
    # The limit of tanh(x) / x at 0 is 1.
    scaled = curvature**0.5 * torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-6)
    return project(rows * (scaled.tanh() / scaled), curvature)


def mobius_add(first: Tensor, second: Tensor, curvature: float) -> Tensor:
    """Return the Möbius sums (N, X) of points (N, X) and (N, X) or (1, X)."""
    c = curvature
    product = (first * second).sum(dim=1, keepdim=True)
    first_square = first.square().sum(dim=1, keepdim=True)
    second_square = second.square().sum(dim=1, keepdim=True)
    numerator = (1 + 2 * c * product + c * second_square) * first + (1 - c * first_square) * second
    return numerator / (1 + 2 * c * product + c**2 * first_square * second_square)


def distances(points: Tensor, curvature: float) -> Tensor:
    """Return hyperbolic distances (N, N) between points (N, X) of the ball.

    Uses the arsinh formula instead of a Möbius sum, and differences instead of inner products, so
    that the distance between nearby points is accurate and that between equal ones has gradient 0.
    """
    euclidean = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    depths = 1 - curvature * points.square().sum(dim=1)  # (N,), 0 at the boundary
    scale = math.sqrt(curvature)
    sines = scale * euclidean / (depths[:, None] * depths).sqrt()  # (N, N), hyperbolic
    return 2 / scale * sines.asinh()


METHOD = Method(
    settings=HypCdSettings,
    title="HypCD",
    model=HypCd,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
