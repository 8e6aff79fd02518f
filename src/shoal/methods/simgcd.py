"""SimGCD (Wen, Zhao, Qi, ICCV 2023): a classifier over known and novel classes, taught by its own
other view.

Training: each view of an image is classified; its sharpened prediction is the target of the other
view, without gradients. A term that rewards a mean prediction spread over all clusters keeps the
classifier from using a few. Labeled images add a cross-entropy, and both views the contrastive
losses of GCD through a projection head. Inference: the classifier's largest output.

B images of a batch, b this process's share of it, C entries of a feature, D of a projection, K
clusters.
"""

import math
from dataclasses import dataclass, field

from torch import Tensor

from shoal.encoders.head import Head, HeadSettings, unit
from shoal.encoders.vision import Encoder
from shoal.methods.classifier import (
    ClassifierModel,
    ClassifierSettings,
    cluster_by_classifier,
    entropy_of_mean,
    labeled_cross_entropy,
    soft_cross_entropy,
)
from shoal.methods.method import Method
from shoal.settings import check_numbers
from shoal.training.losses import ContrastSettings, contrastive_loss, supervised_loss
from shoal.training.model import Batch, TaskShape
from shoal.training.sgd import Sgd
from shoal.training.train_settings import TrainSettings, ramp


def _head() -> HeadSettings:
    return HeadSettings(kind="mlp", dim=256)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimGcdSettings(ClassifierSettings):
    """Everything that can be set; `recipes/simgcd` holds the published values."""

    head: HeadSettings = field(default_factory=_head)
    """The projection head of the contrastive losses."""
    loss: ContrastSettings = field(default_factory=ContrastSettings)
    """Those losses; `supervised_weight` λ balances the classifier's losses too."""
    student_temperature: float = 0.1
    """τ_s: what the logits are divided by."""
    teacher_temperature: float = 0.04
    """τ_t: the same in a target, from `teacher_warmup` epochs on."""
    first_teacher_temperature: float = 0.07
    """Where τ_t begins; it falls along a line."""
    teacher_warmup: int = 30
    """Epochs until it has fallen; in a short training half of them."""
    entropy_weight: float = 2.0
    """ε: how much a spread mean prediction is rewarded."""

    def __post_init__(self) -> None:
        check_numbers(
            self,
            temperatures=[
                "student_temperature",
                "teacher_temperature",
                "first_teacher_temperature",
            ],
            not_negative=["teacher_warmup", "entropy_weight"],
        )

    def teacher_temperature_at(self, epoch: int) -> float:
        """τ_t of an epoch, counted from 0."""
        n_falling = min(self.teacher_warmup, self.training.epochs // 2)
        return ramp(epoch, self.first_teacher_temperature, self.teacher_temperature, n_falling)


class SimGcd(ClassifierModel[SimGcdSettings]):
    """L_cls + L_rep, each (1 - λ) · unsupervised + λ · supervised."""

    def __init__(self, encoder: Encoder, settings: SimGcdSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.head = Head(encoder.feature_dim, settings.head)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Projections (b, D) for the contrastive losses, and cosines with the clusters, (b, K)."""
        features = self.encoder.tail(inputs)
        return {
            "projections": self.head(features),
            "cosines": self.classifier(unit(features.float())),
        }

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The whole loss and its parts."""
        settings = self.settings
        weight = self.settings.loss.supervised_weight
        cosines = batch.gather(batch.outputs["cosines"])  # (2B, K)
        views = batch.gather(batch.outputs["projections"])  # (2B, D)
        logits = cosines / settings.student_temperature
        distillation = self.distillation_loss(cosines, logits, batch.epoch)
        mean_entropy = math.log(logits.shape[1]) - entropy_of_mean(logits.softmax(dim=1))
        classification = labeled_cross_entropy(logits, batch.labels)
        contrastive = contrastive_loss(views, settings.loss.temperature)
        supervised = supervised_loss(
            views, batch.labels, settings.loss.supervised_temperature, with_positives=True
        )
        unsupervised = distillation + settings.entropy_weight * mean_entropy + contrastive
        return {
            "loss": (1 - weight) * unsupervised + weight * (classification + supervised),
            "loss_distillation": distillation,
            "loss_mean_entropy": mean_entropy,
            "loss_classification": classification,
            "loss_contrastive": contrastive,
            "loss_supervised": supervised,
        }

    def distillation_loss(self, cosines: Tensor, logits: Tensor, epoch: int) -> Tensor:
        """Each view's prediction against the sharpened one of the other view, which is a target: no
        gradient."""
        sharpness = self.settings.teacher_temperature_at(epoch)
        # (2B, K)
        targets = (cosines.detach() / sharpness).softmax(dim=1).roll(len(cosines) // 2, dims=0)
        return soft_cross_entropy(logits, targets)

    def make_optimizer(self, settings: TrainSettings) -> Sgd:
        """SGD; biases and other vectors do not decay."""
        parameters = self.trained_parameters()
        return Sgd(
            [value for value in parameters if value.ndim > 1],
            undecayed=[value for value in parameters if value.ndim <= 1],
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )


METHOD = Method(
    settings=SimGcdSettings,
    title="SimGCD",
    model=SimGcd,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
