"""Generalized category discovery as Vaze et al. (CVPR 2022) first did it, on the same trainer as CMS.

Training: InfoNCE of two views over all images and the supervised contrastive loss over the labeled ones, through a head
that is then discarded. Inference: semi-supervised k-means of the encoder's features. The snapshot is the one with the
highest accuracy on labeled validation images; the released code takes the one that does best on the test images.

B images of a batch, D entries of an embedding.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.inference import check_n_clusters, unit_points
from shoal.clustering.kmeans import semi_supervised_kmeans
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.encoders.head import Head, HeadSettings
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.clusters import Discovery, Representation, n_clusters_to_use, to_numpy
from shoal.methods.method import Method, TrainedSettings, identity_of
from shoal.training.losses import LossSettings, contrastive_loss, supervised_loss
from shoal.training.model import Batch, Model, Shape, numbered_labels

PUBLISHED_STARTS = 100
"""Starts of semi-supervised k-means in the released code."""


def _loss() -> LossSettings:
    return LossSettings(temperature=1.0, denominator="reference")


@dataclass(frozen=True, kw_only=True, slots=True)
class GcdSettings(TrainedSettings):
    """Everything that can be set; `recipes/gcd` holds the published values for DINO and CLIP.

    Of `inference` only `rule`, `min_clusters` and `max_clusters` are used: nothing is shifted.
    """

    head: HeadSettings = field(default_factory=HeadSettings)
    loss: LossSettings = field(default_factory=_loss)
    """τ of InfoNCE is `temperature`; `denominator: reference` is the usual supervised contrastive loss."""
    n_init: int = 10
    """Starts of k-means; the released code makes 100. With 6,000 images and K = 200 each costs a CPU about 20 s."""

    def __post_init__(self) -> None:
        if self.n_init < 1:
            raise UsageError(f"n_init: found {self.n_init}, expected at least 1")


class Gcd(Model):
    """λ · L_supervised + (1 - λ) · InfoNCE, both through a head; images are clustered by the tail's features."""

    def __init__(self, encoder: Encoder, settings: GcdSettings, shape: Shape) -> None:
        super().__init__(encoder, shape)
        self.settings = settings
        self.head = Head(encoder.feature_dim, settings.head)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """What the head makes of the features of views."""
        return {"projections": self.head(self.encoder.tail(inputs))}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The objective and its two parts."""
        loss, views = self.settings.loss, batch.gather(batch.outputs["projections"])  # (2B, D)
        unsupervised = contrastive_loss(views, loss.temperature)
        supervised = supervised_loss(
            views,
            batch.labels,
            loss.supervised_temperature,
            with_positives=loss.denominator == "reference",
        )
        weight = loss.supervised_weight
        total = weight * supervised + (1 - weight) * unsupervised
        return {"loss": total, "loss_supervised": supervised, "loss_contrastive": unsupervised}

    def identity(self) -> dict[str, Any]:
        """The settings of head and loss."""
        return {"name": "gcd", **identity_of(self.settings)}


def cluster(
    learned: Representation, labels: Ints, settings: GcdSettings, *, n_clusters: int | None, device: torch.device
) -> Discovery:
    """Run semi-supervised k-means: labeled images keep their class, the others go to the nearest center."""
    points = unit_points(learned.embeddings, device=device)
    wanted = n_clusters_to_use(n_clusters, learned, labels, settings.estimate_on, settings.inference)
    estimate = None
    if wanted is None:
        estimate = settings.inference.estimate(Tree(ward_linkage(points, device=device)), labels)
        wanted = estimate.n_clusters
    found = semi_supervised_kmeans(
        points,
        # Without gaps: a class without a labeled image has no center to start from.
        torch.from_numpy(numbered_labels(labels)).to(device),
        check_n_clusters(wanted, labels, len(labels)),
        generator=torch.Generator().manual_seed(settings.training.seed),
        n_init=settings.n_init,
    )
    return Discovery(
        clusters=found.labels.cpu().numpy(),
        n_clusters=wanted,
        embeddings=to_numpy(learned.embeddings),
        estimate=estimate,
        metrics=learned.metrics,
        epoch=learned.epoch,
    )


def say_losses(settings: GcdSettings) -> str:
    """Which variant of the supervised loss, for under a table."""
    kind = "paper's" if settings.loss.denominator == "paper" else "released code's"
    return f"InfoNCE and supervised contrastive, {kind} denominator of the latter"


def say_starts(settings: GcdSettings) -> str:
    """How often k-means starts, beside the released code."""
    published = "as" if settings.n_init == PUBLISHED_STARTS else f"{PUBLISHED_STARTS}"
    return f"{settings.n_init} starts ({published} in GCD's released code)"


METHOD = Method(
    settings=GcdSettings,
    title="GCD",
    about="contrastive learning and semi-supervised k-means (Vaze et al., CVPR 2022)",
    model=Gcd,
    cluster=cluster,
    losses=say_losses,
    head=lambda settings: f"{settings.head.in_words()}, discarded after training",
    number_remark="not by GCD's k-means on frozen features",
    starts=say_starts,
    released="GCD: its own losses and head, the released code's views, gradients not cut",
)
