"""ORCA (Cao, Brbić, Leskovec, ICLR 2022): a classifier over known and novel classes that learns
both at one pace.

Training: each image is paired with another, a labeled one with an image of its class, any other
with its nearest neighbor in the batch, and the two predictions are made alike. The cross-entropy of
labeled images is eased by a margin that is as large as the classifier is unsure of the unlabeled
ones, so that known classes do not run ahead. A term that rewards a mean prediction spread over all
clusters keeps it from using a few. Inference: the largest output.

n training images, B of a batch, b this process's share of it, C entries of a feature, K clusters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.classifier import (
    ClassifierModel,
    ClassifierSettings,
    cluster_by_classifier,
    entropy_of_mean,
    labeled_cross_entropy,
)
from shoal.methods.method import Method
from shoal.settings import check_numbers
from shoal.training.model import Batch, Epoch, TaskShape

LEAST = 1e-7
"""Two predictions agree at least as much as this, so that the logarithm is finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrcaSettings(ClassifierSettings):
    """Everything that can be set; `recipes/orca` holds the published values."""

    scale: float = 10.0
    """s: what the cosines are multiplied by."""
    max_margin: float = 0.5
    """The margin of the cross-entropy is the mean uncertainty of the unlabeled images, at most
    this."""
    pair_weight: float = 1.0
    """How much pairs with alike predictions are rewarded."""
    entropy_weight: float = 1.0
    """How much a spread mean prediction is rewarded."""

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1000:
            raise UsageError(f"scale: found {self.scale}, expected a number in (0, 1000], say 10")
        check_numbers(self, not_negative=["max_margin", "pair_weight", "entropy_weight"])


class Orca(ClassifierModel[OrcaSettings]):
    """Cross-entropy with an uncertainty adaptive margin, pairs, and the entropy of the mean
    prediction."""

    def __init__(self, encoder: Encoder, settings: OrcaSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.margin: Tensor | None = None

    @torch.no_grad()
    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Measure how unsure the classifier is of the unlabeled images: 1 minus its mean largest
        probability."""
        super().begin_epoch(epoch)
        largest = (
            (self.settings.scale * self.classifier(epoch.embed())).softmax(dim=1).max(dim=1).values
        )  # (n,)
        is_unlabeled = epoch.labels == UNLABELED
        uncertainty = 1 - (largest * is_unlabeled).sum() / is_unlabeled.sum().clamp_min(1)
        self.margin = uncertainty.clamp_max(self.settings.max_margin)
        return {"uncertainty": float(uncertainty)}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The whole loss and its parts, over both views of each image."""
        settings = self.settings
        assert self.margin is not None
        logits = settings.scale * batch.gather(batch.outputs["cosines"])  # (2B, K)
        probabilities = logits.softmax(dim=1)
        partners = self.partners(batch)  # (2B,)
        agreement = (probabilities * probabilities[partners]).sum(dim=1)  # (2B,)
        paired = -agreement.clamp_min(LEAST).log().mean()
        classified = labeled_cross_entropy(
            ease(logits, batch.labels, settings.scale * self.margin), batch.labels
        )
        entropy = entropy_of_mean(probabilities)
        return {
            "loss": classified + settings.pair_weight * paired - settings.entropy_weight * entropy,
            "loss_classified": classified,
            "loss_paired": paired,
            "entropy": entropy,
        }

    def partners(self, batch: Batch) -> Tensor:
        """(2B,) the row that each is paired with: of another image, in the other view."""
        n_images = batch.n_images
        features = batch.gather(batch.outputs["features"].detach()).float()  # (2B, C)
        images = batch.gather(batch.images)[:n_images]  # (B,)
        labels = batch.labels[:n_images]
        drawn = torch.rand(2, n_images, generator=batch.generator).to(
            features.device, non_blocking=True
        )
        views = zip(features.chunk(2), drawn, (n_images, 0), strict=True)
        return torch.cat(
            [choose_partners(view, labels, images, chance) + start for view, chance, start in views]
        )


def ease(logits: Tensor, labels: Tensor, margin: Tensor) -> Tensor:
    """Raise the logit of each labeled row's own class by a margin, so that its cross-entropy pulls
    less."""
    own = F.one_hot(labels.clamp_min(0), logits.shape[1]) * (labels != UNLABELED)[:, None]  # (N, K)
    return logits + own * margin


def choose_partners(features: Tensor, labels: Tensor, images: Tensor, drawn: Tensor) -> Tensor:
    """(B,) another image of the batch for each: of the same label by chance, the nearest where
    there is no label.

    Unit features (B, C), labels and images (B,), uniform numbers `drawn` (B,). An image that is the
    only one of its class is its own partner.
    """
    others = images[:, None] != images[None, :]  # (B, B); batches are drawn with replacement
    alike = others & (labels[:, None] == labels[None, :])
    n_alike = alike.sum(dim=1)  # (B,)
    wanted = (drawn * n_alike).long() + 1  # the first, second, … of them
    is_wanted = alike & (alike.cumsum(dim=1) == wanted[:, None])
    itself = torch.arange(len(labels), device=labels.device)
    by_label = torch.where(n_alike > 0, is_wanted.long().argmax(dim=1), itself)
    with torch.autocast(features.device.type, enabled=False):
        nearest = (features @ features.T).masked_fill(~others, -torch.inf).argmax(dim=1)
    return torch.where(labels == UNLABELED, nearest, by_label)


METHOD = Method(
    settings=OrcaSettings,
    title="ORCA",
    model=Orca,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
