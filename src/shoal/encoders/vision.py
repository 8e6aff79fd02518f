"""An image encoder in two parts: a frozen trunk and a trained tail.

B images, T tokens, C channels of a token, D of a feature. `tail(trunk(pixels))` is the model's own forward. A
transformer's tokens are (B, T, C) and its feature is the class token after the final norm; a convolutional network's
are (B, C, H, W) and its feature is the mean over the places of the last feature map.
"""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from shoal.errors import UsageError

BLOCK_LISTS = ("layers", "layer", "encoder.layers", "encoder.layer", "model.layer")
"""Where the transformers library keeps a vision model's blocks; the place differs by model and by version."""

FINAL_NORMS = ("layernorm", "post_layernorm", "norm")
FIRST_NORMS = ("pre_layrnorm", "pre_layernorm")  # the first is CLIP's own spelling

SPLIT_TOLERANCE = 1e-4
"""How far trunk + tail may lie from the model's own forward on the probe image before the model is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFormat:
    """What an encoder expects its images to look like."""

    size: int
    """Height and width in pixels."""
    mean: tuple[float, float, float]
    """Mean of the red, green and blue channel, images scaled to [0, 1]."""
    std: tuple[float, float, float]
    """Their standard deviation."""

    def __post_init__(self) -> None:
        if self.size < 8:
            raise UsageError(f"input size: found {self.size}, expected at least 8 pixels")
        if min(self.std) <= 0:
            raise UsageError(f"std: found {self.std}, expected numbers above 0")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A model taken apart: pixels -> stem -> blocks -> finish -> feature."""

    stem: nn.Module
    blocks: list[nn.Module]
    finish: nn.Module
    is_finish_trained: bool
    """Whether the finish is trained with the tail: a head convolution is, a transformer's final norm stays frozen."""
    feature_dim: int


@runtime_checkable
class Freezable(Protocol):
    """A module that is faster once it knows that its weights will not change."""

    def freeze(self) -> None:
        """Prepare for weights that never change again."""
        ...


