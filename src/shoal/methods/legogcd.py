"""LegoGCD (Cao et al., CVPR 2024): SimGCD that does not forget known classes.

Training: SimGCD's losses and two more. Local entropy regularization (LER) lowers the entropy of
unlabeled views that are confidently predicted as a known class, with a larger margin for classes
that are rarely predicted. The dual-views Kullback-Leibler divergence (DKL) makes the predictions
for two views of an image alike. Inference: the class with the largest output.

Shapes: B images per batch, K clusters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED
from shoal.encoders.vision import Encoder
from shoal.methods.classifier import cluster_by_classifier
from shoal.methods.method import Method
from shoal.methods.simgcd import SimGcd, SimGcdSettings
from shoal.settings import Fraction, NonNegative, Temperature
from shoal.training.model import Batch, TaskShape, Tensors


@dataclass(frozen=True, kw_only=True)
class LegoGcdSettings(SimGcdSettings):
    """Settings of LegoGCD; the recipes `dino`, `cub` and `cifar100` hold the published values."""

    threshold: Fraction = 0.8
    """δ: smallest probability of a known class for which LER includes an unlabeled view."""
    local_weight: NonNegative = 2.0
    """Weight of LER."""
    local_temperature: Temperature = 0.05
    """Temperature of the predictions whose entropy LER lowers."""
    margin_weight: NonNegative = 0.4
    """Weight of the logarithms of class frequencies that LER adds to the logits."""
    frequency_momentum: Fraction = 0.999
    """Momentum of the moving average of class frequencies."""
    divergence_weight: NonNegative = 1.0
    """Weight of DKL among the unsupervised losses."""


class LegoGcd(SimGcd):
    """SimGCD's loss + (1 - λ) · weighted DKL + weighted LER."""

    frequencies: Tensor  # (K,) moving average of the mean prediction

    def __init__(self, encoder: Encoder, settings: LegoGcdSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        n_clusters = len(self.classifier.weight)
        self.register_buffer("frequencies", torch.full((n_clusters,), 1 / n_clusters))

    def loss(self, batch: Batch) -> Tensors:
        settings = self.settings
        losses = super().loss(batch)
        cosines = batch.gather(batch.outputs["scores"])  # (2B, K)
        local = self.local_entropy(cosines, batch.labels)
        divergence = view_divergence(cosines / settings.student_temperature)
        weight = (1 - settings.loss.supervised_weight) * settings.divergence_weight
        total = losses["loss"] + weight * divergence + settings.local_weight * local
        return losses | {
            "loss": total,
            "loss_local_entropy": local,
            "loss_divergence": divergence,
        }

    def local_entropy(self, cosines: Tensor, labels: Tensor) -> Tensor:
        """Return LER of cosines (2B, K) with labels (2B,): the mean over all views, counting 0 for
        views that are labeled or not confidently predicted as a known class."""
        settings = self.settings
        probabilities = (cosines.detach() / settings.student_temperature).softmax(dim=1)
        confidence, predicted = probabilities.max(dim=1)
        is_confident = (labels == UNLABELED) & (confidence >= settings.threshold)
        is_included = is_confident & (predicted < self.shape.n_known)
        logits = cosines / settings.local_temperature
        margins = settings.margin_weight * self.frequencies.log()
        entropies = -(logits.softmax(dim=1) * (logits + margins).log_softmax(dim=1)).sum(dim=1)
        return (entropies * is_included).mean()

    @torch.no_grad()
    def after_step(self, batch: Batch) -> None:
        mean = batch.gather(batch.outputs["scores"].detach()).softmax(dim=1).mean(dim=0)
        self.frequencies.lerp_(mean, 1 - self.settings.frequency_momentum)


def view_divergence(logits: Tensor) -> Tensor:
    """Return DKL: the mean Kullback-Leibler divergence KL(first ‖ second) between the predictions
    for the first and second views, given logits (2B, K)."""
    first, second = logits.log_softmax(dim=1).chunk(2)  # (B, K) each
    return F.kl_div(second, first, log_target=True, reduction="batchmean")


METHOD = Method(
    settings=LegoGcdSettings,
    title="LegoGCD",
    model=LegoGcd,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
