"""An image encoder in two parts: a frozen trunk and a trained tail.

B images, T tokens, C channels of a token, D of a feature. `tail(trunk(pixels))` is the model's own
forward. A transformer's tokens are (B, T, C), those of a convolutional network are a feature map
(B, C, H, W).
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from shoal.encoders.engines import TORCH, choose_engine, wanted_engine
from shoal.encoders.openvino_trunk import OpenVINOTrunk, compile_trunk
from shoal.errors import UsageError

N_NUMBERS = 64
"""How many numbers of each weight a checksum looks at, evenly spaced."""

MAX_SIZE = 4096
"""Side of the largest images that an encoder is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFormat:
    """What an encoder expects its images to look like."""

    size: int
    """Height and width in pixels."""
    mean: tuple[float, float, float]
    """Mean of the red, green and blue channel, images scaled to [0, 1]."""
    std: tuple[float, float, float]
    """Their standard deviation."""
    is_bgr: bool = False
    """Whether the channels come blue first; mean and std are in that order then."""

    def __post_init__(self) -> None:
        if self.size < 8:
            raise UsageError(f"input size: found {self.size}, expected at least 8 pixels")
        if self.size > MAX_SIZE:
            raise UsageError(f"input size: found {self.size}, expected at most {MAX_SIZE:,} pixels")
        if min(self.std) <= 0:
            raise UsageError(f"std: found {self.std}, expected numbers above 0")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A model taken apart: pixels -> stem -> blocks -> finish -> feature, each of them one tensor
    in, one out."""

    stem: nn.Module
    blocks: list[nn.Module]
    """None, where a model's structure is not known: then it is all stem."""
    finish: nn.Module
    is_finish_trained: bool
    """Whether the finish is trained with the tail: a head convolution is, a transformer's final
    norm stays frozen."""
    feature_dim: int
    context: nn.Module | None = None
    """What the blocks share, frozen."""


@runtime_checkable
class Freezable(Protocol):
    """A module that is faster once it knows that its weights will not change."""

    def freeze(self) -> None:
        """Prepare for weights that never change again."""
        ...


class Encoder(nn.Module):
    """A model split before its last `n_tail_blocks` blocks; only `tail` has parameters that want
    gradients.

    It is always in evaluation mode: batch-norm statistics and dropout stay off in training too, so
    that the trunk's tokens can be kept and reused.
    """

    def __init__(
        self, name: str, parts: Parts, input_format: InputFormat, n_tail_blocks: int
    ) -> None:
        super().__init__()
        n_blocks = len(parts.blocks)
        if not 0 <= n_tail_blocks <= n_blocks:
            range_ = f"0–{n_blocks}" if n_blocks else "0, because it can only be used whole"
            raise UsageError(
                f"n_tail_blocks: found {n_tail_blocks}, but {name} has {n_blocks} blocks; "
                f"give {range_}"
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
        for module in [module for module in self.trunk.modules() if isinstance(module, Freezable)]:
            module.freeze()
        self.register_buffer(
            "_mean", torch.tensor(input_format.mean).view(1, 3, 1, 1), persistent=False
        )
        self.register_buffer(
            "_std", torch.tensor(input_format.std).view(1, 3, 1, 1), persistent=False
        )
        self._wanted_engine = wanted_engine()
        self._engine: str | None = None  # until the first use on a CPU
        self._compiled: OpenVINOTrunk | None = None
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Turn normalized images (B, 3, S, S) into features (B, D)."""
        features: Tensor = self.tail(self.trunk(images))
        return features

    def run_trunk(self, images: Tensor) -> Tensor:
        """The trunk's tokens of normalized images (B, 3, S, S), by the fastest engine and without
        gradients."""
        self._choose_engine()
        if self._compiled is not None and images.device.type == "cpu":
            return self._compiled(images)
        tokens: Tensor = self.trunk(images)
        return tokens

    @property
    def engine(self) -> str:
        """What `run_trunk` runs the trunk with; torch on a GPU."""
        self._choose_engine()
        return self._engine or TORCH

    def _choose_engine(self) -> None:
        """Choose at the first use on a CPU: OpenVINO need not be loaded for a GPU."""
        if self._engine is not None or self.device.type != "cpu":
            return
        self._engine = self._wanted_engine or choose_engine().engine
        if self._engine != TORCH:
            self._compiled = compile_trunk(
                self.trunk,
                self.tail,
                self.input_format.size,
                self._engine,
                is_wanted=self._wanted_engine is not None,
            )
        if self._compiled is None:
            self._engine = TORCH

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever is asked."""
        return super().train(False)

    def normalize(self, images: Tensor) -> Tensor:
        """Scale float images in [0, 1], (B, 3, S, S), to what the model was trained on."""
        mean = self.get_buffer("_mean")
        std = self.get_buffer("_std")
        return ((images.flip(1) if self.input_format.is_bgr else images) - mean) / std

    @property
    def device(self) -> torch.device:
        """The device of the encoder."""
        return self.get_buffer("_mean").device

    def identity(self) -> dict[str, str | int]:
        """What makes two encoders the same before any training: the tail's own weights come from
        the checkpoint."""
        return {
            "engine": self.engine,
            "name": self.name,
            "n_tail_blocks": self.n_tail_blocks,
            "input": repr(self.input_format),
            "weights": digest_weights(self.trunk),
        }


def digest_weights(module: nn.Module) -> str:
    """A short checksum of frozen weights: of some numbers of each."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        some = value.flatten()[:: max(1, value.numel() // N_NUMBERS)].float().cpu()
        digest.update(f"{name}{tuple(value.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]
