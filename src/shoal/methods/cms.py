"""Contrastive mean-shift learning (CMS, CVPR 2024), the method of this package.

Training: each view's embedding v is moved one mean-shift step toward its neighbors in the bank, z; the contrastive
loss of z over all images and the supervised loss of v over the labeled ones train the tail and the head (section 4.2).
K and the snapshot are chosen on the validation images (4.3). Inference: shift until the labeled accuracy stops rising,
cut Ward's tree at K (4.4, Algorithm 1).

n training images, B of a batch, b this process's share of it, D entries of an embedding, k neighbors, M unseen images.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.inference import infer_inductive
from shoal.clustering.mean_shift import NeighborAttention
from shoal.clustering.neighbors import Neighbors
from shoal.clustering.sums import similarities
from shoal.encoders.head import Head, HeadSettings, compact
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.clusters import (
    Discovery,
    Representation,
    as_discovery,
    n_clusters_to_use,
    shift_and_cut,
)
from shoal.methods.method import Method, TrainedSettings
from shoal.settings import to_dict
from shoal.training.bank import Bank, collapse_statistics
from shoal.training.losses import LossSettings, contrastive_loss, supervised_loss
from shoal.training.model import Batch, Epoch, Model, TaskShape


@dataclass(frozen=True, kw_only=True, slots=True)
class CmsSettings(TrainedSettings):
    """Everything that can be set; `recipes/cms` holds the paper's values for its benchmarks.

    `inference` is Algorithm 1; its `shift` is that of training too, and its `rule` estimates K in both.
    """

    head: HeadSettings = field(default_factory=HeadSettings)
    loss: LossSettings = field(default_factory=LossSettings)

    def __post_init__(self) -> None:
        shift = self.inference.shift
        if self.training.bank == "views" and (shift.kernel, shift.retrieval) != ("knn", "nearest"):
            raise UsageError(
                "training.bank 'views' goes with the k nearest only; use bank 'images'"
            )


class Cms(Model):
    """Equations 5 to 8: λ · L_SC(v) + (1 - λ) · L_CMS(z), and the bank V that neighbors are looked up in."""

    settings: CmsSettings

    def __init__(self, encoder: Encoder, settings: CmsSettings, shape: TaskShape) -> None:
        super().__init__(encoder, shape)
        self.settings = settings
        self.shift = settings.inference.shift
        self.head = Head(encoder.feature_dim, settings.head)
        self.attention = (
            NeighborAttention(settings.head.dim) if self.shift.aggregation == "attention" else None
        )
        self.bank: Bank | None = None
        self.is_recordable = (
            self.shift.retrieval == "nearest"
        )  # random neighbors are drawn by the host

    def check(self) -> None:
        """Refuse fewer images than a view has neighbors."""
        n_images = self.shape.n_images
        others = (n_images if self.settings.training.bank == "images" else 2 * n_images) - 1
        if self.shift.kernel == "knn" and self.shift.n_neighbors > others:
            raise UsageError(
                f"inference.shift.n_neighbors: found {self.shift.n_neighbors} with {n_images} images to train "
                f"on, expected at most {others}; lower it, or add images"
            )

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Embeddings v of views."""
        return {"embeddings": self.represent(inputs)}

    def represent(self, inputs: Tensor) -> Tensor:
        """Images are clustered by what the head makes of the tail's features."""
        embeddings: Tensor = self.head(self.encoder.tail(inputs))
        return embeddings

    def compact(self, embeddings: Tensor) -> Tensor:
        """In as many columns as the bottleneck has; learned attention was trained on full embeddings."""
        return embeddings if self.attention is not None else compact(embeddings, self.head.basis())

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Renew the bank: embed every image, or two random views of each, with the networks as they are now."""
        basis = self.head.basis()
        kind = self.settings.training.bank
        embeddings = epoch.embed() if kind == "images" else epoch.embed_views()
        self.bank = Bank(rows=compact(embeddings, basis).clone(), basis=basis, kind=kind)
        return collapse_statistics(self.bank.rows)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Equation 8 and its two parts."""
        # (2b, D)
        loss = self.settings.loss
        views = batch.outputs["embeddings"]
        assert self.bank is not None
        own = self.bank.shift(
            views,
            self.neighbors(batch, self.bank),
            self.shift,
            attention=self.attention,
            detach_norm=loss.detach_norm,
        )
        shifted = batch.gather(own)  # (2B, D)
        is_reference = loss.denominator == "reference"
        unsupervised = contrastive_loss(shifted, loss.temperature, with_positive=not is_reference)
        seen = shifted if loss.supervised_input == "shifted" else batch.gather(views)
        supervised = supervised_loss(
            seen, batch.labels, loss.supervised_temperature, with_positives=is_reference
        )
        weight = loss.supervised_weight
        total = weight * supervised + (1 - weight) * unsupervised
        return {"loss": total, "loss_supervised": supervised, "loss_shifted": unsupervised}

    def neighbors(self, batch: Batch, bank: Bank) -> Neighbors:
        """The neighbors of this process's views."""
        views = batch.outputs["embeddings"]
        if self.shift.retrieval != "random":
            return bank.neighbors(views, batch.images, self.shift)
        # Both views of an image are given the same ones, "for stable learning" (section 5.3). Every process draws for
        # the whole batch and keeps its own: generators are alike, so each would else draw the same.
        everyone = (batch.gather(views.detach()), batch.gather(batch.images))  # (2B, D), (2B,)
        first, images = (rows.chunk(2)[0] for rows in everyone)  # (B, D), (B,)
        once = bank.neighbors(first, images, self.shift, batch.generator).indices  # (B, k)
        drawn = batch.own(torch.cat([once, once]))  # (2b, k)
        return Neighbors(drawn, similarities(compact(views.detach(), bank.basis), bank.rows, drawn))

    def identity(self) -> dict[str, Any]:
        """The settings of head, loss and shift."""
        return {**super().identity(), "shift": to_dict(self.shift)}


