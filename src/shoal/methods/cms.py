"""CMS (Choi, Kang, Cho, CVPR 2024): contrastive mean-shift learning, the default method.

Training: the embedding v of each view is moved one mean-shift step toward its neighbors in the
bank, which gives z. The tail and the head are trained with a contrastive loss on z over all images
and a supervised contrastive loss on v over the labeled ones (section 4.2). K and the snapshot are
chosen on the validation images (4.3). Inference: shift until the labeled accuracy stops rising,
then cut Ward's tree at K (4.4, Algorithm 1).

Shapes: n training images, B per batch, b of them in this process, D dimensions of an embedding, k
neighbors, M unseen images.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.inference import infer_inductive
from shoal.clustering.mean_shift import NeighborAttention, find_neighbors, shift
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import similarities
from shoal.encoders.vision import Encoder, Head, HeadSettings
from shoal.errors import UsageError
from shoal.methods.method import (
    Discovery,
    Method,
    Representation,
    TrainedSettings,
    as_discovery,
    resolve_n_clusters,
    shift_and_cut,
)
from shoal.settings import Plain, Temperature, to_dict
from shoal.training.losses import ContrastSettings, contrastive_loss, supervised_loss
from shoal.training.model import Batch, Epoch, Model, TaskShape, Tensors
from shoal.training.validation import collapse_statistics


@dataclass(frozen=True, kw_only=True)
class LossSettings(ContrastSettings):
    """Settings of the losses; the defaults are the paper's for fine-grained images."""

    temperature: Temperature = 0.25
    """τ_u of the contrastive mean-shift loss."""
    denominator: Literal["paper", "reference"] = "paper"
    """Rows in the denominators. 'paper': all others including the positive in equation 6, all
    others except the positives in equation 7. 'reference', as in the released code: the positive is
    excluded in equation 6, and the positives are included in equation 7."""
    supervised_input: Literal["embedding", "shifted"] = "embedding"
    """The input of the supervised loss: v, or the mean-shifted z (an ablation of the paper)."""
    detach_norm: bool = False
    """Whether to stop the gradient through the norm of z, as in the released code. As long as the
    positive of a view is nearer than its negatives, the loss then also pulls the view toward its z,
    and so toward its neighbors."""


