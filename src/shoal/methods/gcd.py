"""Generalized category discovery as Vaze et al. (CVPR 2022) first did it, on the same trainer as CMS.

Training: InfoNCE of two views over all images and the supervised contrastive loss over the labeled ones, through a head
that is then discarded. Inference: semi-supervised k-means of the encoder's features. The snapshot is the one with the
highest accuracy on labeled validation images; the released code takes the one that does best on the test images.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, Unpack

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.inference import InferenceSettings, check_n_clusters, unit_points
from shoal.clustering.kmeans import semi_supervised_kmeans
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import embed
from shoal.encoders.head import Head, HeadSettings
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.method import Discovery, Options, Representation, Task, learn, n_clusters_to_use, to_numpy
from shoal.settings import to_dict
from shoal.training.losses import LossSettings, contrastive_loss, supervised_loss
from shoal.training.objective import Batch, Objective
from shoal.training.settings import TrainSettings


def _loss() -> LossSettings:
    return LossSettings(temperature=1.0, denominator="reference")


@dataclass(frozen=True, kw_only=True, slots=True)
class GcdSettings:
    """Everything that can be set; `recipes/gcd` holds the published values for DINO and CLIP."""

    encoder: str = DEFAULT_ENCODER
    n_tail_blocks: int | None = None
    """How many of the encoder's last blocks are trained; None: what the encoder's catalog entry says."""
    input_size: int | None = None
    """Side of the images the encoder sees; None: what it was made for."""
    head: HeadSettings = field(default_factory=HeadSettings)
    training: TrainSettings = field(default_factory=TrainSettings)
    loss: LossSettings = field(default_factory=_loss)
    """τ of InfoNCE is `temperature`; `denominator: reference` is the usual supervised contrastive loss."""
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    """Only `rule`, `min_clusters` and `max_clusters` are used: nothing is shifted."""
    estimate_on: Literal["validation", "collection"] = "validation"
    """Whose labels estimate K: those set aside from the loss, or all, on the final features; as for the method cms."""
    n_init: int = 10
    """Starts of k-means; the released code makes 100. With 6,000 images and K = 200 each costs a CPU about 20 s."""

    def __post_init__(self) -> None:
        if self.n_init < 1:
            raise UsageError(f"n_init: found {self.n_init}, expected at least 1")

    def with_seed(self, seed: int) -> Self:
        """The same settings with another seed."""
        return replace(self, training=replace(self.training, seed=seed))


class ContrastiveObjective(Objective):
    """λ · supervised + (1 - λ) · InfoNCE, both on the embeddings of the head."""

    uses_bank = False
    discards_head = True

    def __init__(self, loss: LossSettings) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The objective and its two parts."""
        views = batch.gather(batch.embeddings)  # (2B, D)
        unsupervised = contrastive_loss(views, self.loss.temperature)
        supervised = supervised_loss(
            views,
            batch.labels,
            self.loss.supervised_temperature,
            with_positives=self.loss.denominator == "reference",
        )
        weight = self.loss.supervised_weight
        total = weight * supervised + (1 - weight) * unsupervised
        return {"loss": total, "loss_supervised": supervised, "loss_contrastive": unsupervised}

    def identity(self) -> dict[str, Any]:
        """The settings of the loss."""
        return {"method": "gcd", "loss": to_dict(self.loss)}


def represent(task: Task, settings: GcdSettings, *, device: torch.device, **options: Unpack[Options]) -> Representation:
    """Train the tail through a head, and keep the tail."""
    encoder, head, objective = build(settings)
    trained = learn(task, (encoder, head, objective), settings, device=device, **options)
    return Representation(
        embeddings=trained.embeddings,
        embed=lambda pixels: embed(pixels, encoder),
        n_clusters=trained.validation.n_clusters,
        rule=trained.validation.rule,
        metrics=trained.metrics,
        epoch=trained.epoch,
        tokens=trained.tokens,
        pool=trained.pool,
    )


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
        torch.from_numpy(_renumbered(labels)).to(device),
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


def build(settings: GcdSettings) -> tuple[Encoder, Head, ContrastiveObjective]:
    """Load the encoder and make a new head and objective, whose weights depend on the seed alone."""
    encoder = load_encoder(settings.encoder, n_tail_blocks=settings.n_tail_blocks, input_size=settings.input_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.training.seed)
        return encoder, Head(encoder.feature_dim, settings.head), ContrastiveObjective(settings.loss)


def _renumbered(labels: Ints) -> Ints:
    """Labels 0 … C-1 without gaps, -1 kept: a class without a labeled image has no center to start from."""
    classes = np.unique(labels[labels != UNLABELED])
    return np.where(labels == UNLABELED, UNLABELED, np.searchsorted(classes, labels))
