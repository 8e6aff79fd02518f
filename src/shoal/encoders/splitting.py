"""A model of the transformers library taken apart, and the proof on one image that nothing was
lost.

B images, T tokens, C channels of a token, D of a feature.
"""

import inspect
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from shoal.distributed import is_main
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
from shoal.encoders.openvino_trunk import warn_once
from shoal.encoders.vision import Parts
from shoal.encoders.weights import in_a_line
from shoal.errors import MissingError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SPLIT_TOLERANCE = 1e-4
"""How far trunk + tail may lie from the model's own forward on the probe image, relative to its
largest entry."""


class Step(nn.Module):
    """One module of a model, called as the model calls it: tokens in, tokens out."""

    def __init__(self, module: nn.Module, context: nn.Module | None = None) -> None:
        super().__init__()
        self.module = module
        # In a tuple: the blocks share it, so it is no part of any of them.
        self._context = (context,)
        self.accepted = _arguments(module)
        # No token is masked, so whatever else a module insists on is given as None.
        _, *others = inspect.signature(module.forward).parameters.values()
        self.absent = {
            p.name: None
            for p in others
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Run the module; what it returns besides tokens is dropped."""
        context = self._context[0]
        given = {} if context is None else _pick(context(tokens), self.accepted)
        return _first(self.module(tokens, **{**self.absent, **given}))


class SplitStem(nn.Module):
    """Images to the first tokens: a model's first module with the arguments it takes, then
    others."""

    def __init__(self, modules: list[nn.Module], inputs: Inputs) -> None:
        super().__init__()
        self.inputs = inputs
        self.first = modules[0] if modules else nn.Identity()
        self.others = nn.Sequential(*map(Step, modules[1:]))
        self.accepted = _arguments(self.first)

    def forward(self, images: Tensor) -> Tensor:
        """Turn images (B, 3, S, S) into tokens (B, T, C) or a feature map (B, C, H, W)."""
        given = self.inputs(images)
        pixels = given.pop("pixel_values")
        tokens: Tensor = self.others(_first(self.first(pixels, **_pick(given, self.accepted))))
        return tokens


class First(nn.Module):
    """The first token."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Turn tokens (B, T, C) into (B, C)."""
        return tokens[:, 0]


class Mean(nn.Module):
    """The mean over tokens (B, T, C) or over the positions of a feature map (B, C, H, W)."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Turn either into (B, C)."""
        return mean_of(tokens)


class Whole(nn.Module):
    """A whole model, images in, feature out."""

    def __init__(self, model: "PreTrainedModel", inputs: Inputs, feature: Feature) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.feature = feature
        self.accepted = _arguments(model)

    def forward(self, images: Tensor) -> Tensor:
        """Turn images (B, 3, S, S) into features (B, D)."""
        out = self.model(**_pick(self.inputs(images), self.accepted | {"pixel_values"}))
        hidden: Tensor = out.last_hidden_state
        if self.feature == "class token":
            return hidden[:, 0]
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        if self.feature == "mean" or pooled is None:
            return mean_of(hidden)
        return pooled.flatten(1)


def mean_of(tokens: Tensor) -> Tensor:
    """The mean over tokens (B, T, C) or over the positions of a feature map (B, C, H, W): (B,
    C)."""
    return tokens.mean(dim=(2, 3) if tokens.ndim == 4 else 1)


def split_model(model: "PreTrainedModel", image_size: int) -> Parts:
    """Take a vision model apart by the table of architectures; `tail(trunk(images))` is then its
    own forward.

    One of an architecture that is not in the table, or that does not come out the same on a probe
    image, is kept whole: it has no blocks to train, and its own pooling gives the feature. A model
    that takes no images is refused. `image_size` is the side of the images it will see.
    """
    model.eval()
    kind = type(model).__name__
    known = architecture_of(model.config)
    inputs = known.inputs(model)
    whole = Whole(model, inputs, known.feature)
    waves = torch.linspace(-1, 1, 3 * image_size * image_size).sin()
    probe = waves.view(1, 3, image_size, image_size)
    own = _run_whole(whole, probe, kind)
    if known is WHOLE:
        why = f"{kind} is none of the architectures that can be split (docs/encoders.md lists them)"
    else:
        try:
            parts = _take_apart(getattr(model, "vision_model", model), known, inputs, own.shape[1])
            error = _difference(parts, probe, own)
            if error <= SPLIT_TOLERANCE:
                return parts
            why = f"split into trunk and tail, {kind} differs from its own forward by {error:.1e}"
        except (TypeError, AttributeError, RuntimeError) as problem:
            # Another version of the library: other names.
            why = f"{kind} could not be split ({in_a_line(problem, 120)})"
    if is_main():
        warn_once(f"encoder: {why}; it is used whole and frozen, only the head is trained")
    return Parts(
        stem=whole,
        blocks=[],
        finish=nn.Identity(),
        is_finish_trained=False,
        feature_dim=own.shape[1],
    )


# Not in inference mode: some models keep tables of their first call, which training must read too.
@torch.no_grad()
def _run_whole(whole: Whole, probe: Tensor, kind: str) -> Tensor:
    try:
        own: Tensor = whole(probe)
    except Exception as error:  # whatever a model raises that wants text, sound, or several images
        raise UsageError(
            f"encoder: {kind} does not turn images of {probe.shape[-1]} px into features "
            f"({in_a_line(error, 120)}); use a vision model, such as a ViT, DINOv2, CLIP, Swin, "
            "ConvNeXt or ResNet"
        ) from error
    if not own.isfinite().all():
        raise MissingError(
            f"encoder: {kind} makes NaN or infinity of a plain image, so its weights are damaged; "
            "get new ones"
        )
    return own


def _take_apart(
    root: "PreTrainedModel", known: Architecture, inputs: Inputs, feature_dim: int
) -> Parts:
    context = None if known.context is None else known.context(root)
    return Parts(
        stem=SplitStem([attrgetter(path)(root) for path in known.stem], inputs),
        blocks=list(_blocks(root, known, context)),
        finish=nn.Sequential(*(_finish_step(root, path) for path in known.finish)),
        is_finish_trained=known.trains_finish,
        feature_dim=feature_dim,
        context=context,
    )


def _blocks(
    root: "PreTrainedModel", known: Architecture, context: nn.Module | None
) -> Iterator[nn.Module]:
    places = (_get_or_none(root, path) for path in known.blocks)
    found = next(place for place in places if place is not None)
    for stage in [found] if known.stage is None else found:
        own: Iterable[nn.Module] = found
        if known.stage is not None:
            own = attrgetter(known.stage)(stage)
        blocks = [[block] for block in own]
        blocks[0] = [*_others(stage, known.before), *blocks[0]]
        blocks[-1] += _others(stage, known.after)
        for modules in blocks:
            steps = [Step(module, context) for module in modules]
            yield steps[0] if len(steps) == 1 else nn.Sequential(*steps)


def _others(stage: nn.Module, path: str | None) -> list[nn.Module]:
    """What a stage runs before or after its blocks, where it has it."""
    modules: nn.Module | None = getattr(stage, path or "", None)
    if modules is None:
        return []
    return list(modules) if isinstance(modules, nn.ModuleList) else [modules]


def _finish_step(root: "PreTrainedModel", path: str) -> nn.Module:
    own: dict[str, nn.Module] = {FIRST: First(), MEAN: Mean(), FLAT: nn.Flatten()}
    return own[path] if path in own else Step(attrgetter(path)(root))


@torch.no_grad()
def _difference(parts: Parts, probe: Tensor, own: Tensor) -> float:
    output: Tensor = nn.Sequential(parts.stem, *parts.blocks, parts.finish)(probe)  # (1, D)
    if output.shape != own.shape:
        return float("inf")
    return float((output - own).abs().max() / own.abs().max().clamp_min(1e-12))


def _arguments(module: nn.Module) -> set[str]:
    return set(inspect.signature(module.forward).parameters)


def _pick(given: Arguments, names: set[str]) -> Arguments:
    return {name: value for name, value in given.items() if name in names}


def _first(out: Tensor | tuple[Tensor, ...]) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


def _get_or_none(root: "PreTrainedModel | nn.Module", path: str) -> nn.ModuleList | None:
    try:
        found: nn.ModuleList = attrgetter(path)(root)
    except AttributeError:
        return None
    return found