class Encoder(nn.Module):
    """A model split before its last `n_tail_blocks` blocks; only `tail` has parameters that want gradients.

    It is always in evaluation mode: batch-norm statistics and dropout stay off in training too, so that the trunk's
    tokens can be kept and reused.
    """

    def __init__(self, name: str, parts: Parts, input_format: InputFormat, n_tail_blocks: int) -> None:
        super().__init__()
        n_blocks = len(parts.blocks)
        if not 0 <= n_tail_blocks <= n_blocks:
            raise UsageError(
                f"n_tail_blocks: found {n_tail_blocks}, but {name} has {n_blocks} blocks; give 0–{n_blocks}"
            )
        split = n_blocks - n_tail_blocks
        self.name, self.n_blocks, self.n_tail_blocks = name, n_blocks, n_tail_blocks
        self.input_format, self.feature_dim = input_format, parts.feature_dim
        self.trunk = nn.Sequential(parts.stem, *map(Block, parts.blocks[:split])).requires_grad_(False)
        self.tail = nn.Sequential(*map(Block, parts.blocks[split:]), parts.finish).requires_grad_(True)
        parts.finish.requires_grad_(parts.is_finish_trained and n_tail_blocks > 0)
        for module in [module for module in self.trunk.modules() if isinstance(module, Freezable)]:
            module.freeze()
        self.register_buffer("_mean", torch.tensor(input_format.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("_std", torch.tensor(input_format.std).view(1, 3, 1, 1), persistent=False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Turn normalized images (B, 3, S, S) into features (B, D)."""
        features: Tensor = self.tail(self.trunk(images))
        return features

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode, whatever is asked."""
        return super().train(False)

    def normalize(self, images: Tensor) -> Tensor:
        """Scale float images in [0, 1], (B, 3, S, S), to what the model was trained on."""
        mean, std = self.get_buffer("_mean"), self.get_buffer("_std")
        return (images - mean) / std

    @property
    def device(self) -> torch.device:
        """Where the encoder is."""
        return self.get_buffer("_mean").device


class Block(nn.Module):
    """One block, tokens in, tokens out; some want masks too, and some return the tokens in a tuple."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        _, *others = inspect.signature(block.forward).parameters.values()
        # No token is masked, so whatever else a block insists on is given as None.
        self.arguments = {p.name: None for p in others if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty}

    def forward(self, tokens: Tensor) -> Tensor:
        """Run the block."""
        out: Any = self.block(tokens, **self.arguments)
        tokens = out[0] if isinstance(out, tuple) else out
        return tokens


class TokenStem(nn.Module):
    """Patches, class token and positions of a transformer, and its first norm where it has one."""

    def __init__(self, embeddings: nn.Module, first_norm: nn.Module | None) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.first_norm = first_norm if first_norm is not None else nn.Identity()
        self.arguments = _any_size(embeddings)

    def forward(self, images: Tensor) -> Tensor:
        """Turn images (B, 3, S, S) into tokens (B, T, C)."""
        tokens: Tensor = self.first_norm(self.embeddings(images, **self.arguments))
        return tokens


class ClassToken(nn.Module):
    """The class token after the final norm."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, tokens: Tensor) -> Tensor:
        """Turn tokens (B, T, C) into features (B, C)."""
        feature: Tensor = self.norm(tokens[:, 0])
        return feature


def split_transformer(model: Any, image_size: int) -> Parts:
    """Take a vision transformer of the transformers library apart, and prove on one image that nothing was lost.

    Works for the models that are a list of blocks between an `embeddings` module and a final norm with a class token
    in front (ViT, DeiT, DINO, DINOv2, CLIP's vision tower, …); any other is refused.
    """
    root = getattr(model, "vision_model", model)
    blocks, norm = _find(root, BLOCK_LISTS), _find(root, FINAL_NORMS)
    kind = type(model).__name__
    if not isinstance(blocks, nn.ModuleList) or norm is None or not hasattr(root, "embeddings"):
        raise UsageError(
            f"encoder: {kind} has no embeddings, list of blocks and final norm where they were looked for, so it "
            "cannot be split; use a ViT, DeiT, DINO, DINOv2 or CLIP vision model"
        )
    parts = Parts(
        stem=TokenStem(root.embeddings, _find(root, FIRST_NORMS)),
        blocks=list(blocks),
        finish=ClassToken(norm),
        is_finish_trained=False,
        feature_dim=int(model.config.hidden_size),
    )
    error = _split_error(model.eval(), parts, image_size)
    if not error <= SPLIT_TOLERANCE:
        raise UsageError(
            f"encoder: split into trunk and tail, {kind} differs from its own forward by {error:.1e}, expected under "
            f"{SPLIT_TOLERANCE:.0e}; use a ViT, DeiT, DINO, DINOv2 or CLIP vision model"
        )
    return parts


@torch.inference_mode()
def _split_error(model: Any, parts: Parts, image_size: int) -> float:
    """The largest difference to the model's own class token or pooled output, relative to its largest entry."""
    probe = torch.linspace(-1, 1, 3 * image_size * image_size).sin().view(1, 3, image_size, image_size)
    own = model(probe, **_any_size(model))
    try:
        found = parts.finish(nn.Sequential(parts.stem, *map(Block, parts.blocks))(probe))  # (1, D)
    except (TypeError, AttributeError, RuntimeError):  # blocks that want more than tokens
        return float("inf")
    wanted = [own.last_hidden_state[:, 0], getattr(own, "pooler_output", None)]
    return min(_relative_error(found, feature) for feature in wanted if feature is not None)


def _relative_error(found: Tensor, wanted: Tensor) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-12))


def _any_size(module: nn.Module) -> dict[str, bool]:
    """The argument that stretches positions to other image sizes; at the native size it changes nothing."""
    name = "interpolate_pos_encoding"
    return {name: True} if name in inspect.signature(module.forward).parameters else {}


def _find(root: Any, paths: Iterable[str]) -> Any:
    for path in paths:
        found = root
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return found
    return None
