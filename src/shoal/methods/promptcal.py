"""PromptCAL (Zhang et al., CVPR 2023): visual prompts and contrastive affinity learning (CAL).

Training: each block of a ViT reads a few learned tokens, the prompts; a convolutional network,
which has no tokens, reads images with a learned border. First stage: the losses of GCD on the
features and, as discriminative prompt regularization (DPR), on the output of the prompts. Second
stage: a teacher, the moving average of the networks, embeds the same views, and a graph over these
and a memory of earlier ones determines the positives of each view. Inference: semi-supervised
k-means of the features, as in GCD. The trunk runs over every view of every step, and a second time
for the teacher.

Shapes: B images per batch, b of them in this process, of S × S pixels; T tokens of C channels, P
prompts; D dimensions of a feature, X of a projection; M rows of the memory, G = 2B + M nodes of the
graph, of which affinities of the first V are computed; k neighbors.
"""

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.arrays import UNLABELED
from shoal.encoders.vision import Encoder, Head, autocast, unit
from shoal.errors import UsageError
from shoal.methods.gcd import GcdSettings, cluster_by_kmeans, gcd_losses
from shoal.methods.method import Method
from shoal.settings import Count, Fraction, NonNegative, NonNegativeInt, Temperature
from shoal.training.losses import contrastive_loss
from shoal.training.model import Batch, Epoch, Model, TaskShape, Tensors
from shoal.training.train_settings import TrainSettings, ramp_up

# Outputs of the last block for prompts that are averaged to the feature of the prompts
N_ENSEMBLED = 2


def affinities(nodes: Tensor, exists: Tensor, n_first: int, n_neighbors: int) -> Tensor:
    """Return the affinities (V, G) of the first nodes with all unit nodes (G, D).

    Two nodes count once for every node that has both among its nearest, itself and its k neighbors,
    so there must be more than k nodes. With P these counts normalized to rows that sum to 1, an
    affinity is an entry of P P Pᵀ + I, one step of diffusion. Nodes that do not exist yet have no
    affinity; the first V all exist. The counts are integers, so their order does not matter.
    """
    n_nodes = len(nodes)
    n_near = n_neighbors + 1
    with torch.autocast(nodes.device.type, enabled=False):
        closeness = (nodes @ nodes.T).masked_fill(~exists, -torch.inf)  # (G, G)
        near = closeness.topk(n_near, dim=1).indices  # (G, k + 1)
        pairs = (near[:, :, None] * n_nodes + near[:, None, :]).flatten()  # (G·(k + 1)²,)
        votes = exists.float().repeat_interleave(n_near**2)
        counts = (
            torch.zeros(n_nodes**2, device=nodes.device)
            .scatter_add_(0, pairs, votes)
            .view(n_nodes, n_nodes)
        )
        counts.fill_diagonal_(0)
        steps = counts / counts.sum(dim=1, keepdim=True).clamp_min(1)  # P
        diffused = (steps[:n_first] @ steps) @ steps.T  # (V, G)
        diffused.diagonal().add_(1)
        return diffused


def strongest(affinity: Tensor, exists: Tensor, quantile: float) -> Tensor:
    """Return which affinities (V, G) are above a quantile of those above the mean."""
    mean = (affinity * exists).sum() / (exists.sum() * len(affinity))
    # torch.quantile refuses more than 16 million numbers. Positions stay tensors, so that nothing
    # waits for the GPU. Those above the mean come first.
    ordered = affinity.masked_fill(affinity <= mean, torch.inf).flatten().sort().values
    position = quantile * ((affinity > mean).sum() - 1).clamp_min(0).double()
    below = ordered[position.floor().long()]
    above = ordered[position.ceil().long()]
    limit = below.lerp(above, position.frac().to(affinity.dtype))
    return affinity >= limit  # none if no affinity is above the mean


