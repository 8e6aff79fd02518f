"""UNO+ (Fini et al., ICCV 2021; Vaze et al., CVPR 2022, for unlabeled images that may be of known
classes).

Training: a cosine classifier of the encoder's features has the outputs of the known classes, and
the prototypes of a small head those of the novel ones; both are concatenated. The target of a
labeled view is its class, that of an unlabeled one the assignment of its other view by the
Sinkhorn-Knopp algorithm, which divides the unlabeled views of a batch evenly over all outputs.
Several heads are trained together, and as many overclustering heads. Inference: the largest output
of the head with the lowest loss.

Shapes: B images per batch, b of them in this process, C dimensions of a feature, R of a head's
output, K clusters, L of them known, H heads, P prototypes of a head.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.arrays import UNLABELED
from shoal.encoders.vision import Encoder, unit
from shoal.methods.classifier import CosineClassifier, cluster_by_classifier, n_outputs
from shoal.methods.method import Method, TrainedSettings
from shoal.settings import Count, Range
from shoal.training.model import Batch, Epoch, Model, TaskShape, Tensors

# Lower bound of divisors
MIN_SUM = 1e-30

# With a smaller ε, exp((cosine - 1) / ε) underflows.
Scale = Annotated[
    float, Range("a number in [0.02, 10], say 0.05", lambda value: 0.02 <= value <= 10)
]


@dataclass(frozen=True, kw_only=True)
class UnoSettings(TrainedSettings):
    """Settings of UNO+; `recipes/uno` holds the published values."""

    n_heads: Count = 4
    """Number of heads, and of overclustering heads."""
    width: Count = 2048
    """Width of a head's hidden layer."""
    dim: Count = 256
    """Dimension of a prototype."""
    overclustering: Count = 3
    """Ratio of the prototypes of an overclustering head to those of a head."""
    temperature: Scale = 0.1
    """τ: temperature of the predictions."""
    epsilon: Scale = 0.05
    """ε of the Sinkhorn-Knopp algorithm: the smaller, the closer targets are to one-hot."""
    n_rounds: Count = 3
    """Iterations of the Sinkhorn-Knopp algorithm."""


class Heads(nn.Module):
    """H heads: a hidden layer, an output layer, and P prototypes each."""

    def __init__(self, feature_dim: int, n_prototypes: int, settings: UnoSettings) -> None:
        super().__init__()
        n_heads = settings.n_heads
        width = settings.width
        dim = settings.dim
        self.hidden = nn.Parameter(torch.randn(n_heads, feature_dim, width) * feature_dim**-0.5)
        self.out = nn.Parameter(torch.randn(n_heads, width, dim) * (2 / width) ** 0.5)
        self.prototypes = nn.Parameter(torch.randn(n_heads, n_prototypes, dim) * dim**-0.5)

    def forward(self, features: Tensor, only: Tensor | slice = slice(None)) -> Tensor:
        """Return cosines (H, N, P) of unit features (N, C) with the prototypes, in float32; of the
        heads `only` (H',) if these are given."""
        hidden = self.hidden[only]
        # Layer norm instead of UNO's batch norm: predictions do not depend on other images of a
        # batch, and processes that share a batch agree.
        wide = F.layer_norm((features @ hidden).float(), hidden.shape[-1:]).relu()  # (H, N, width)
        rows = (wide @ self.out[only]).float()  # (H, N, R)
        rows = unit(rows.flatten(0, 1)).view_as(rows)
        with torch.autocast(features.device.type, enabled=False):
            return rows @ F.normalize(self.prototypes[only], dim=2).mT


class Uno(Model):
    """Swapped prediction with balanced targets, averaged over heads and overclustering heads."""

    head_losses: Tensor

    def __init__(self, encoder: Encoder, settings: UnoSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        n_novel = n_outputs(shape) - shape.n_known
        self.known = CosineClassifier(encoder.feature_dim, shape.n_known)
        self.heads = Heads(encoder.feature_dim, n_novel, settings)
        self.finer_heads = Heads(encoder.feature_dim, settings.overclustering * n_novel, settings)
        self.register_buffer("head_losses", torch.zeros(settings.n_heads))

    def forward(self, inputs: Tensor) -> Tensors:
        """Return cosines with known classes and prototypes, (b, H·K), of heads and of
        overclustering heads."""
        features = unit(self.encoder.tail(inputs).float())
        known = self.known(features)  # (b, L)
        return {
            "cosines": concatenate(known, self.heads(features)),
            "finer_cosines": concatenate(known, self.finer_heads(features)),
        }

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Reset the losses of the heads, which choose the head that predicts."""
        self.head_losses.zero_()
        return {}

    def loss(self, batch: Batch) -> Tensors:
        clustering = self.swapped_losses(batch, "cosines")  # (H,)
        overclustering = self.swapped_losses(batch, "finer_cosines")  # (H,)
        self.head_losses += clustering.detach()
        return {
            "loss": (clustering.mean() + overclustering.mean()) / 2,
            "loss_clustering": clustering.mean(),
            "loss_overclustering": overclustering.mean(),
        }

    def swapped_losses(self, batch: Batch, name: str) -> Tensor:
        """Return the mean cross-entropy (H,) of each view with its class, or else with the
        assignment of the other view."""
        settings = self.settings
        labels = batch.labels[: batch.n_images]
        rows = batch.gather(batch.outputs[name])  # (2B, H·K)
        cosines = rows.view(2, batch.n_images, settings.n_heads, -1).transpose(1, 2)  # (2, H, B, K)
        is_unlabeled = labels == UNLABELED
        balanced = sinkhorn(cosines.detach(), is_unlabeled, settings.epsilon, settings.n_rounds)
        known = F.one_hot(labels.clamp_min(0), cosines.shape[-1]) * ~is_unlabeled[:, None]  # (B, K)
        targets = balanced.flip(0) + known  # of the two, one is 0 in every row
        predictions = (cosines / settings.temperature).log_softmax(dim=-1)
        losses = -(targets * predictions).sum(dim=-1)  # (2, H, B)
        return losses.mean(dim=(0, 2))

    def predict(self, embeddings: Tensor) -> Tensor:
        """Return the largest output (N,) of the head that had the lowest loss in the last epoch."""
        best = self.head_losses.argmin()[None]  # (1,)
        outputs = concatenate(self.known(embeddings), self.heads(embeddings, best))  # (N, K)
        return outputs.argmax(dim=1)


def sinkhorn(cosines: Tensor, is_counted: Tensor, epsilon: float, n_rounds: int) -> Tensor:
    """Return assignments (…, B, K) of rows to columns by the Sinkhorn-Knopp algorithm.

    Of cosines (…, B, K), the rows `is_counted` (B,) sum to 1, the others to 0, and columns have
    about equal sums: assignments are exp(cosines / ε) with a factor for each row and column.
    """
    shares = ((cosines.float() - 1) / epsilon).exp() * is_counted[:, None]
    for _ in range(n_rounds):
        shares = shares / shares.sum(dim=-2, keepdim=True).clamp_min(MIN_SUM)
        shares = shares / shares.sum(dim=-1, keepdim=True).clamp_min(MIN_SUM)
    return shares


def concatenate(known: Tensor, novel: Tensor) -> Tensor:
    """Return cosines (N, L) with known classes before those (H, N, P) of each head, (N, H · (L +
    P))."""
    return torch.cat([known.expand(len(novel), -1, -1), novel], dim=2).transpose(0, 1).flatten(1)


METHOD = Method(
    settings=UnoSettings,
    title="UNO+",
    model=Uno,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