@dataclass(frozen=True, kw_only=True)
class CmsSettings(TrainedSettings):
    """Settings of CMS; `recipes/cms` holds the paper's values for its benchmarks.

    `inference` is Algorithm 1; its `shift` is also that of training, and its `rule` estimates K in
    both.
    """

    head: HeadSettings = field(default_factory=HeadSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    bank: Literal["images", "views"] = "images"
    """Rows of the bank: the embedding of each image without augmentation, or those of two random
    views of it, as in the released code. Views are new in every epoch, so `training.views.pool`
    must be null."""

    def __post_init__(self) -> None:
        shift = self.inference.shift
        is_nearest = (shift.kernel, shift.retrieval) == ("knn", "nearest")
        if self.bank == "views" and (not is_nearest or self.training.views.pool is not None):
            raise UsageError(
                "bank 'views' supports only the k nearest neighbors (kernel 'knn', retrieval "
                "'nearest') and new views in every epoch (training.views.pool null); use bank "
                "'images'"
            )


class Cms(Model):
    """Equations 5 to 8: λ · L_SC(v) + (1 - λ) · L_CMS(z), with neighbors from a bank."""

    def __init__(self, encoder: Encoder, settings: CmsSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.shift = settings.inference.shift
        self.head = Head(encoder.feature_dim, settings.head)
        self.attention: NeighborAttention | None = None
        if self.shift.aggregation == "attention":
            self.attention = NeighborAttention(settings.head.dim)
        # (n, D), or (2n, D) for views: view 1 of all images, then view 2
        self.bank = torch.empty(0)
        # Random neighbors are sampled on the CPU, which a CUDA graph cannot record.
        self.is_recordable = self.shift.retrieval == "nearest"

    def check(self) -> None:
        n_images = self.shape.n_images
        most = (2 * n_images if self.settings.bank == "views" else n_images) - 1
        if self.shift.kernel == "knn" and self.shift.n_neighbors > most:
            raise UsageError(
                f"inference.shift.n_neighbors: found {self.shift.n_neighbors} with {n_images} "
                f"images to train on, expected at most {most}; lower it, or add images"
            )

    def forward(self, inputs: Tensor) -> Tensors:
        return {"embeddings": self.represent(inputs)}

    def represent(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder.tail(inputs))

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        embeddings = epoch.embed_views() if self.settings.bank == "views" else epoch.embed()
        self.bank = embeddings.clone()
        return collapse_statistics(self.bank)

    def loss(self, batch: Batch) -> Tensors:
        """Return equation 8 and its two terms."""
        loss = self.settings.loss
        views = batch.outputs["embeddings"]  # (2b, D)
        # z of equation 5; gradients flow through the views only.
        shifted = shift(
            views,
            self.bank,
            self.neighbors(batch),
            self.shift,
            attention=self.attention,
            detach_norm=loss.detach_norm,
        )
        shifted = batch.gather(shifted)  # (2B, D)
        is_reference = loss.denominator == "reference"
        unsupervised = contrastive_loss(shifted, loss.temperature, with_positive=not is_reference)
        supervised = supervised_loss(
            shifted if loss.supervised_input == "shifted" else batch.gather(views),
            batch.labels,
            loss.supervised_temperature,
            with_positives=is_reference,
        )
        weight = loss.supervised_weight
        total = weight * supervised + (1 - weight) * unsupervised
        return {"loss": total, "loss_supervised": supervised, "loss_shifted": unsupervised}

    def neighbors(self, batch: Batch) -> Neighbors:
        views = batch.outputs["embeddings"].detach()
        if self.shift.retrieval != "random":
            return self.search(views, batch.images)
        # Both views of an image have the same neighbors, "for stable learning" (section 5.3). Every
        # process samples for the whole batch, so that the generators remain in the same state.
        first, _ = batch.gather(views).chunk(2)  # (B, D)
        images = batch.gather(batch.images)[: batch.n_images]  # (B,)
        sampled = self.search(first, images, batch.generator).indices  # (B, k)
        indices = batch.local_rows(torch.cat([sampled, sampled]))  # (2b, k)
        return Neighbors(indices, similarities(views, self.bank, indices))

    def search(
        self, views: Tensor, images: Tensor, generator: torch.Generator | None = None
    ) -> Neighbors:
        """Return the neighbors of V `views` (V, D) of `images` (V,), without the image itself.

        In a bank of views, the nearest row is dropped instead, as in the released code.
        """
        if self.settings.bank == "views":
            lists = k_nearest(views, self.bank, self.shift.n_neighbors + 1, exact=False)
            return Neighbors(lists.indices[:, 1:], lists.similarities[:, 1:])
        return find_neighbors(
            views, self.bank, self.shift, exclude=images, exact=False, generator=generator
        )

    def identity(self) -> Plain:
        return {**super().identity(), "shift": to_dict(self.shift)}


def learned_attention(learned: Representation) -> NeighborAttention | None:
    return learned.model.attention if isinstance(learned.model, Cms) else None


def cluster(
    learned: Representation,
    labels: Ints,
    settings: CmsSettings,
    n_clusters: int | None,
) -> Discovery:
    inference = settings.inference
    return shift_and_cut(
        learned,
        labels,
        inference,
        n_clusters=resolve_n_clusters(n_clusters, learned, labels, inference),
        seed=settings.training.seed,
        attention=learned_attention(learned),
    )


def cluster_unseen(
    learned: Representation,
    unseen: Tensor,
    labels: Ints,
    validation: Ints,
    settings: CmsSettings,
    n_clusters: int | None,
) -> Discovery:
    """Cluster embeddings (M, D) of unseen images by Algorithm 1; labeled validation images
    determine the number of shifts."""
    labels = labels[validation]
    inference = infer_inductive(
        unseen,
        learned.embeddings[torch.from_numpy(validation).to(learned.embeddings.device)],
        labels,
        resolve_n_clusters(n_clusters, learned, labels, settings.inference),
        settings.inference,
        attention=learned_attention(learned),
        generator=torch.Generator().manual_seed(0),
    )
    return as_discovery(inference, unseen)


METHOD = Method(
    settings=CmsSettings,
    title="CMS",
    model=Cms,
    cluster=cluster,
    cluster_unseen=cluster_unseen,
    shifts=True,
    protocols={
        "paper": {
            "loss.denominator": "paper",
            "loss.detach_norm": False,
            "head.kind": "paper",
            "bank": "images",
        },
        "reference": {
            "loss.denominator": "reference",
            "loss.detach_norm": True,
            "head.kind": "bottleneck",
            "bank": "views",
        },
    },
)