@dataclass(frozen=True, kw_only=True)
class PromptCalSettings(GcdSettings):
    """Settings of PromptCAL; `recipes/promptcal` holds the published values for DINO."""

    n_prompts: Count = 5
    """Learned tokens that each block of a ViT reads."""
    border: Count = 30
    """Width in pixels of the learned border, if an encoder has no tokens."""
    prompt_weight: NonNegative = 0.35
    """Weight of the losses of the prompts' features (DPR)."""
    first_stage: Fraction = 2 / 3
    """The share of all epochs in the first stage; the second has the rest, at least one epoch
    unless the share is 1. Published for fine-grained images: 200 of 300."""
    restarts_lr: bool = False
    """Whether the learning rate follows a cosine in each stage, as published; else one over
    both."""
    momentum: Fraction = 0.999
    """Momentum of the teacher."""
    memory_size: Count = 4096
    n_neighbors: Count = 5
    """Neighbors of a node in the graph, itself not counted."""
    quantile: Fraction = 0.8
    """Positives have an affinity above this quantile of those over the mean."""
    n_negatives: Count = 1024
    """Random rows of the memory in the denominator, new in each step."""
    affinity_temperature: Temperature = 0.07
    affinity_weight: Fraction = 0.6
    """w: weight of the positives of the graph in the unsupervised losses after its ramp; InfoNCE
    has 1 - w."""
    affinity_epochs: NonNegativeInt = 2
    """Epochs of the second stage in which w increases; in a short one half of them."""

    @property
    def n_first(self) -> int:
        """Epochs of the first stage."""
        epochs = self.training.epochs
        if self.first_stage == 1:
            return epochs
        return min(round(self.first_stage * epochs), epochs - 1)

    def affinity_weight_at(self, epoch: int) -> float:
        n_epochs = min(self.affinity_epochs, (self.training.epochs - self.n_first) // 2)
        return self.affinity_weight * ramp_up(epoch - self.n_first, n_epochs)


class TokenPrompts(nn.Module):
    """Learned tokens for each block, inserted behind the class token."""

    def __init__(self, n_blocks: int, n_prompts: int, n_channels: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(n_blocks, n_prompts, n_channels) * 0.02)

    def forward(self, images: Tensor, trunk: nn.Sequential, tail: nn.Sequential) -> Tensors:
        """Return features (b, D) of images (b, 3, S, S), and those of the prompts."""
        stem, *blocks, finish = [*trunk, *tail]
        tokens = stem(images)  # (b, T, C)
        prompts = tokens[:, :0]
        for block, learned in zip(blocks, self.tokens, strict=True):
            prompts = learned.to(tokens.dtype).expand(len(tokens), -1, -1)  # (b, P, C)
            out = block(torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], dim=1))
            sizes = [1, prompts.shape[1], tokens.shape[1] - 1]
            first, prompts, rest = out.split(sizes, dim=1)
            tokens = torch.cat([first, rest], dim=1)
        # Each prompt is normalized separately before averaging.
        ensembled = [finish(prompt) for prompt in prompts[:, :N_ENSEMBLED].split(1, dim=1)]
        return {"features": finish(tokens), "prompt_features": torch.stack(ensembled).mean(dim=0)}


class BorderPrompt(nn.Module):
    """A learned border, initially 0, that is added to every image."""

    positions: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        is_border = torch.ones(size, size, dtype=torch.bool)
        is_border[width : size - width, width : size - width] = False
        self.register_buffer("positions", is_border.flatten().nonzero()[:, 0], persistent=False)
        self.border = nn.Parameter(torch.zeros(3, len(self.positions)))

    def forward(self, images: Tensor, trunk: nn.Sequential, tail: nn.Sequential) -> Tensors:
        """Return features (b, D) of images (b, 3, S, S)."""
        canvas = self.border.new_zeros(3, images.shape[2] * images.shape[3]).index_copy(
            1, self.positions, self.border
        )
        return {"features": tail(trunk(images + canvas.view(1, *images.shape[1:])))}


