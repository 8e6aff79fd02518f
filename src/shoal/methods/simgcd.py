"""SimGCD (Wen, Zhao, Qi, ICCV 2023): a parametric classifier over known and novel classes, trained
by self-distillation.

Training: the sharpened prediction for one view of an image is the target for the other view. Mean-
entropy maximization keeps the classifier from collapsing to a few outputs. The loss also includes
the cross-entropy of labeled images, and GCD's contrastive losses on the output of a projection
head. Inference: the class with the largest output.

Shapes: B images per batch, b of them in this process, D dimensions of a projection, K clusters.
"""

import math
from dataclasses import dataclass, field

from torch import Tensor

from shoal.encoders.vision import Encoder, Head, HeadSettings, unit
from shoal.methods.classifier import (
    ClassifierModel,
    ClassifierSettings,
    cluster_by_classifier,
    entropy_of_mean,
    labeled_cross_entropy,
    soft_cross_entropy,
)
from shoal.methods.gcd import gcd_losses
from shoal.methods.method import Method
from shoal.settings import NonNegative, NonNegativeInt, Temperature
from shoal.training.losses import ContrastSettings
from shoal.training.model import Batch, TaskShape, Tensors
from shoal.training.train_settings import linear_schedule


@dataclass(frozen=True, kw_only=True)
class SimGcdSettings(ClassifierSettings):
    """Settings of SimGCD; the recipes `dino`, `cub` and `cifar100` hold the published values."""

    head: HeadSettings = field(default_factory=lambda: HeadSettings(kind="mlp", dim=256))
    """The projection head of the contrastive losses."""
    loss: ContrastSettings = field(default_factory=ContrastSettings)
    """The contrastive losses; `supervised_weight` λ also weights the classifier's losses."""
    student_temperature: Temperature = 0.1
    """τ_s: temperature of the predictions."""
    teacher_temperature: Temperature = 0.04
    """τ_t: temperature of the targets, after `teacher_warmup` epochs."""
    initial_teacher_temperature: Temperature = 0.07
    """Initial τ_t, from which it decreases linearly."""
    teacher_warmup: NonNegativeInt = 30
    """Number of epochs over which τ_t decreases, at most half of all epochs."""
    entropy_weight: NonNegative = 2.0
    """ε: weight of the mean-entropy maximization."""

    def teacher_temperature_at(self, epoch: int) -> float:
        warmup = min(self.teacher_warmup, self.training.epochs // 2)
        first = self.initial_teacher_temperature
        return linear_schedule(epoch, first, self.teacher_temperature, warmup)


class SimGcd(ClassifierModel):
    """L_cls + L_rep, each (1 - λ) · unsupervised + λ · supervised."""

    decays_vectors = False  # no weight decay on biases and other vectors

    def __init__(self, encoder: Encoder, settings: SimGcdSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.head = Head(encoder.feature_dim, settings.head)

    def forward(self, inputs: Tensor) -> Tensors:
        """Return projections (b, D) for the contrastive losses, and the classifier's scores (b, K),
        which are cosines."""
        features = self.encoder.tail(inputs)
        return {
            "projections": self.head(features),
            "scores": self.classifier(unit(features.float())),
        }

    def loss(self, batch: Batch) -> Tensors:
        settings = self.settings
        weight = settings.loss.supervised_weight
        scores = batch.gather(batch.outputs["scores"])  # (2B, K)
        logits = scores / settings.student_temperature
        distillation = self.distillation_loss(scores, logits, batch.epoch)
        # log K is the maximum of the entropy, so this term is at least 0.
        mean_entropy = math.log(logits.shape[1]) - entropy_of_mean(logits.softmax(dim=1))
        classification = labeled_cross_entropy(logits, batch.labels)
        contrastive, supervised = self.contrastive_losses(batch)
        unsupervised = distillation + settings.entropy_weight * mean_entropy + contrastive
        return {
            "loss": (1 - weight) * unsupervised + weight * (classification + supervised),
            "loss_distillation": distillation,
            "loss_mean_entropy": mean_entropy,
            "loss_classification": classification,
            "loss_contrastive": contrastive,
            "loss_supervised": supervised,
        }

    def contrastive_losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        views = batch.gather(batch.outputs["projections"])  # (2B, D)
        losses = gcd_losses(views, batch.labels, self.settings.loss)
        return losses["loss_contrastive"], losses["loss_supervised"]

    def distillation_loss(self, scores: Tensor, logits: Tensor, epoch: int) -> Tensor:
        """Return the cross-entropy between each view's prediction and the sharpened prediction for
        the other view, which is detached."""
        temperature = self.settings.teacher_temperature_at(epoch)
        teacher = (scores.detach() / temperature).softmax(dim=1)  # (2B, K)
        return soft_cross_entropy(logits, teacher.roll(len(scores) // 2, dims=0))


METHOD = Method(
    settings=SimGcdSettings,
    title="SimGCD",
    model=SimGcd,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
