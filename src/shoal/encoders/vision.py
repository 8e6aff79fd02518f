"""An image encoder in two parts, a frozen trunk and a trained tail, and the projection head.

`tail(trunk(images))` equals the model's output. Tokens of a transformer are (B, T, C); those of a
convolutional network are a feature map (B, C, H, W). The head projects features to embeddings on
the unit sphere.

Shapes: B images, T tokens, C channels of a token or dimensions of a feature, N rows, D of an
embedding, R of the bottleneck.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.encoders.convolution import FoldedConv
from shoal.encoders.engines import TORCH, OpenVINOTrunk, choose_engine, compile_trunk, wanted_engine
from shoal.encoders.weights import digest_weights
from shoal.errors import UsageError
from shoal.settings import Count

MIN_SIZE = 8

# Side of the largest images that an encoder may get
MAX_SIZE = 4096

# Images that go through a trunk together on a CPU. A batch of 256 images at 224 px would need 3 GB
# for feature maps and 0.5 GB for images in float32, and is not faster.
CPU_CHUNK = 32


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


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """Size and normalization of the images that an encoder expects."""

    size: int
    """Height and width in pixels."""
    mean: tuple[float, float, float]
    """Mean of the red, green and blue channel, images scaled to [0, 1]."""
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if not MIN_SIZE <= self.size <= MAX_SIZE or min(self.std) <= 0:
            raise UsageError(
                f"input size: found {self.size} (std {self.std}), expected {MIN_SIZE} to "
                f"{MAX_SIZE:,} pixels (std above 0)"
            )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A model in parts: images -> stem -> blocks -> finish -> features, a tensor each."""

    stem: nn.Module
    blocks: list[nn.Module]
    """Empty for a model whose structure is unknown: the stem is all of it."""
    finish: nn.Module
    feature_dim: int
    is_finish_trained: bool = False
    """Whether the finish is trained with the tail: a head convolution is, a final norm is not."""
    context: nn.Module | None = None
    """A frozen module that the blocks share."""


class Encoder(nn.Module):
    """A model split before its last `n_tail_blocks` blocks into a frozen trunk and a trained tail.

    It is always in evaluation mode: batch-norm statistics stay fixed and dropout stays off during
    training too, so that the trunk's tokens can be cached.
    """

    _mean: Tensor
    _std: Tensor

    def __init__(
        self, name: str, parts: Parts, input_format: InputFormat, n_tail_blocks: int
    ) -> None:
        super().__init__()
        n_blocks = len(parts.blocks)
        if not 0 <= n_tail_blocks <= n_blocks:
            raise UsageError(
                f"n_tail_blocks: found {n_tail_blocks}, expected 0 to {n_blocks}, the blocks of "
                f"{name} that can be trained"
            )
        split = n_blocks - n_tail_blocks
        self.name = name
        self.n_blocks = n_blocks
        self.n_tail_blocks = n_tail_blocks
        self.input_format = input_format
        self.feature_dim = parts.feature_dim
        self.trunk = nn.Sequential(parts.stem, *parts.blocks[:split]).requires_grad_(False)
        self.tail = nn.Sequential(*parts.blocks[split:], parts.finish).requires_grad_(True)
        self.context = None if parts.context is None else parts.context.requires_grad_(False)
        parts.finish.requires_grad_(parts.is_finish_trained and n_tail_blocks > 0)
        for module in list(self.trunk.modules()):
            if isinstance(module, FoldedConv):
                module.freeze()
        # (3, 1, 1) each
        self.register_buffer(
            "_mean", torch.tensor(input_format.mean)[:, None, None], persistent=False
        )
        self.register_buffer(
            "_std", torch.tensor(input_format.std)[:, None, None], persistent=False
        )
        self._wanted_engine = wanted_engine()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Turn normalized images (B, 3, S, S) into features (B, D)."""
        return self.tail(self.trunk(images))

    def run_trunk(self, images: Tensor) -> Tensor:
        """Return the trunk's tokens of normalized images (B, 3, S, S), computed by the engine and
        without gradients."""
        if images.device.type == "cpu" and self._compiled is not None:
            return self._compiled(images)
        chunks = torch.split(images, self.chunk_size(max(1, len(images))))
        return torch.cat([self.trunk(chunk) for chunk in chunks])

    def chunk_size(self, batch_size: int) -> int:
        """Return how many images of a batch are prepared and go through the trunk together."""
        return min(batch_size, CPU_CHUNK) if self.device.type == "cpu" else batch_size

    @property
    def engine(self) -> str:
        return TORCH if self._compiled is None else self._compiled.engine

    @cached_property
    def _compiled(self) -> OpenVINOTrunk | None:
        """The trunk in OpenVINO; None if torch runs it, as on a GPU."""
        if self.device.type != "cpu":
            return None
        engine = self._wanted_engine or choose_engine()[0]
        if engine == TORCH:
            return None
        return compile_trunk(self.trunk, self.tail, self.input_format.size, engine)

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def normalize(self, images: Tensor) -> Tensor:
        """Normalize float images in [0, 1], (B, 3, S, S), as in the model's pretraining."""
        return (images - self._mean) / self._std

    @property
    def device(self) -> torch.device:
        return self._mean.device

    def identity(self) -> dict[str, str | int]:
        """Return what determines the encoder before training.

        The tail's weights are left out: a checkpoint restores them.
        """
        return {
            "engine": self.engine,
            "name": self.name,
            "n_tail_blocks": self.n_tail_blocks,
            "input": repr(self.input_format),
            "weights": digest_weights(self.trunk),
        }