def make_prompts(encoder: Encoder, *, n_prompts: int, border: int) -> TokenPrompts | BorderPrompt:
    """Return token prompts for a plain transformer, a border for any other encoder.

    Blocks that compute arguments from their number of tokens (`context`) cannot take more tokens.
    """
    size = encoder.input_format.size
    if encoder.n_blocks and encoder.context is None:
        with torch.no_grad():
            tokens = encoder.trunk[0](torch.zeros(1, 3, size, size, device=encoder.device))
        if tokens.ndim == 3:
            return TokenPrompts(encoder.n_blocks, n_prompts, tokens.shape[2])
    return BorderPrompt(size, min(border, size // 4))


class PromptCal(Model):
    """GCD's losses with prompts, then contrastive affinity learning with a teacher."""

    reads_images = True
    memory_labels: Tensor
    n_remembered: Tensor

    def __init__(self, encoder: Encoder, settings: PromptCalSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        self.prompts = make_prompts(encoder, n_prompts=settings.n_prompts, border=settings.border)
        # Prefixes of the outputs that have losses, with their weights: features, and those of the
        # prompts if these are tokens
        self.kinds = {"": 1.0}
        if isinstance(self.prompts, TokenPrompts):
            self.kinds["prompt_"] = settings.prompt_weight
        self.heads = nn.ModuleDict(
            {f"{kind}head": Head(encoder.feature_dim, settings.head) for kind in self.kinds}
        )
        # The blocks of some encoders share a context, which the teacher uses too.
        shared = {id(encoder.context): encoder.context}
        self.teacher = copy.deepcopy(self.parts, shared).requires_grad_(False)
        n_rows = settings.memory_size
        for kind in self.kinds:
            self.register_buffer(f"{kind}memory", torch.zeros(n_rows, encoder.feature_dim))
        self.register_buffer("memory_labels", torch.full((n_rows,), UNLABELED))
        self.register_buffer("n_remembered", torch.zeros(1, dtype=torch.long))

    @property
    def parts(self) -> nn.ModuleDict:
        """The trained parts, of which the teacher has copies."""
        return nn.ModuleDict(
            {"tail": self.encoder.tail, "prompts": self.prompts, "heads": self.heads}
        )

    def check(self) -> None:
        """Refuse more neighbors than a view has in a batch: the memory is empty at first."""
        n_views = 2 * self.settings.training.batch_size
        if self.settings.n_neighbors >= n_views:
            raise UsageError(
                f"n_neighbors: found {self.settings.n_neighbors} with {n_views} views in a batch, "
                "expected fewer; lower it, or raise training.batch_size"
            )

    def forward(self, inputs: Tensor) -> Tensors:
        """Return unit features (b, D) and projections (b, X) of images (b, 3, S, S), and those of
        the prompts."""
        return self.run(self.parts, inputs)

    def run(self, parts: nn.ModuleDict, images: Tensor) -> Tensors:
        """Return the outputs of the trained parts, or of the teacher's."""
        features = parts["prompts"](images, self.encoder.trunk, parts["tail"])
        outputs = {name: unit(rows.float()) for name, rows in features.items()}
        for kind in self.kinds:
            head = parts.get_submodule(f"heads.{kind}head")
            outputs[f"{kind}projections"] = head(features[f"{kind}features"])
        return outputs

    def represent(self, inputs: Tensor) -> Tensor:
        return self.prompts(inputs, self.encoder.trunk, self.encoder.tail)["features"]

    def lr_at(self, epoch: int, settings: TrainSettings) -> float:
        n_first = self.settings.n_first
        if not self.settings.restarts_lr:
            return settings.lr_at(epoch)
        if epoch < n_first:
            return replace(settings, epochs=n_first).lr_at(epoch)
        return replace(settings, epochs=settings.epochs - n_first).lr_at(epoch - n_first)

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        if epoch.number == self.settings.n_first:
            self._update_teacher(momentum=0.0)
        return {}

    @torch.no_grad()
    def _run_teacher(self, batch: Batch) -> None:
        """Run the teacher over the views, and choose the rows (M,) of the memory that are filled,
        and those that are negatives, for this step."""
        with autocast(self.device):
            outputs = self.run(self.teacher, batch.inputs)
        self.teacher_outputs = {name: batch.gather(rows) for name, rows in outputs.items()}
        n_rows = self.settings.memory_size
        sampled = torch.randperm(n_rows, generator=batch.generator)[: self.settings.n_negatives]
        sampled = sampled.to(self.device, non_blocking=True)
        self.is_filled = torch.arange(n_rows, device=self.device) < self.n_remembered
        is_sampled = torch.zeros_like(self.is_filled).index_fill(0, sampled, True)
        self.is_negative = is_sampled & self.is_filled

    def loss(self, batch: Batch) -> Tensors:
        """Return the weighted losses of the features and of the prompts, and their terms."""
        is_second = batch.epoch >= self.settings.n_first
        if is_second:
            self._run_teacher(batch)
        losses: Tensors = {}
        total = torch.zeros((), device=self.device)
        for kind, weight in self.kinds.items():
            views = batch.gather(batch.outputs[f"{kind}projections"])  # (2B, X)
            if is_second:
                terms = self.cal_losses(batch, kind, views)
            else:
                terms = gcd_losses(views, batch.labels, self.settings.loss)
            total = total + weight * terms["loss"]
            prefix = "loss_prompt" if kind else "loss"
            losses |= {name.replace("loss", prefix, 1): value for name, value in terms.items()}
        return losses | {"loss": total}

    def cal_losses(self, batch: Batch, kind: str, views: Tensor) -> Tensors:
        """Return λ · supervised loss against the teacher + (1 - λ) · ((1 - w) · InfoNCE + w ·
        affinity loss), and the terms, of projections (2B, X)."""
        loss = self.settings.loss
        contrastive = contrastive_loss(views, loss.temperature)
        is_labeled = batch.labels != UNLABELED
        pairs = is_labeled[:, None] & is_labeled  # (2B, 2B)
        same = pairs & (batch.labels[:, None] == batch.labels)
        teacher = self.teacher_outputs[f"{kind}projections"]
        supervised = contrast(views, teacher, same, pairs & ~same, loss.supervised_temperature)
        affinity = self.affinity_loss(batch, kind)
        weight = self.settings.affinity_weight_at(batch.epoch)
        unsupervised = (1 - weight) * contrastive + weight * affinity
        total = loss.supervised_weight * supervised + (1 - loss.supervised_weight) * unsupervised
        return {
            "loss": total,
            "loss_supervised": supervised,
            "loss_contrastive": contrastive,
            "loss_affinity": affinity,
        }

    def affinity_loss(self, batch: Batch, kind: str) -> Tensor:
        """Return the contrastive loss of features (2B, D) with their positives in the graph."""
        settings = self.settings
        features = batch.gather(batch.outputs[f"{kind}features"])  # (2B, D)
        n_views = len(features)
        memory = self.get_buffer(f"{kind}memory")
        nodes = torch.cat([self.teacher_outputs[f"{kind}features"], memory])  # (G, D)
        labels = torch.cat([batch.labels, self.memory_labels])  # (G,)
        exists = F.pad(self.is_filled, (n_views, 0), value=True)  # (G,)
        affinity = affinities(nodes, exists, n_views, settings.n_neighbors)  # (2B, G)
        positives = strongest(affinity, exists, settings.quantile)
        positives = calibrate(positives, batch.labels, labels) & exists
        images = batch.gather(batch.images)  # (2B,)
        positives[:, :n_views] |= images[:, None] == images
        negatives = F.pad(self.is_negative, (n_views, 0), value=True)  # (G,)
        return contrast(features, nodes, positives, negatives, settings.affinity_temperature)

    def after_step(self, batch: Batch) -> None:
        """In the second stage, update the teacher, and store its features of the first view of each
        image in the memory."""
        if batch.epoch < self.settings.n_first:
            return
        self._update_teacher(self.settings.momentum)
        n_rows = self.settings.memory_size
        n_new = min(batch.n_images, n_rows)
        positions = (self.n_remembered + torch.arange(n_new, device=self.device)) % n_rows
        for kind in self.kinds:
            features = self.teacher_outputs[f"{kind}features"]
            self.get_buffer(f"{kind}memory")[positions] = features[:n_new]
        self.memory_labels[positions] = batch.labels[:n_new]
        self.n_remembered += n_new

    @torch.no_grad()
    def _update_teacher(self, momentum: float) -> None:
        values = self.parts.parameters()
        for average, value in zip(self.teacher.parameters(), values, strict=True):
            average.lerp_(value, 1 - momentum)


def calibrate(positives: Tensor, labels: Tensor, node_labels: Tensor) -> Tensor:
    """Return positives (2B, G) with pairs of labeled views (2B,) and nodes (G,) replaced by whether
    their labels are the same."""
    is_known = (labels != UNLABELED)[:, None] & (node_labels != UNLABELED)
    return torch.where(is_known, labels[:, None] == node_labels[None, :], positives)


def contrast(
    views: Tensor, nodes: Tensor, positives: Tensor, negatives: Tensor, temperature: float
) -> Tensor:
    """Return the contrastive loss of views (2B, D) with nodes (G, D), given masks (2B, G) or
    (G,).

    It is the mean over views with a positive; each denominator sums over positives and negatives.
    """
    similarity = views @ nodes.T / temperature  # (2B, G)
    n_positives = positives.sum(dim=1)
    has_positive = n_positives > 0
    # Rows without a positive have weight 0 below, but need a finite value.
    excluded = ~(positives | negatives) & has_positive[:, None]
    log_sums = similarity.masked_fill(excluded, -torch.inf).logsumexp(dim=1)
    losses = log_sums - (similarity * positives).sum(dim=1) / n_positives.clamp_min(1)
    return (losses * has_positive).sum() / has_positive.sum().clamp_min(1)


METHOD = Method(
    settings=PromptCalSettings,
    title="PromptCAL",
    model=PromptCal,
    cluster=cluster_by_kmeans,
)