def cluster(
    learned: Representation,
    labels: Ints,
    settings: CmsSettings,
    *,
    n_clusters: int | None,
    device: torch.device,
) -> Discovery:
    """Algorithm 1."""
    wanted = n_clusters_to_use(
        n_clusters, learned, labels, settings.estimate_on, settings.inference
    )
    how: dict[str, Any] = {"n_clusters": wanted, "seed": settings.training.seed, "device": device}
    return shift_and_cut(learned, labels, settings.inference, **how)


def cluster_unseen(
    learned: Representation,
    unseen: Tensor,
    labels: Ints,
    validation: Ints,
    settings: CmsSettings,
    *,
    n_clusters: int | None,
    device: torch.device,
) -> Discovery:
    """Algorithm 1 on embeddings (M, D) of unseen images; labeled validation images say when to stop shifting."""
    judges = labels[validation]
    inference = infer_inductive(
        unseen,
        learned.embeddings[torch.from_numpy(validation).to(learned.embeddings.device)],
        judges,
        n_clusters_to_use(n_clusters, learned, judges, "validation"),
        settings.inference,
        attention=learned.attention,
        generator=torch.Generator().manual_seed(0),
        device=device,
    )
    return as_discovery(inference, unseen)


def describe_losses(settings: CmsSettings) -> str:
    """The variant of the losses in words, for under a table."""
    loss = settings.loss
    kind = "paper's" if loss.denominator == "paper" else "released code's"
    norm = "detached" if loss.detach_norm else "plain"
    seen = "z" if loss.supervised_input == "shifted" else "v"
    return f"{kind} denominators, norm of z {norm}, {seen} in the supervised loss, bank of {settings.training.bank}"


METHOD = Method(
    settings=CmsSettings,
    title="CMS",
    about="contrastive mean-shift learning (CVPR 2024)",
    model=Cms,
    cluster=cluster,
    cluster_unseen=cluster_unseen,
    shifts=True,
    measured_gain=(  # the answer beside the first one, by 2026-11-16_h200_answers.md and …_small_collections.md
        "of 100 images 8 to 16 more were right on three collections of over 3,000, 1 fewer on a fourth, 1 more on 400 "
        "or 1,000 images, none on 150"
    ),
    goes_on_from_trial=True,
    protocols={
        "paper": {
            "loss": {"denominator": "paper", "detach_norm": False},
            "head": {"kind": "paper"},
            "training": {"bank": "images"},
        },
        "reference": {
            "loss": {"denominator": "reference", "detach_norm": True},
            "head": {"kind": "bottleneck"},
            "training": {"bank": "views"},
        },
    },
    losses=describe_losses,
    head=lambda settings: settings.head.in_words(),
    released="CMS: the released code's losses, head and bank, as listed below, its views, gradients not cut",
)
