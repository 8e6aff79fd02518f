"""RankStats+ (Han et al., ICLR 2020; as Vaze et al., CVPR 2022, have it, unlabeled images may be of
known classes too).

Training: two unlabeled images are of one class where the same few entries of their features are the
largest; a classifier over all classes is trained on whether they are. Its first outputs, those of
the known classes, learn from the given labels too, and two views of an image are to be classified
alike, more so from epoch to epoch. Inference: the largest output.

B images of a batch, b this process's share of it, C entries of a feature, K clusters, L of them
known.
"""

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED
from shoal.errors import UsageError
from shoal.methods.classifier import (
    ClassifierModel,
    ClassifierSettings,
    cluster_by_classifier,
    labeled_cross_entropy,
)
from shoal.methods.method import Method
from shoal.settings import check_numbers
from shoal.training.model import Batch

LEAST = 1e-6
"""Agreement of two predictions is kept this far from 0 and 1, so that logarithms are finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStatsSettings(ClassifierSettings):
    """Everything that can be set; `recipes/rankstats` holds the published values."""

    n_ranked: int = 5
    """How many of the largest entries of two features must be the same for a pair of one class."""
    temperature: float = 0.1
    """τ: what the cosines are divided by."""
    consistency_weight: float = 50.0
    """c: how much two views that are classified alike are rewarded, once that has risen."""
    consistency_ramp: float = 0.75
    """The share of all epochs in which it rises, from next to nothing, so that a shorter training
    sees its end; published: 150 of 200."""

    def __post_init__(self) -> None:
        check_numbers(
            self,
            counts=["n_ranked"],
            temperatures=["temperature"],
            not_negative=["consistency_weight"],
            shares=["consistency_ramp"],
        )

    def consistency_at(self, epoch: int) -> float:
        """The weight of consistency in an epoch, counted from 0: c · exp(-5 (1 - t / T)²)."""
        share = self.training.risen(epoch, self.consistency_ramp)
        return self.consistency_weight * math.exp(-5 * (1 - share) ** 2)


class RankStats(ClassifierModel[RankStatsSettings]):
    """Cross-entropy of the known outputs, pairs by ranks over all outputs, and consistency of two
    views."""

    def check(self) -> None:
        """Refuse more ranks than a feature has entries."""
        if self.settings.n_ranked > self.encoder.feature_dim:
            raise UsageError(
                f"n_ranked: found {self.settings.n_ranked} with features of "
                f"{self.encoder.feature_dim} entries, "
                "expected at most as many"
            )

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The whole loss and its parts."""
        settings = self.settings
        n_known = self.shape.n_known
        logits = batch.gather(batch.outputs["cosines"]) / settings.temperature  # (2B, K)
        # Without known classes there is nothing to classify; an empty softmax would be no number.
        known = logits[:, : n_known or 1]
        classified = labeled_cross_entropy(known, batch.labels)
        everyone = logits.softmax(dim=1)
        paired = self.pair_loss(batch, everyone)
        consistent = consistency(known.softmax(dim=1)) + consistency(everyone)
        return {
            "loss": classified + paired + settings.consistency_at(batch.epoch) * consistent,
            "loss_classified": classified,
            "loss_paired": paired,
            "loss_consistent": consistent,
        }

    def pair_loss(self, batch: Batch, probabilities: Tensor) -> Tensor:
        """Mean binary cross-entropy over pairs of unlabeled images: do predictions (2B, K) agree
        where ranks do?"""
        own = batch.outputs["features"].detach()
        ranked = batch.gather(largest_entries(own, self.settings.n_ranked))[
            : batch.n_images
        ]  # (B, ranks) of view 1
        is_unlabeled = batch.labels[: batch.n_images] == UNLABELED
        weights = (is_unlabeled[:, None] & is_unlabeled[None, :]).float()  # (B, B)
        first, second = probabilities.chunk(2)
        agreement = (first @ second.T).clamp(LEAST, 1 - LEAST)  # (B, B)
        alike = (ranked[:, None] == ranked[None, :]).all(dim=2).float()  # (B, B)
        losses = F.binary_cross_entropy(agreement, alike, reduction="none")
        return (losses * weights).sum() / weights.sum().clamp_min(1)


def largest_entries(features: Tensor, n_ranked: int) -> Tensor:
    """(N, ranks) which entries of features (N, C) are the largest, of either sign, in the order of
    their columns."""
    return features.abs().topk(n_ranked, dim=1).indices.sort(dim=1).values


def consistency(probabilities: Tensor) -> Tensor:
    """Mean squared difference of the probabilities (2B, X) of two views."""
    first, second = probabilities.chunk(2)
    return F.mse_loss(first, second)


METHOD = Method(
    settings=RankStatsSettings,
    title="RankStats+",
    model=RankStats,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
