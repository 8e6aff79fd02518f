"""ORCA (Cao, Brbić, Leskovec, ICLR 2022): a classifier that learns known and novel classes at the
same pace.

Training: each image is paired with another, a labeled one with an image of its class, any other
with its nearest neighbor in the batch, and the pairwise objective makes both predictions similar.
The supervised objective is a cross-entropy with an adaptive margin, as large as the uncertainty
about the unlabeled images, so that known classes are not learned faster. The regularization
maximizes the entropy of the mean prediction. Inference: the largest output.

Shapes: n training images, B per batch, C dimensions of a feature, K clusters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED
from shoal.methods.classifier import (
    ClassifierModel,
    ClassifierSettings,
    cluster_by_classifier,
    entropy_of_mean,
    labeled_cross_entropy,
)
from shoal.methods.method import Method
from shoal.settings import NonNegative, Positive
from shoal.training.model import Batch, Epoch, Tensors

# Lower bound of the similarity of two predictions, for a finite logarithm
MIN_SIMILARITY = 1e-7


@dataclass(frozen=True, kw_only=True)
class OrcaSettings(ClassifierSettings):
    """Settings of ORCA; `recipes/orca` holds the published values."""

    scale: Positive = 10.0
    """s: factor of the cosines."""
    max_margin: NonNegative = 0.5
    """Upper bound of the margin."""
    pair_weight: NonNegative = 1.0
    """Weight of the pairwise objective."""
    entropy_weight: NonNegative = 1.0
    """Weight of the regularization."""


class Orca(ClassifierModel):
    """L_S + L_P + R: cross-entropy with an uncertainty adaptive margin, pairwise objective and
    entropy regularization."""

    @torch.no_grad()
    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Measure the uncertainty about the unlabeled images: 1 - mean largest probability."""
        super().begin_epoch(epoch)
        logits = self.settings.scale * self.classifier(epoch.embed())  # (n, K)
        confidence = logits.softmax(dim=1).max(dim=1).values  # (n,)
        is_unlabeled = epoch.labels == UNLABELED
        uncertainty = 1 - (confidence * is_unlabeled).sum() / is_unlabeled.sum().clamp_min(1)
        self.margin = uncertainty.clamp_max(self.settings.max_margin)
        return {"uncertainty": float(uncertainty)}

    def loss(self, batch: Batch) -> Tensors:
        settings = self.settings
        logits = settings.scale * batch.gather(batch.outputs["cosines"])  # (2B, K)
        probabilities = logits.softmax(dim=1)
        similarity = (probabilities * probabilities[self.partners(batch)]).sum(dim=1)  # (2B,)
        pairwise = -similarity.clamp_min(MIN_SIMILARITY).log().mean()
        eased = add_margin(logits, batch.labels, settings.scale * self.margin)
        supervised = labeled_cross_entropy(eased, batch.labels)
        entropy = entropy_of_mean(probabilities)
        return {
            "loss": supervised
            + settings.pair_weight * pairwise
            - settings.entropy_weight * entropy,
            "loss_supervised": supervised,
            "loss_pairwise": pairwise,
            "mean_entropy": entropy,
        }

    def partners(self, batch: Batch) -> Tensor:
        """Return, for each row, the row (2B,) that it is paired with, always in the other view."""
        n_images = batch.n_images
        features = batch.gather(batch.outputs["features"].detach())  # (2B, C)
        images = batch.gather(batch.images)[:n_images]  # (B,)
        labels = batch.labels[:n_images]
        uniform = torch.rand(2, n_images, generator=batch.generator)
        uniform = uniform.to(features.device, non_blocking=True)
        of_first, of_second = (
            choose_partners(view, labels, images, random)
            for view, random in zip(features.chunk(2), uniform, strict=True)
        )
        return torch.cat([of_first + n_images, of_second])


def add_margin(logits: Tensor, labels: Tensor, margin: Tensor) -> Tensor:
    """Add a margin to the logit of each labeled row's class, so that its cross-entropy is lower."""
    is_class = F.one_hot(labels.clamp_min(0), logits.shape[1]) * (labels != UNLABELED)[:, None]
    return logits + is_class * margin


def choose_partners(features: Tensor, labels: Tensor, images: Tensor, uniform: Tensor) -> Tensor:
    """Return a partner in the batch (B,) for each image: for a labeled image, a random other one of
    the same label; for an unlabeled image, the nearest other one, labeled or not.

    Unit features (B, C), labels and images (B,), `uniform` random numbers (B,). The only image of
    a class is its own partner.
    """
    others = images[:, None] != images  # (B, B); an image may be in a batch twice
    same = others & (labels[:, None] == labels)
    n_same = same.sum(dim=1)  # (B,)
    # Choose the first, second, … image of the same label by its running count.
    chosen = (uniform * n_same).long() + 1
    is_chosen = same & (same.cumsum(dim=1) == chosen[:, None])
    itself = torch.arange(len(labels), device=labels.device)
    by_label = torch.where(n_same > 0, is_chosen.long().argmax(dim=1), itself)
    nearest = (features @ features.T).masked_fill(~others, -torch.inf).argmax(dim=1)
    return torch.where(labels == UNLABELED, nearest, by_label)


METHOD = Method(
    settings=OrcaSettings,
    title="ORCA",
    model=Orca,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
