"""Contrastive mean-shift learning (CMS, CVPR 2024), the method of this package.

Training: each view's embedding v is moved one mean-shift step toward its neighbors in the bank, z;
the contrastive loss of z over all images and the supervised loss of v over the labeled ones train
the tail and the head (section 4.2). K and the snapshot are chosen on the validation images (4.3).
Inference: shift until the labeled accuracy stops rising, cut Ward's tree at K (4.4, Algorithm 1).

n training images, B of a batch, b this process's share of it, D entries of an embedding, k
neighbors, M unseen images.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.inference import infer_inductive
from shoal.clustering.mean_shift import NeighborAttention, ShiftSettings, find_neighbors, shift
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import similarities
from shoal.encoders.head import Head, HeadSettings, compact, expand
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
from shoal.training.collapse import collapse_statistics
from shoal.training.losses import GcdLossSettings, contrastive_loss, supervised_loss
from shoal.training.model import Batch, Epoch, Model, TaskShape

BankKind = Literal["images", "views"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSettings(GcdLossSettings):
    """The same with the variants of CMS; the defaults are the paper's for fine-grained images."""

    temperature: float = 0.25
    """τ_u of the contrastive mean-shift loss."""
    denominator: Literal["paper", "reference"] = "paper"
    """Whom a row is contrasted with. 'paper': equation 6, all others, the positive too; equation 7,
    all others but the positives. 'reference', the released code: the two the other way round."""
    supervised_input: Literal["embedding", "shifted"] = "embedding"
    """What the supervised loss sees: v, or the mean-shifted z (an ablation of the paper)."""
    detach_norm: bool = False
    """Let no gradient through the length of z, as in the released code; the paper normalizes
    plainly. The loss then also pulls a view toward its own z, and so toward its neighbors, while
    its positive is nearer than its negatives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CmsSettings(TrainedSettings):
    """Everything that can be set; `recipes/cms` holds the paper's values for its benchmarks.

    `inference` is Algorithm 1; its `shift` is that of training too, and its `rule` estimates K in
    both.
    """

    head: HeadSettings = field(default_factory=HeadSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    bank: BankKind = "images"
    """What the bank holds: an un-augmented embedding per image, or two random views of each
    (released code), which are new in every epoch: `training.views.pool` has to be null."""

    def __post_init__(self) -> None:
        shift = self.inference.shift
        if self.bank == "images":
            return
        if (shift.kernel, shift.retrieval) != ("knn", "nearest"):
            raise UsageError("bank 'views' goes with the k nearest only; use bank 'images'")
        if self.training.views.pool is not None:
            raise UsageError(
                "bank 'views' needs new views; set training.views.pool to null, or bank to images"
            )


@dataclass(frozen=True, kw_only=True)
class Bank:
    """Detached embeddings in compact form; searches and means in it are those of the full
    embeddings, exactly."""

    rows: Tensor
    """(N, R), or (2N, R) for views: view 1 of all images, then view 2."""
    basis: Tensor | None
    """(D, R) from compact to full embeddings; None where they are the same."""
    kind: BankKind = "images"

    def neighbors(
        self,
        views: Tensor,
        images: Tensor,
        settings: ShiftSettings,
        generator: torch.Generator | None = None,
    ) -> Neighbors:
        """The neighbors of `views` (B, D), each a view of the image `images` (B,), its own image
        left out.

        In a bank of views the nearest row is dropped instead, whatever it is, as the released code
        does.
        """
        queries = compact(views.detach(), self.basis)  # (B, R)
        if self.kind == "views":
            lists = k_nearest(queries, self.rows, settings.n_neighbors + 1, exact=False)
            return Neighbors(lists.indices[:, 1:], lists.similarities[:, 1:])
        return find_neighbors(
            queries, self.rows, settings, exclude=images, exact=False, generator=generator
        )

    def shift(
        self,
        views: Tensor,
        neighbors: Neighbors,
        settings: ShiftSettings,
        *,
        attention: NeighborAttention | None = None,
        detach_norm: bool = False,
    ) -> Tensor:
        """Move `views` (B, D) one step toward their neighbors; gradients flow through the views
        only."""
        used = neighbors.indices[:, : settings.list_length(len(self.rows))]
        near = expand(self.rows[used].flatten(0, 1), self.basis)  # (B*k, D)
        positions = torch.arange(used.numel(), device=used.device).view(used.shape)
        listed = Neighbors(positions, neighbors.similarities[:, : used.shape[1]])
        return shift(views, near, listed, settings, attention=attention, detach_norm=detach_norm)


class Cms(Model[CmsSettings]):
    """Equations 5 to 8: λ · L_SC(v) + (1 - λ) · L_CMS(z), and the bank V that neighbors are looked
    up in."""

    def __init__(self, encoder: Encoder, settings: CmsSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.shift = settings.inference.shift
        self.head = Head(encoder.feature_dim, settings.head)
        self.attention: NeighborAttention | None = None
        if self.shift.aggregation == "attention":
            self.attention = NeighborAttention(settings.head.dim)
        self.bank: Bank | None = None
        # Random neighbors are drawn by the host.
        self.is_recordable = self.shift.retrieval == "nearest"

    def check(self) -> None:
        """Refuse fewer images than a view has neighbors."""
        n_images = self.shape.n_images
        n_rows = 2 * n_images if self.settings.bank == "views" else n_images
        others = n_rows - 1
        if self.shift.kernel == "knn" and self.shift.n_neighbors > others:
            raise UsageError(
                f"inference.shift.n_neighbors: found {self.shift.n_neighbors} with {n_images} "
                "images to train "
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
        """In as many columns as the bottleneck has; learned attention was trained on full
        embeddings."""
        return embeddings if self.attention is not None else compact(embeddings, self.head.basis())

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Renew the bank: embed every image, or two random views of each, with the networks as they
        are now."""
        basis = self.head.basis()
        embeddings = epoch.embed_views() if self.settings.bank == "views" else epoch.embed()
        rows = compact(embeddings, basis).clone()
        self.bank = Bank(rows=rows, basis=basis, kind=self.settings.bank)
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
        # Both views of an image are given the same ones, "for stable learning" (section 5.3). Every
        # process draws for the whole batch and keeps its own: generators are alike, so each would
        # else draw the same.
        everyone = (batch.gather(views.detach()), batch.gather(batch.images))  # (2B, D), (2B,)
        first, images = (rows.chunk(2)[0] for rows in everyone)  # (B, D), (B,)
        once = bank.neighbors(first, images, self.shift, batch.generator).indices  # (B, k)
        drawn = batch.own(torch.cat([once, once]))  # (2b, k)
        return Neighbors(drawn, similarities(compact(views.detach(), bank.basis), bank.rows, drawn))

    def identity(self) -> dict[str, object]:
        """The settings of head, loss and shift."""
        return {**super().identity(), "shift": to_dict(self.shift)}


def learned_attention(learned: Representation) -> NeighborAttention | None:
    """The learned weights of the neighbors in a mean shift, where there are any."""
    return learned.model.attention if isinstance(learned.model, Cms) else None


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
    return shift_and_cut(
        learned,
        labels,
        settings.inference,
        n_clusters=wanted,
        seed=settings.training.seed,
        device=device,
        attention=learned_attention(learned),
    )


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
    """Algorithm 1 on embeddings (M, D) of unseen images; labeled validation images say when to stop
    shifting."""
    judges = labels[validation]
    inference = infer_inductive(
        unseen,
        learned.embeddings[torch.from_numpy(validation).to(learned.embeddings.device)],
        judges,
        n_clusters_to_use(n_clusters, learned, judges, "validation"),
        settings.inference,
        attention=learned_attention(learned),
        generator=torch.Generator().manual_seed(0),
        device=device,
    )
    return as_discovery(inference, unseen)


METHOD = Method(
    settings=CmsSettings,
    title="CMS",
    model=Cms,
    cluster=cluster,
    cluster_unseen=cluster_unseen,
    shifts=True,
    goes_on_from_trial=True,
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
