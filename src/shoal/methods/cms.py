"""Contrastive mean-shift learning (CMS, CVPR 2024), the method of this package.

Training: each view's embedding v is moved one mean-shift step toward its neighbors in the bank, z; the contrastive
loss of z over all images and the supervised loss of v over the labeled ones train the tail and the head (section 4.2).
K and the snapshot are chosen on the validation images (4.3). Inference: shift until the labeled accuracy stops rising,
cut Ward's tree at K (4.4, Algorithm 1).
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, Unpack

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.mean_shift import NeighborAttention, ShiftSettings
from shoal.clustering.neighbors import Neighbors
from shoal.clustering.similarity import similarities
from shoal.encoders.catalog import DEFAULT_ENCODER, load_encoder
from shoal.encoders.embed import embed
from shoal.encoders.head import Head, HeadSettings, compact
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.method import Discovery, Options, Representation, Task, learn, n_clusters_to_use, to_numpy
from shoal.settings import to_dict
from shoal.training.bank import Bank, BankKind
from shoal.training.losses import LossSettings, contrastive_loss, supervised_loss
from shoal.training.objective import Batch, Objective
from shoal.training.settings import TrainSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class CmsSettings:
    """Everything that can be set; `recipes/` holds the paper's values for its benchmarks."""

    encoder: str = DEFAULT_ENCODER
    n_tail_blocks: int | None = None
    """How many of the encoder's last blocks are trained; None: what the encoder's catalog entry says."""
    input_size: int | None = None
    """Side of the images the encoder sees; None: what it was made for."""
    head: HeadSettings = field(default_factory=HeadSettings)
    training: TrainSettings = field(default_factory=TrainSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    """Algorithm 1; its `shift` is that of training too, and its `rule` estimates K in both."""
    estimate_on: Literal["validation", "collection"] = "validation"
    """Whose labels estimate K: those set aside from the loss, as in the paper, or all, on the final embeddings. Where
    `shoal discover` has a first answer, 'validation' leaves K to that, unless the rule is the paper's."""

    def __post_init__(self) -> None:
        shift = self.inference.shift
        if self.training.bank == "views" and (shift.kernel, shift.retrieval) != ("knn", "nearest"):
            raise UsageError("training.bank 'views' goes with the k nearest only; use bank 'images'")

    def with_seed(self, seed: int) -> Self:
        """The same settings with another seed."""
        return replace(self, training=replace(self.training, seed=seed))


class MeanShiftObjective(Objective):
    """Equations 5 to 8: λ · L_SC(v) + (1 - λ) · L_CMS(z)."""

    def __init__(self, loss: LossSettings, shift: ShiftSettings, dim: int) -> None:
        super().__init__()
        self.loss, self.shift = loss, shift
        self.attention = NeighborAttention(dim) if shift.aggregation == "attention" else None

    def check_images(self, n_images: int, bank: BankKind) -> None:
        """Refuse fewer images than a view has neighbors."""
        others = (n_images if bank == "images" else 2 * n_images) - 1
        if self.shift.kernel == "knn" and self.shift.n_neighbors > others:
            raise UsageError(
                f"inference.shift.n_neighbors: found {self.shift.n_neighbors} with {n_images} images to train on, "
                f"expected at most {others}; lower it, or add images"
            )

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The objective and its two parts."""
        assert batch.bank is not None
        own = batch.bank.shift(
            batch.embeddings,
            self._neighbors(batch, batch.bank),
            self.shift,
            attention=self.attention,
            detach_norm=self.loss.detach_norm,
        )
        shifted = batch.gather(own)  # (2B, D)
        is_reference = self.loss.denominator == "reference"
        unsupervised = contrastive_loss(shifted, self.loss.temperature, with_positive=not is_reference)
        seen = shifted if self.loss.supervised_input == "shifted" else batch.gather(batch.embeddings)
        supervised = supervised_loss(seen, batch.labels, self.loss.supervised_temperature, with_positives=is_reference)
        weight = self.loss.supervised_weight
        total = weight * supervised + (1 - weight) * unsupervised
        return {"loss": total, "loss_supervised": supervised, "loss_shifted": unsupervised}

    def _neighbors(self, batch: Batch, bank: Bank) -> Neighbors:
        """The neighbors of this process's views."""
        if self.shift.retrieval != "random":
            return bank.neighbors(batch.embeddings, batch.images, self.shift)
        # Both views of an image are given the same ones, "for stable learning" (section 5.3). Every process draws for
        # the whole batch and keeps its own: generators are alike, so each would else draw the same.
        everyone = (batch.gather(batch.embeddings.detach()), batch.gather(batch.images))  # (2B, D), (2B,)
        first, images = (rows.chunk(2)[0] for rows in everyone)  # (B, D), (B,)
        once = bank.neighbors(first, images, self.shift, batch.generator).indices  # (B, k)
        drawn = batch.own(torch.cat([once, once]))  # (2b, k)
        return Neighbors(drawn, similarities(compact(batch.embeddings.detach(), bank.basis), bank.rows, drawn))

    def identity(self) -> dict[str, Any]:
        """The settings of loss and shift."""
        return {"method": "cms", "loss": to_dict(self.loss), "shift": to_dict(self.shift)}


def represent(task: Task, settings: CmsSettings, *, device: torch.device, **options: Unpack[Options]) -> Representation:
    """Train tail and head on a task (sections 4.2 and 4.3)."""
    encoder, head, objective = build(settings)
    trained = learn(task, (encoder, head, objective), settings, device=device, **options)
    # Learned attention was trained on full embeddings; everything else is the same, and cheaper, on compact ones.
    basis = head.basis() if objective.attention is None else None
    return Representation(
        embeddings=compact(trained.embeddings, basis),
        embed=lambda pixels: compact(embed(pixels, encoder, head=head), basis),
        n_clusters=trained.validation.n_clusters,
        rule=trained.validation.rule,
        attention=objective.attention,
        metrics=trained.metrics,
        epoch=trained.epoch,
        tokens=trained.tokens,
        pool=trained.pool,
    )


def cluster(
    learned: Representation, labels: Ints, settings: CmsSettings, *, n_clusters: int | None, device: torch.device
) -> Discovery:
    """Shift until the labeled accuracy stops rising, cut Ward's tree at K (section 4.4, Algorithm 1)."""
    found = infer(
        learned.embeddings,
        labels,
        n_clusters_to_use(n_clusters, learned, labels, settings.estimate_on, settings.inference),
        settings.inference,
        attention=learned.attention,
        generator=torch.Generator().manual_seed(settings.training.seed),
        device=device,
        n_shifts=learned.n_shifts,
    )
    return Discovery(
        clusters=found.labels,
        unlinked=found.unlinked,
        n_clusters=found.n_clusters,
        embeddings=to_numpy(learned.embeddings),
        shifted=to_numpy(found.embeddings),
        linkage=found.tree.linkage,
        accuracies=found.accuracies,
        n_shifts=found.n_shifts,
        estimate=found.estimate,
        metrics=learned.metrics,
        epoch=learned.epoch,
    )


def build(settings: CmsSettings) -> tuple[Encoder, Head, MeanShiftObjective]:
    """Load the encoder and make a new head and objective, whose weights depend on the seed alone."""
    encoder = load_encoder(settings.encoder, n_tail_blocks=settings.n_tail_blocks, input_size=settings.input_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.training.seed)
        head = Head(encoder.feature_dim, settings.head)
        return encoder, head, MeanShiftObjective(settings.loss, settings.inference.shift, settings.head.dim)
