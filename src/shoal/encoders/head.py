"""The projection head, from features of the encoder to embeddings on the unit sphere.

Shapes: N rows, C dimensions of a feature, D of an embedding, R of the bottleneck.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.settings import Count, check_ranges


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """Kind and size of the projection head."""

    kind: Literal["paper", "bottleneck", "mlp"] = "paper"
    """'paper': three linear + GELU pairs and a linear output (section 5.1), the default.
    'bottleneck': the head of the released code: two pairs, a linear layer down to the bottleneck,
    and a weight-normed output, so that embeddings have the rank of the bottleneck. 'mlp': two pairs
    and a linear output, for methods with a classifier."""
    width: Count = 2048
    """Width of the hidden layers."""
    dim: Count = 768
    """Dimension of the embedding."""
    bottleneck: Count = 256
    """Rank of the embeddings of the bottleneck head, if `dim` is not smaller."""

    def __post_init__(self) -> None:
        check_ranges(self)


class Head(nn.Module):
    """A projection head from features to unit embeddings."""

    def __init__(self, feature_dim: int, settings: HeadSettings) -> None:
        super().__init__()
        self.settings = settings
        widths = [feature_dim, settings.width, settings.width]
        if settings.kind == "paper":
            widths.append(settings.width)
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(widths):
            layers += [nn.Linear(n_in, n_out), nn.GELU()]
        has_bottleneck = settings.kind == "bottleneck"
        n_last = settings.bottleneck if has_bottleneck else settings.dim
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], n_last))
        for layer in self.layers:
            if not isinstance(layer, nn.Linear):
                continue
            # The head `paper` preserves the scale of the features. With short outputs the gradient
            # of their normalization would be huge, and the first step would move all embeddings to
            # one point. The released code uses a fixed scale.
            std = (2 / layer.in_features) ** 0.5
            limit = 2 * std
            if has_bottleneck:
                std = 0.02
                limit = 2.0
            nn.init.trunc_normal_(layer.weight, std=std, a=-limit, b=limit)
            nn.init.zeros_(layer.bias)
        self.output: nn.Parameter | None = None
        if has_bottleneck:
            self.output = nn.Parameter(torch.empty(settings.dim, settings.bottleneck))
            nn.init.kaiming_uniform_(self.output, a=5**0.5)

    def forward(self, features: Tensor) -> Tensor:
        """Project features (N, C) to unit embeddings (N, D) in float32."""
        hidden = self.layers(features).float()  # (N, D) or (N, R)
        if self.output is None:
            return unit(hidden)
        with torch.autocast(features.device.type, enabled=False):
            # Weight norm with its gain fixed at 1: rows of length 1.
            weight = F.normalize(self.output, dim=1)  # (D, R)
            return unit(F.linear(unit(hidden), weight))  # (N, D)


def unit(rows: Tensor) -> Tensor:
    """Scale rows (N, D) to length 1. A row of zeros stays zero and has no gradient.

    Otherwise a view with zero features would be divided by almost nothing, and its gradient would
    dominate the step.
    """
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # (N, 1)
    is_zero = length == 0
    return torch.where(is_zero, rows.detach(), rows / torch.where(is_zero, 1.0, length))
