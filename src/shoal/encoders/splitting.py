"""Split a model of the transformers library into parts, and check the result on one image.

Shapes: B images, T tokens, C channels of a token, D of a feature.
"""

import inspect
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from shoal.encoders.architectures import (
    FIRST,
    FLAT,
    MEAN,
    WHOLE,
    Architecture,
    Arguments,
    Feature,
    Inputs,
    architecture_of,
)
from shoal.encoders.openvino_trunk import probe_images, warn_once
from shoal.encoders.vision import Parts
from shoal.errors import MissingError, UsageError
from shoal.text import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SPLIT_TOLERANCE = 1e-4
"""Largest difference of trunk + tail from the model's own forward on the probe image, relative to
its largest entry."""


class Step(nn.Module):
    """One module of a model, called as the model calls it, from tokens to tokens."""

    def __init__(self, module: nn.Module, context: nn.Module | None = None) -> None:
        super().__init__()
        self.module = module
        # In a tuple, so that the module that all blocks share is not registered in each of them.
        self._context = (context,)
        # No token is masked: other required arguments (masks) are None.
        _, *others = inspect.signature(module.forward).parameters.values()
        self.absent: dict[str, object] = {
            p.name: None
            for p in others
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens that the module computes, without its other outputs."""
        arguments = self.absent
        context = self._context[0]
        if context is not None:
            arguments = arguments | context(tokens)
        return _first(self.module(tokens, **arguments))


class SplitStem(nn.Module):
    """The modules from images to the first tokens; the first one takes the model's inputs."""

    def __init__(self, modules: list[nn.Module], inputs: Inputs) -> None:
        super().__init__()
        self.inputs = inputs
        self.first = modules[0] if modules else nn.Identity()
        self.others = nn.Sequential(*map(Step, modules[1:]))

    def forward(self, images: Tensor) -> Tensor:
        """Turn images (B, 3, S, S) into tokens (B, T, C) or a feature map (B, C, H, W)."""
        arguments = _accepted(self.first, self.inputs(images))
        tokens: Tensor = self.others(_first(self.first(images, **arguments)))
        return tokens


class Pool(nn.Module):
    """The first token, or the mean over tokens or positions."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, tokens: Tensor) -> Tensor:
        """Turn tokens (B, T, C) or a feature map (B, C, H, W) into (B, C)."""
        if self.kind == FIRST:
            return tokens[:, 0]
        return average(tokens)


class Whole(nn.Module):
    """A whole model, from images to features."""

    def __init__(self, model: "PreTrainedModel", inputs: Inputs, feature: Feature) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.feature = feature

    def forward(self, images: Tensor) -> Tensor:
        """Turn images (B, 3, S, S) into features (B, D)."""
        arguments = _accepted(self.model, self.inputs(images))
        out = self.model(pixel_values=images, **arguments)
        hidden: Tensor = out.last_hidden_state
        if self.feature == "class token":
            return hidden[:, 0]
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if self.feature == "mean" or pooled is None:
            return average(hidden)
        return pooled.flatten(1)


def average(tokens: Tensor) -> Tensor:
    """Return the mean (B, C) over tokens (B, T, C) or positions of a feature map (B, C, H, W)."""
    return tokens.mean(dim=(2, 3) if tokens.ndim == 4 else 1)


# Not in inference mode: some models cache tables in their first call, which training must read.
@torch.no_grad()
def split_model(model: "PreTrainedModel", image_size: int) -> Parts:
    """Split a vision model by the table of architectures, so that `tail(trunk(images))` equals its
    own forward.

    A model that is not in the table, or whose parts give another feature for a probe image, is
    used whole: it has no blocks to train, and its own pooling gives the feature. A model that does
    not take images is refused. `image_size` is the side of the images it will see.
    """
    model.eval()
    kind = type(model).__name__
    known = architecture_of(model.config)
    inputs = known.inputs(model)
    whole = Whole(model, inputs, known.feature)
    probe = probe_images(image_size)[:1]
    expected = _run_whole(whole, probe, kind)
    feature_dim = expected.shape[1]
    if known is WHOLE:
        why = f"{kind} is none of the architectures that can be split (docs/encoders.md lists them)"
    else:
        try:
            root = getattr(model, "vision_model", model)
            context = known.context(root) if known.context else None
            parts = Parts(
                stem=SplitStem([attrgetter(path)(root) for path in known.stem], inputs),
                blocks=list(_blocks(root, known, context)),
                finish=nn.Sequential(*(_finish_step(root, path) for path in known.finish)),
                is_finish_trained=known.trains_finish,
                feature_dim=feature_dim,
                context=context,
            )
            features = nn.Sequential(parts.stem, *parts.blocks, parts.finish)(probe)  # (1, D)
            error = (features - expected).abs().max() / expected.abs().max().clamp_min(1e-12)
            if error <= SPLIT_TOLERANCE:
                return parts
            why = f"split into trunk and tail, {kind} differs from its own forward by {error:.1e}"
        except (TypeError, AttributeError, RuntimeError) as problem:
            # Another version of the library may have other names.
            why = f"{kind} could not be split ({one_line(problem, 120)})"
    warn_once(f"encoder: {why}; it is used whole and frozen, only the head is trained")
    return Parts(
        stem=whole,
        blocks=[],
        finish=nn.Identity(),
        is_finish_trained=False,
        feature_dim=feature_dim,
    )


def _run_whole(whole: Whole, probe: Tensor, kind: str) -> Tensor:
    try:
        features: Tensor = whole(probe)
    except Exception as error:  # whatever a model for text, sound or several images raises
        raise UsageError(
            f"encoder: {kind} does not turn images of {probe.shape[-1]} px into features "
            f"({one_line(error, 120)}); use a vision model, such as a ViT, DINOv2, CLIP, Swin, "
            "ConvNeXt or ResNet"
        ) from error
    if not features.isfinite().all():
        raise MissingError(
            f"encoder: the features of {kind} for a plain image are NaN or infinite, so its "
            "weights are damaged; download them again"
        )
    return features


def _blocks(
    root: "PreTrainedModel", known: Architecture, context: nn.Module | None
) -> Iterator[nn.Module]:
    """Return the blocks of all stages; what a stage runs between them is part of a block."""
    found = _first_path(root, known.blocks)
    stages: list[nn.Module] = [found]
    if known.stage is not None:
        stages = list(found)
    for stage in stages:
        blocks = [[block] for block in getattr(stage, known.stage or "", found)]
        blocks[0] = [*_others(stage, known.before), *blocks[0]]
        blocks[-1] += _others(stage, known.after)
        for modules in blocks:
            steps = [Step(module, context) for module in modules]
            yield steps[0] if len(steps) == 1 else nn.Sequential(*steps)


def _others(stage: nn.Module, path: str | None) -> list[nn.Module]:
    """Return what a stage runs before or after its blocks."""
    modules: nn.Module | None = getattr(stage, path or "", None)
    if modules is None:
        return []
    return list(modules) if isinstance(modules, nn.ModuleList) else [modules]


def _finish_step(root: "PreTrainedModel", path: str) -> nn.Module:
    if path in (FIRST, MEAN):
        return Pool(path)
    if path == FLAT:
        return nn.Flatten()
    return Step(attrgetter(path)(root))


def _accepted(module: nn.Module, arguments: Arguments) -> Arguments:
    """Return the arguments that a module takes."""
    names = inspect.signature(module.forward).parameters
    return {name: value for name, value in arguments.items() if name in names}


def _first(out: Tensor | tuple[Tensor, ...]) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


def _first_path(root: "PreTrainedModel", paths: tuple[str, ...]) -> nn.ModuleList:
    """Return the module at the first path that exists."""
    for path in paths:
        with suppress(AttributeError):
            found: nn.ModuleList = attrgetter(path)(root)
            return found
    raise AttributeError(f"no blocks at {', '.join(paths)}")
