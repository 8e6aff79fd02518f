"""Split a model of the transformers library into parts, and check the result on one image.

Paths are attributes of the model, or of its `vision_model`. Shapes: B images, T tokens, C channels
of a token, D of a feature.
"""

import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from shoal.encoders.engines import probe_images, warn_once
from shoal.encoders.vision import Parts
from shoal.errors import MissingError, UsageError, one_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Arguments = dict[str, Tensor | tuple[Tensor, Tensor] | bool | None]

# A step of the finish that is not a module of the model: taking the first token
FIRST = "[first]"

# Paths of a transformer's blocks; they differ by model and by version of the library. The first
# that exists is used.
BLOCK_LISTS = ("layers", "layer", "encoder.layers", "encoder.layer", "model.layer")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How to split a model into stem, blocks and finish (final norm and pooling), each a sequence
    of modules."""

    # If true, the feature is the class token, else the pooled output. The finish must compute it;
    # `split_model` checks this.
    is_class_token: bool = False
    stem: tuple[str, ...] = ("embeddings",)
    finish: tuple[str, ...] = ()
    # Builds the module that computes the other arguments of the blocks from their tokens
    context: Callable[["PreTrainedModel"], nn.Module] | None = None
    # The library's class of this model's image encoder
    model_class: str = "AutoModel"
    # Substrings of the names of weights that the features do not depend on; a file may lack these
    # weights
    unused: tuple[str, ...] = ("mask_token",)


class Rope(nn.Module):
    """Computes the rotary position embeddings (DINOv3)."""

    def __init__(self, model: "PreTrainedModel") -> None:
        super().__init__()
        self.rotations = model.rope_embeddings
        self.patch = model.config.patch_size
        self.n_prefix_tokens = 1 + model.config.num_register_tokens

    def forward(self, tokens: Tensor) -> Arguments:
        """Return the arguments of a block for tokens (B, T, C)."""
        side = math.isqrt(tokens.shape[1] - self.n_prefix_tokens) * self.patch
        return {"position_embeddings": self.rotations(tokens.new_empty(1, 3, side, side))}


CLASS_TOKEN = Architecture(
    is_class_token=True, finish=(FIRST, "layernorm"), unused=("mask_token", "pooler")
)
CLIP = Architecture(
    stem=("embeddings", "pre_layrnorm"),  # sic
    finish=(FIRST, "post_layernorm"),
    model_class="CLIPVisionModel",
)
SIGLIP = Architecture(finish=("post_layernorm", "head"), model_class="SiglipVisionModel")

# By the library's `model_type`
ARCHITECTURES: dict[str, Architecture] = {
    "vit": CLASS_TOKEN,
    "deit": CLASS_TOKEN,
    "dinov2": CLASS_TOKEN,
    "dinov2_with_registers": CLASS_TOKEN,
    "dinov3_vit": replace(CLASS_TOKEN, finish=(FIRST, "norm"), context=Rope),
    "vit_msn": CLASS_TOKEN,
    "clip": CLIP,
    "clip_vision_model": CLIP,
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP,
}

# For models that are not in the table: they are not split
WHOLE = Architecture()


def architecture_of(config: "PretrainedConfig") -> Architecture:
    return ARCHITECTURES.get(config.model_type, WHOLE)


# Largest difference of trunk + tail from the whole model's output for the probe image, relative to
# that output's largest entry
SPLIT_TOLERANCE = 1e-4


class Step(nn.Module):
    """One module of a model, called as the model calls it, from images or tokens to tokens."""

    def __init__(self, module: nn.Module, context: nn.Module | None = None) -> None:
        super().__init__()
        self.module = module
        # In a tuple, so that the module that all blocks share is not registered in each of them.
        self._context = (context,)
        self.others = _inputs(module)
        # No token is masked: other required arguments (masks) are None.
        _, *others = inspect.signature(module.forward).parameters.values()
        self.others |= {
            p.name: None
            for p in others
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens that the module computes, without its other outputs."""
        arguments = self.others
        context = self._context[0]
        if context is not None:
            arguments = arguments | context(tokens)
        out: Tensor | tuple[Tensor, ...] = self.module(tokens, **arguments)
        return out[0] if isinstance(out, tuple) else out


