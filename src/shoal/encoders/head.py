"""The projection head: features of the encoder in, embeddings on the unit sphere out.

N rows, C entries of a feature, D of an embedding, R of the bottleneck.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSettings:
    """The kind of the head, and how wide it is."""

    kind: Literal["paper", "bottleneck", "mlp"] = "paper"
    """'paper': three linear + GELU pairs and a linear output (section 5.1); the default, which
    label-only validation on CUB-200 prefers. 'bottleneck': the released code's head, two pairs, a
    linear layer down to the bottleneck, and a weight-normed output, so embeddings have its rank
    only. 'mlp': two pairs and a linear output, as methods with a classifier have it."""
    width: int = 2048
    """Width of the hidden layers."""
    dim: int = 768
    """Dimension of the embedding."""
    bottleneck: int = 256
    """Rank of the embeddings of the bottleneck head."""

    def __post_init__(self) -> None:
        for name in ("width", "dim", "bottleneck"):
            if getattr(self, name) < 1:
                raise UsageError(f"head.{name}: found {getattr(self, name)}, expected at least 1")
        if self.kind == "bottleneck" and self.bottleneck > self.dim:
            raise UsageError(
                f"head.bottleneck: found {self.bottleneck}, wider than the embedding "
                f"({self.dim}); lower it"
            )

    def in_words(self) -> str:
        """The kind of the head in words, for under a table."""
        if self.kind == "bottleneck":
            return f"bottleneck of {self.bottleneck} (released code)"
        return self.kind


class Head(nn.Module):
    """A projection head; every embedding equals `compact embedding @ basis.T`, and `basis` has
    orthonormal columns.

    Searches and trees may therefore run on the compact embeddings: all dot products and distances
    are the same. The paper's head has full rank, so its compact embedding is the embedding.
    """

    def __init__(self, feature_dim: int, settings: HeadSettings | None = None) -> None:
        super().__init__()
        self.settings = settings = settings or HeadSettings()
        has_bottleneck = settings.kind == "bottleneck"
        widths = [feature_dim] + [settings.width] * (3 if settings.kind == "paper" else 2)
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(widths):
            layers += [nn.Linear(n_in, n_out), nn.GELU()]
        n_last = settings.bottleneck if has_bottleneck else settings.dim
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], n_last))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                # The released code draws from N(0, 0.02²) whatever the width, cut at ±2. The
                # paper's head keeps the scale of its features instead, cut at two standard
                # deviations: where outputs are short, the gradient through their normalization is
                # huge, and the first step throws all embeddings onto one point.
                std = 0.02 if has_bottleneck else (2 / layer.in_features) ** 0.5
                limit = 2.0 if has_bottleneck else 2 * std
                nn.init.trunc_normal_(layer.weight, std=std, a=-limit, b=limit)
                nn.init.zeros_(layer.bias)
        self.output: nn.Parameter | None = None
        if has_bottleneck:
            self.output = nn.Parameter(torch.empty(settings.dim, settings.bottleneck))
            nn.init.kaiming_uniform_(self.output, a=5**0.5)

    def forward(self, features: Tensor) -> Tensor:
        """Project features (N, C) to unit embeddings (N, D), in float32 whatever the precision of
        the layers."""
        hidden = self.layers(features).float()  # (N, D) or (N, R)
        if self.output is None:
            return unit(hidden)
        with torch.autocast(features.device.type, enabled=False):
            return unit(F.linear(unit(hidden), self._unit_output()))  # (N, D)

    def basis(self) -> Tensor | None:
        """The orthonormal columns (D, R) in whose span all embeddings lie; None where they have
        full rank.

        With W the output weight and Q R = W its QR decomposition, W h = Q (R h): Q is the basis, R
        h the compact embedding, and R' R = W' W, so R is the Cholesky factor of W' W up to the
        signs of its rows.
        """
        if self.output is None:
            return None
        basis: Tensor = torch.linalg.qr(self._unit_output().detach().double())[0].float()
        return basis

    def _unit_output(self) -> Tensor:
        assert self.output is not None
        return F.normalize(
            self.output, dim=1
        )  # each row has length 1: weight norm with its gain fixed at 1


def unit(rows: Tensor) -> Tensor:
    """Scale rows (N, D) to length 1. A row of zeros has no direction: it stays, and no gradient
    comes back from it.

    A view on which the encoder is silent would otherwise be divided by next to nothing, and its
    gradient be all of the step's.
    """
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # (N, 1)
    is_zero = length == 0
    return torch.where(is_zero, rows.detach(), rows / torch.where(is_zero, 1.0, length))


def compact(embeddings: Tensor, basis: Tensor | None) -> Tensor:
    """Express embeddings (N, D) in the basis, (N, R); the same tensor where there is none."""
    return embeddings if basis is None else embeddings @ basis


def expand(compact_embeddings: Tensor, basis: Tensor | None) -> Tensor:
    """Undo `compact`."""
    return compact_embeddings if basis is None else compact_embeddings @ basis.T
