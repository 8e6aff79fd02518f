"""UNO+ (Fini et al., ICCV 2021; as Vaze et al., CVPR 2022, have it, unlabeled images may be of
known classes too).

Training: known classes have a direction each in the encoder's features, novel ones in those of a
small head; both sets of outputs are put side by side. The target of a labeled view is its class,
that of an unlabeled one comes from its other view: Sinkhorn's algorithm shares the unlabeled views
of a batch out evenly over all outputs. Several heads learn at once, and as many with more outputs
beside them. Inference: the largest output of the head with the lowest loss.

B images of a batch, b this process's share of it, C entries of a feature, R of a head's, K
clusters, L of them known, H heads, P prototypes of a head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.arrays import UNLABELED
from shoal.encoders.head import unit
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError
from shoal.methods.classifier import CosineClassifier, cluster_by_classifier, n_outputs
from shoal.methods.method import Method, TrainedSettings
from shoal.settings import check_numbers
from shoal.training.model import Batch, Epoch, Model, TaskShape

LEAST = 1e-30
"""What sums are divided by at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnoSettings(TrainedSettings):
    """Everything that can be set; `recipes/uno` holds the published values."""

    n_heads: int = 4
    """Heads that learn at once, and as many with more outputs; the best of the first answers."""
    width: int = 2048
    """Width of a head's hidden layer."""
    dim: int = 256
    """Length of what a head compares with its prototypes."""
    overclustering: int = 3
    """How many times as many prototypes the heads with more of them have."""
    temperature: float = 0.1
    """τ: what the cosines are divided by."""
    epsilon: float = 0.05
    """The same in a target: the smaller, the closer Sinkhorn's targets are to one cluster each."""
    n_rounds: int = 3
    """Rounds of Sinkhorn's algorithm."""

    def __post_init__(self) -> None:
        check_numbers(self, counts=["n_heads", "width", "dim", "overclustering", "n_rounds"])
        for name in ("temperature", "epsilon"):
            if not 0.02 <= getattr(self, name) <= 10:
                raise UsageError(
                    f"{name}: found {getattr(self, name)}, expected a number in [0.02, 10], say "
                    "0.05"
                )


class Heads(nn.Module):
    """H heads side by side: a hidden layer, and cosines with P prototypes on the sphere that it
    leads to."""

    def __init__(self, feature_dim: int, n_prototypes: int, settings: UnoSettings) -> None:
        super().__init__()
        n_heads = settings.n_heads
        width = settings.width
        dim = settings.dim
        self.hidden = nn.Parameter(torch.randn(n_heads, feature_dim, width) * feature_dim**-0.5)
        self.out = nn.Parameter(torch.randn(n_heads, width, dim) * (2 / width) ** 0.5)
        self.prototypes = nn.Parameter(torch.randn(n_heads, n_prototypes, dim) * dim**-0.5)

    def forward(self, features: Tensor, only: Tensor | None = None) -> Tensor:
        """Cosines (H, N, P) of unit features (N, C), in float32; of some heads where `only` (H',)
        names them."""
        weights = (self.hidden, self.out, self.prototypes)
        hidden, out, prototypes = weights if only is None else (value[only] for value in weights)
        # The norm of each row alone, where UNO has a batch norm: an image's prediction hangs on no
        # other image, and processes that share a batch agree.
        wide = F.layer_norm((features @ hidden).float(), hidden.shape[-1:]).relu()  # (H, N, width)
        rows = (wide @ out).float()  # (H, N, R)
        rows = unit(rows.flatten(0, 1)).view_as(rows)
        with torch.autocast(features.device.type, enabled=False):
            return rows @ F.normalize(prototypes, dim=2).mT


