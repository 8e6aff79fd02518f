"""PromptCAL (Zhang et al., CVPR 2023): prompts learned inside of the encoder, and neighbors of a
graph as positives.

Training: each block of a ViT reads a few learned tokens besides its own, the prompts; a
convolutional network, which has no tokens, reads images with a learned border. First stage: the
losses of GCD, of the features and of the prompts that come out. Second stage: a teacher, the moving
average of the networks, embeds the same views, and a graph over them and a memory of earlier ones
says which of them belong together; a view is pulled toward these. Inference: semi-supervised
k-means of the features, as in GCD. The trunk runs over every view of every step, and once more for
the teacher.

B images of a batch, b this process's share of it, D entries of a feature, X of a projection, M rows
of the memory, G = 2B + M nodes of the graph.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from shoal.arrays import UNLABELED
from shoal.clustering.affinities import affinities, strongest
from shoal.encoders.embed import autocast
from shoal.encoders.head import Head, unit
from shoal.encoders.prompts import TokenPrompts, make_prompts
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.gcd import (
    COUNTED_BY,
    GcdSettings,
    clustering_by_kmeans,
    gcd_losses,
    search_by_kmeans,
)
from shoal.methods.method import Method
from shoal.settings import check_numbers
from shoal.training.losses import contrastive_loss
from shoal.training.model import Batch, Epoch, Model, TaskShape
from shoal.training.train_settings import TrainSettings, risen


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptCalSettings(GcdSettings):
    """Everything that can be set; `recipes/promptcal` holds the published values for DINO."""

    n_prompts: int = 5
    """Learned tokens that each block of a ViT reads."""
    border: int = 30
    """Width in pixels of the learned border, where an encoder has no tokens."""
    prompt_weight: float = 0.35
    """How much the losses of the prompts' features count beside those of the features."""
    first_stage: float = 2 / 3
    """The share of all epochs that the first stage has; the second has the rest, one epoch at least
    unless the share is 1. Published for fine-grained images: 200 of 300."""
    restarts_lr: bool = False
    """Let the learning rate fall along a cosine in each stage, as published; else along one over
    both."""
    momentum: float = 0.999
    """How much of the teacher stays in each step."""
    memory_size: int = 4096
    n_neighbors: int = 5
    """Neighbors of a node in the graph, itself not counted."""
    quantile: float = 0.8
    """Affinities are kept above this quantile of those over the mean."""
    n_negatives: int = 1024
    """Rows of the memory, drawn in each step, that views are pushed away from."""
    affinity_temperature: float = 0.07
    affinity_weight: float = 0.6
    """The share of the graph's positives in the unsupervised losses, once it has risen; the other
    view has the rest."""
    affinity_epochs: int = 2
    """Epochs of the second stage in which it rises; in a short one half of them."""

    def __post_init__(self) -> None:
        GcdSettings.__post_init__(self)  # a dataclass with slots has no super() here
        check_numbers(
            self,
            counts=["n_prompts", "border", "memory_size", "n_neighbors", "n_negatives"],
            shares=["first_stage", "momentum", "quantile", "affinity_weight"],
            not_negative=["prompt_weight", "affinity_epochs"],
            temperatures=["affinity_temperature"],
        )

    @property
    def n_first(self) -> int:
        """Epochs of the first stage in a training of so many."""
        epochs = self.training.epochs
        if self.first_stage == 1:
            return epochs
        return min(round(self.first_stage * epochs), epochs - 1)

    def affinity_weight_at(self, epoch: int) -> float:
        """w of an epoch, counted from 0."""
        n_rising = min(self.affinity_epochs, (self.training.epochs - self.n_first) // 2)
        return self.affinity_weight * risen(epoch - self.n_first, n_rising)


class PromptCal(Model[PromptCalSettings]):
    """The losses of GCD through prompts; then positives of a graph, and labels against the
    teacher."""

    reads_images = True
    memory: Tensor
    prompt_memory: Tensor
    memory_labels: Tensor
    n_remembered: Tensor

    def __init__(self, encoder: Encoder, settings: PromptCalSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.prompts = make_prompts(encoder, n_prompts=settings.n_prompts, border=settings.border)
        self.kinds = ["", "prompt_"] if isinstance(self.prompts, TokenPrompts) else [""]
        """Whose losses there are: the features', and the prompts' where these are tokens."""
        self.heads = nn.ModuleDict(
            {f"{kind}head": Head(encoder.feature_dim, settings.head) for kind in self.kinds}
        )
        kept = (
            {} if encoder.context is None else {id(encoder.context): encoder.context}
        )  # the one that is moved
        self.teacher = nn.ModuleDict(
            {name: copy.deepcopy(part, kept) for name, part in self.parts.items()}
        )
        self.teacher.requires_grad_(False)
        n_rows = settings.memory_size
        dim = encoder.feature_dim
        for kind in self.kinds:
            self.register_buffer(f"{kind}memory", torch.zeros(n_rows, dim))
        self.register_buffer("memory_labels", torch.full((n_rows,), UNLABELED))
        self.register_buffer("n_remembered", torch.zeros(1, dtype=torch.long))
        self.taught: dict[str, Tensor] = {}

    @property
    def parts(self) -> dict[str, nn.Module]:
        """What is trained, and what the teacher has of its own."""
        return {"tail": self.encoder.tail, "prompts": self.prompts, "heads": self.heads}

    def check(self) -> None:
        """Refuse more neighbors than a view has in a batch: the memory is empty at first."""
        n_views = 2 * self.settings.training.batch_size
        if self.settings.n_neighbors >= n_views:
            raise UsageError(
                f"n_neighbors: found {self.settings.n_neighbors} with {n_views} views in a batch, "
                "expected fewer; "
                "lower it, or raise training.batch_size"
            )

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Unit features (b, D) and projections of images (b, 3, S, S); the same of the prompts."""
        return self.run(self.parts, inputs)

    def run(self, parts: Mapping[str, Any], images: Tensor) -> dict[str, Tensor]:
        """The outputs of the trained parts, or of the teacher's."""
        features = parts["prompts"](images, self.encoder.trunk, parts["tail"])
        outputs = {name: unit(rows.float()) for name, rows in features.items()}
        for kind in self.kinds:
            outputs[f"{kind}projections"] = parts["heads"][f"{kind}head"](
                features[f"{kind}features"]
            )
        return outputs

    def represent(self, inputs: Tensor) -> Tensor:
        """Images are clustered by their features; heads and the prompts' features are for the
        losses."""
        features: Tensor = self.prompts(inputs, self.encoder.trunk, self.encoder.tail)["features"]
        return features

    def lr_at(self, epoch: int, settings: TrainSettings) -> float:
        """The learning rate of an epoch; that of the second stage may begin anew."""
        n_first = self.settings.n_first
        if not self.settings.restarts_lr:
            return settings.lr_at(epoch)
        if epoch < n_first:
            return replace(settings, epochs=n_first).lr_at(epoch)
        return replace(settings, epochs=settings.epochs - n_first).lr_at(epoch - n_first)

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Begin the second stage: the teacher is what was learned so far. The memory is empty until
        then."""
        if epoch.number == self.settings.n_first:
            self._move_teacher(1.0)
        return {}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The losses of the features and, weighted, of the prompts."""
        is_second = batch.epoch >= self.settings.n_first
        if is_second:
            with torch.no_grad(), autocast(self.device):
                own = self.run({name: self.teacher[name] for name in self.parts}, batch.inputs)
            self.taught = {name: batch.gather(rows) for name, rows in own.items()}  # (2B, …) each
            drawn = torch.randperm(self.settings.memory_size, generator=batch.generator)[
                : self.settings.n_negatives
            ]
            negatives = drawn.to(self.device, non_blocking=True)
        losses: dict[str, Tensor] = {}
        total: Tensor = torch.zeros((), device=self.device)
        for kind, weight in zip(self.kinds, (1.0, self.settings.prompt_weight), strict=False):
            views = batch.gather(batch.outputs[f"{kind}projections"])  # (2B, X)
            if is_second:
                parts = self.second_stage(batch, kind, views, negatives)
            else:
                parts = gcd_losses(views, batch.labels, self.settings.loss)
            total = total + weight * parts["loss"]
            losses |= {
                name.replace("loss", f"loss_{kind}".rstrip("_"), 1): value
                for name, value in parts.items()
            }
        return losses | {"loss": total}

    def second_stage(
        self, batch: Batch, kind: str, views: Tensor, negatives: Tensor
    ) -> dict[str, Tensor]:
        """λ · supervised, against the teacher, + (1 - λ) · ((1 - w) · InfoNCE + w · positives of
        the graph)."""
        settings = self.settings
        loss = self.settings.loss
        contrastive = contrastive_loss(views, loss.temperature)
        is_labeled = batch.labels != UNLABELED
        pairs = is_labeled[:, None] & is_labeled[None, :]  # (2B, 2B)
        same = pairs & (batch.labels[:, None] == batch.labels[None, :])
        taught = self.taught[f"{kind}projections"]
        supervised = contrast(views, taught, same, pairs & ~same, loss.supervised_temperature)
        features = batch.gather(batch.outputs[f"{kind}features"])  # (2B, D)
        drawn = self.affinity_loss(batch, features, kind, negatives)
        share = settings.affinity_weight_at(batch.epoch)
        unsupervised = (1 - share) * contrastive + share * drawn
        total = loss.supervised_weight * supervised + (1 - loss.supervised_weight) * unsupervised
        return {
            "loss": total,
            "loss_supervised": supervised,
            "loss_contrastive": contrastive,
            "loss_affinity": drawn,
        }

    def affinity_loss(self, batch: Batch, features: Tensor, kind: str, negatives: Tensor) -> Tensor:
        """Pull features (2B, D) toward the nodes of the graph that belong to them."""
        settings = self.settings
        n_views = len(features)
        n_rows = self.settings.memory_size
        nodes = torch.cat(
            [self.taught[f"{kind}features"], self.get_buffer(f"{kind}memory")]
        )  # (G, D)
        filled = torch.arange(n_rows, device=nodes.device) < self.n_remembered
        exists = torch.cat([torch.ones_like(filled[:1]).expand(n_views), filled])  # (G,)
        affinity = affinities(nodes, exists, n_views, settings.n_neighbors)  # (2B, G)
        labels = torch.cat([batch.labels, self.memory_labels])  # (G,)
        images = batch.gather(batch.images)  # (2B,)
        positives = (
            calibrate(strongest(affinity, exists, settings.quantile), batch.labels, labels) & exists
        )
        positives[:, :n_views] |= images[:, None] == images[None, :]
        is_drawn = torch.zeros_like(filled).index_fill(0, negatives, True)
        others = torch.cat([exists[:n_views], is_drawn & filled])  # (G,)
        return contrast(
            features, nodes, positives, others & ~positives, settings.affinity_temperature
        )

    def after_step(self, batch: Batch) -> None:
        """In the second stage: let the teacher follow, and remember what it made of the first view
        of each image."""
        if batch.epoch < self.settings.n_first:
            return
        self._move_teacher(1 - self.settings.momentum)
        n_rows = self.settings.memory_size
        n_new = min(batch.n_images, self.settings.memory_size)
        positions = (self.n_remembered + torch.arange(n_new, device=self.device)) % n_rows
        for kind in self.kinds:
            self.get_buffer(f"{kind}memory")[positions] = self.taught[f"{kind}features"][:n_new]
        self.memory_labels[positions] = batch.labels[:n_new]
        self.n_remembered += n_new

    @torch.no_grad()
    def _move_teacher(self, share: float) -> None:
        for name, part in self.parts.items():
            for ours, theirs in zip(
                self.teacher[name].parameters(), part.parameters(), strict=True
            ):
                ours.lerp_(theirs, share)


def calibrate(positives: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Positives (2B, G) with pairs that labels (2B,) and (G,) know of: of one class, or not."""
    is_known = (labels != UNLABELED)[:, None] & (others != UNLABELED)[None, :]
    return torch.where(is_known, labels[:, None] == others[None, :], positives)


def contrast(
    views: Tensor, nodes: Tensor, positives: Tensor, negatives: Tensor, temperature: float
) -> Tensor:
    """Pull views (2B, D) toward their positives among nodes (G, D), push them from their negatives,
    masks (2B, G).

    The mean over the views that have a positive; the denominator of each sums over its positives
    and negatives.
    """
    closeness = views @ nodes.T / temperature  # (2B, G)
    n_positives = positives.sum(dim=1)
    has_any = n_positives > 0
    left_out = (
        ~(positives | negatives) & has_any[:, None]
    )  # rows without a positive: any finite value, weighted 0 below
    spread = closeness.masked_fill(left_out, -torch.inf).logsumexp(dim=1)
    losses = spread - (closeness * positives).sum(dim=1) / n_positives.clamp_min(1)
    return (losses * has_any).sum() / has_any.sum().clamp_min(1)


METHOD = Method(
    settings=PromptCalSettings,
    title="PromptCAL",
    model=PromptCal,
    cluster=clustering_by_kmeans(search_by_kmeans, COUNTED_BY),
)