class FirstToken(nn.Module):
    """The first token."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]


class Whole(nn.Module):
    """A whole model, from images to features."""

    def __init__(self, model: "PreTrainedModel", *, is_class_token: bool) -> None:
        super().__init__()
        self.model = model
        self.is_class_token = is_class_token

    def forward(self, images: Tensor) -> Tensor:
        """Turn images (B, 3, S, S) into features (B, D)."""
        out = self.model(pixel_values=images, **_inputs(self.model))
        hidden = out.last_hidden_state
        if self.is_class_token:
            return hidden[:, 0]
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if pooled is None:
            # Over tokens (B, T, C), or positions of a feature map (B, C, H, W).
            return hidden.mean(dim=(2, 3) if hidden.ndim == 4 else 1)
        return pooled.flatten(1)


# Not in inference mode: some models cache tables in their first call, which training must read.
@torch.no_grad()
def split_model(model: "PreTrainedModel", image_size: int) -> Parts:
    """Split a vision model by the table of architectures, so that `tail(trunk(images))` equals the
    model's output.

    A model that is not in the table, or whose parts give another feature for a probe image, is
    used whole: it has no blocks to train, and its own pooling gives the feature. A model that does
    not take images is refused. `image_size` is the side of the images it will see.
    """
    model.eval()
    kind = type(model).__name__
    known = architecture_of(model.config)
    whole = Whole(model, is_class_token=known.is_class_token)
    probe = probe_images(image_size)[:1]
    expected = _run_whole(whole, probe, kind)
    feature_dim = expected.shape[1]
    if known is WHOLE:
        why = (
            f"{kind} is not one of the architectures that can be split (docs/encoders.md lists "
            "them)"
        )
    else:
        try:
            root = getattr(model, "vision_model", model)
            context = known.context(root) if known.context else None
            parts = Parts(
                stem=nn.Sequential(*(Step(attrgetter(path)(root)) for path in known.stem)),
                blocks=[Step(block, context) for block in _blocks(root)],
                finish=nn.Sequential(*(_finish_step(root, path) for path in known.finish)),
                feature_dim=feature_dim,
                context=context,
            )
            features = nn.Sequential(parts.stem, *parts.blocks, parts.finish)(probe)  # (1, D)
            error = (features - expected).abs().max() / expected.abs().max().clamp_min(1e-12)
            if error <= SPLIT_TOLERANCE:
                return parts
            why = f"split into trunk and tail, {kind} gives features that differ by {error:.1e}"
        except (TypeError, AttributeError, RuntimeError) as problem:
            # Another version of the library may have other names.
            why = f"{kind} could not be split ({one_line(problem, 120)})"
    warn_once(f"encoder: {why}; it is used whole and frozen, and only the head is trained")
    return Parts(stem=whole, blocks=[], finish=nn.Identity(), feature_dim=feature_dim)


def _run_whole(whole: Whole, probe: Tensor, kind: str) -> Tensor:
    try:
        features = whole(probe)
        is_random = not torch.equal(whole(probe), features)
    except Exception as error:  # whatever a model for text, sound or several images raises
        raise UsageError(
            f"encoder: {kind} does not turn images of {probe.shape[-1]} px into features "
            f"({one_line(error, 120)}); use a vision model, such as a ViT, DINOv2, CLIP, Swin, "
            "ConvNeXt or ResNet"
        ) from error
    if is_random or not features.isfinite().all():
        raise MissingError(
            f"encoder: the features of {kind} for a probe image are random, NaN or infinite: it "
            "masks images, or its weights are damaged; use another model"
        )
    return features


def _finish_step(root: "PreTrainedModel", path: str) -> nn.Module:
    if path == FIRST:
        return FirstToken()
    return Step(attrgetter(path)(root))


def _inputs(module: nn.Module) -> Arguments:
    """Return the arguments other than images for a module: whether positions are interpolated."""
    taken = {"interpolate_pos_encoding"} & inspect.signature(module.forward).parameters.keys()
    return dict.fromkeys(taken, True)


def _blocks(root: "PreTrainedModel") -> nn.ModuleList:
    for path in BLOCK_LISTS:
        with suppress(AttributeError):
            return attrgetter(path)(root)
    raise AttributeError(f"no blocks at {', '.join(BLOCK_LISTS)}")
