"""RankStats+ (Han et al., ICLR 2020; Vaze et al., CVPR 2022, for unlabeled images that may be of
known classes).

Training: two unlabeled images form a positive pair if the same few entries of their features are
the largest (rank statistics), and a classifier over all classes is trained on these pairs. Its
outputs for known classes are also trained on the given labels, and a consistency loss, whose weight
increases from epoch to epoch, makes predictions for two views similar. Inference: the largest
output.

Shapes: B images per batch, C dimensions of a feature, K clusters.
"""

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED
from shoal.methods.classifier import (
    ClassifierModel,
    ClassifierSettings,
    cluster_by_classifier,
    labeled_cross_entropy,
)
from shoal.methods.method import Method
from shoal.settings import Count, Fraction, NonNegative, Temperature
from shoal.training.model import Batch, Tensors
from shoal.training.train_settings import ramp_up

# Distance of similarities from 0 and 1, for finite logarithms
MARGIN = 1e-6


@dataclass(frozen=True, kw_only=True)
class RankStatsSettings(ClassifierSettings):
    """Settings of RankStats+; `recipes/rankstats` holds the published values."""

    n_ranked: Count = 5
    """Number of largest entries that are the same in the features of a positive pair, at most all
    of them."""
    temperature: Temperature = 0.1
    """τ: temperature of the predictions."""
    consistency_weight: NonNegative = 50.0
    """c: weight of the consistency loss after its ramp."""
    consistency_ramp: Fraction = 0.75
    """The share of all epochs in which the weight increases; published: 150 of 200."""

    def consistency_at(self, epoch: int) -> float:
        """Return the weight of the consistency loss in an epoch, counted from 0: c · exp(-5 (1 - t
        / T)²)."""
        share = ramp_up(epoch, self.consistency_ramp * self.training.epochs)
        return self.consistency_weight * math.exp(-5 * (1 - share) ** 2)


class RankStats(ClassifierModel):
    """L_CE of known classes + L_BCE of pairs by rank statistics + w · L_MSE of two views."""

    def loss(self, batch: Batch) -> Tensors:
        settings = self.settings
        n_known = self.shape.n_known
        logits = batch.gather(batch.outputs["cosines"]) / settings.temperature  # (2B, K)
        # Without known classes one output avoids the NaN of an empty softmax.
        known = logits[:, : n_known or 1]
        classification = labeled_cross_entropy(known, batch.labels)
        probabilities = logits.softmax(dim=1)
        pairwise = self.pair_loss(batch, probabilities)
        consistency = consistency_loss(known.softmax(dim=1)) + consistency_loss(probabilities)
        weight = settings.consistency_at(batch.epoch)
        return {
            "loss": classification + pairwise + weight * consistency,
            "loss_classification": classification,
            "loss_pairwise": pairwise,
            "loss_consistency": consistency,
        }

    def pair_loss(self, batch: Batch, probabilities: Tensor) -> Tensor:
        """Return the mean binary cross-entropy over pairs of unlabeled images, of the similarity of
        their probabilities (2B, K) with whether their rank statistics are the same."""
        features = batch.outputs["features"].detach()
        n_ranked = min(self.settings.n_ranked, features.shape[1])
        ranked = features.abs().topk(n_ranked, dim=1).indices.sort(dim=1).values
        ranked = batch.gather(ranked)[: batch.n_images]  # (B, ranks) of view 1
        is_unlabeled = batch.labels[: batch.n_images] == UNLABELED
        weights = (is_unlabeled[:, None] & is_unlabeled).float()  # (B, B)
        first, second = probabilities.chunk(2)
        similarity = (first @ second.T).clamp(MARGIN, 1 - MARGIN)  # (B, B)
        is_positive = (ranked[:, None] == ranked[None, :]).all(dim=2).float()  # (B, B)
        losses = F.binary_cross_entropy(similarity, is_positive, reduction="none")
        return (losses * weights).sum() / weights.sum().clamp_min(1)


def consistency_loss(probabilities: Tensor) -> Tensor:
    """Return the mean squared difference of the probabilities (2B, X) of two views."""
    first, second = probabilities.chunk(2)
    return F.mse_loss(first, second)


METHOD = Method(
    settings=RankStatsSettings,
    title="RankStats+",
    model=RankStats,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