class Uno(Model[UnoSettings]):
    """Swapped predictions with even targets, the mean over heads with as many outputs as clusters
    and with more."""

    head_losses: Tensor

    def __init__(self, encoder: Encoder, settings: UnoSettings, shape: TaskShape) -> None:
        super().__init__(encoder, settings, shape)
        n_novel = n_outputs(shape) - shape.n_known
        self.known = CosineClassifier(encoder.feature_dim, shape.n_known)
        self.heads = Heads(encoder.feature_dim, n_novel, settings)
        self.finer_heads = Heads(encoder.feature_dim, settings.overclustering * n_novel, settings)
        self.register_buffer("head_losses", torch.zeros(settings.n_heads))

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Cosines with known classes and prototypes side by side, (b, H·K), and for the finer
        heads."""
        features = unit(self.encoder.tail(inputs).float())
        known = self.known(features)  # (b, L)
        beside = {"cosines": self.heads, "finer_cosines": self.finer_heads}
        return {
            name: _side_by_side(known, heads(features)).flatten(1) for name, heads in beside.items()
        }

    def begin_epoch(self, epoch: Epoch) -> dict[str, float]:
        """Forget which head was the best."""
        self.head_losses.zero_()
        return {}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The mean of both kinds of heads."""
        coarse, fine = (
            self.swapped_losses(batch, name) for name in ("cosines", "finer_cosines")
        )  # (H,) each
        self.head_losses += coarse.detach()
        return {
            "loss": (coarse.mean() + fine.mean()) / 2,
            "loss_clusters": coarse.mean(),
            "loss_overclustered": fine.mean(),
        }

    def swapped_losses(self, batch: Batch, name: str) -> Tensor:
        """(H,) the mean cross-entropy of each view with its class, or else with the other view's
        target."""
        settings = self.settings
        labels = batch.labels[: batch.n_images]
        rows = batch.gather(batch.outputs[name])  # (2B, H·K)
        cosines = rows.view(2, batch.n_images, settings.n_heads, -1).transpose(1, 2)  # (2, H, B, K)
        is_unlabeled = labels == UNLABELED
        even = sinkhorn(cosines.detach(), is_unlabeled, settings.epsilon, settings.n_rounds)
        known = F.one_hot(labels.clamp_min(0), cosines.shape[-1]) * ~is_unlabeled[:, None]  # (B, K)
        targets = even.flip(0) + known  # an unlabeled view has no class, a labeled one no share
        return (
            -(targets * (cosines / settings.temperature).log_softmax(dim=-1))
            .sum(dim=-1)
            .mean(dim=(0, 2))
        )

    def predict(self, embeddings: Tensor) -> Tensor:
        """The largest output of the head that had the lowest loss in the last epoch."""
        best = self.head_losses.argmin()[None]  # (1,)
        return _side_by_side(self.known(embeddings), self.heads(embeddings, best))[:, 0].argmax(
            dim=1
        )


def sinkhorn(cosines: Tensor, is_counted: Tensor, epsilon: float, n_rounds: int) -> Tensor:
    """Share rows out over columns: each counted row gives 1 in all, and each column gets about as
    much as any other.

    Of cosines (…, B, K), rows `is_counted` (B,); the others give nothing. Columns are made even,
    then rows whole, in turns: in the end of all rounds shares are exp(cosines / ε) with a factor
    for each row and for each column.
    """
    shares = ((cosines.float() - 1) / epsilon).exp() * is_counted[:, None]
    for _ in range(n_rounds):
        shares = shares / shares.sum(dim=-2, keepdim=True).clamp_min(LEAST)
        shares = shares / shares.sum(dim=-1, keepdim=True).clamp_min(LEAST)
    return shares


def _side_by_side(known: Tensor, novel: Tensor) -> Tensor:
    """Cosines (N, L) with known classes before those (H, N, P) of each head: (N, H, L + P)."""
    return torch.cat([known.expand(len(novel), -1, -1), novel], dim=2).transpose(0, 1)


METHOD = Method(
    settings=UnoSettings,
    title="UNO+",
    model=Uno,
    cluster=cluster_by_classifier,
    needs_n_clusters=True,
)
