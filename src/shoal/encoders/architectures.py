"""Architectures of the transformers library that can be split into trunk and tail.

Paths are attributes of the model, or of its `vision_model`. B images, T tokens, C channels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Feature = Literal["class token", "pooled", "mean"]
"""Which output of a model is its feature: the class token, its pooled output, or the mean over all
tokens."""

Arguments = dict[str, Tensor | tuple[int, int] | tuple[Tensor, Tensor] | bool]
"""Keyword arguments of a module."""

Inputs = Callable[[Tensor], Arguments]
"""A function from images (B, 3, S, S) to the other arguments of a model."""

FIRST = "[first]"
MEAN = "[mean]"
FLAT = "[flat]"
"""Steps of a finish that are not modules of the model: the first token, the mean over tokens or
positions, flattening."""

BLOCK_LISTS = ("layers", "layer", "encoder.layers", "encoder.layer", "model.layer")
"""Paths of a transformer's blocks; they differ by model and by version of the library."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """How to split a model into stem, blocks and finish, each a sequence of modules."""

    feature: Feature = "pooled"
    """The output that the finish must equal; `split_model` checks it."""
    stem: tuple[str, ...] = ("embeddings",)
    blocks: tuple[str, ...] = BLOCK_LISTS
    """Possible paths of the list of blocks or stages; the first that exists is used."""
    stage: str | None = None
    """The list of blocks inside a stage; None if the blocks are in one list."""
    before: str | None = None
    """What a stage runs before its first block, if it has it."""
    after: str | None = None
    """What a stage runs after its last block, if it has it."""
    finish: tuple[str, ...] = ()
    trains_finish: bool = False
    """Whether the finish is trained with the tail: a head convolution is, a final norm is not."""
    context: Callable[["PreTrainedModel"], nn.Module] | None = None
    """Builds the module that computes the other arguments of the blocks from their tokens."""
    inputs: Callable[["PreTrainedModel"], Inputs] = lambda model: plain_inputs
    """Builds the function from images to the model's other arguments."""
    model_class: str = "AutoModel"
    """The library's class of this model's image encoder."""

    @property
    def unused(self) -> tuple[str, ...]:
        """Parts of the names of weights that no feature depends on; a file may lack them."""
        if self.feature == "class token":
            return ("mask_token", "pooler")
        return ("mask_token",)


class Grid(nn.Module):
    """Computes the side of the square of tokens (Swin)."""

    def forward(self, tokens: Tensor) -> Arguments:
        """Return the arguments of a block for tokens (B, T, C)."""
        side = math.isqrt(tokens.shape[1])
        return {"input_dimensions": (side, side)}


class Rope(nn.Module):
    """Computes the rotary position embeddings (DINOv3)."""

    def __init__(self, model: "PreTrainedModel") -> None:
        super().__init__()
        self.rotations = model.rope_embeddings
        self.patch = model.config.patch_size
        self.n_others = 1 + model.config.num_register_tokens

    def forward(self, tokens: Tensor) -> Arguments:
        """Return the arguments of a block for tokens (B, T, C)."""
        side = math.isqrt(tokens.shape[1] - self.n_others) * self.patch
        return {"position_embeddings": self.rotations(tokens.new_empty(1, 3, side, side))}


def plain_inputs(images: Tensor) -> Arguments:
    """Return that position embeddings are interpolated to other image sizes."""
    return {"interpolate_pos_encoding": True}


def unmasked_inputs(model: "PreTrainedModel") -> Inputs:
    """Return a function to the inputs of a masked autoencoder with no patch masked or moved."""
    model.embeddings.config.mask_ratio = 0.0
    patch = model.config.patch_size

    def inputs(images: Tensor) -> Arguments:
        order = torch.arange((images.shape[-1] // patch) ** 2, device=images.device)
        return plain_inputs(images) | {"noise": order.expand(len(images), -1)}

    return inputs


CLASS_TOKEN = Architecture(feature="class token", finish=(FIRST, "layernorm"))
CLIP = Architecture(
    stem=("embeddings", "pre_layrnorm"),  # sic
    finish=(FIRST, "post_layernorm"),
    model_class="CLIPVisionModel",
)
SIGLIP = Architecture(finish=("post_layernorm", "head"), model_class="SiglipVisionModel")
SWIN = Architecture(
    blocks=("encoder.layers",),
    stage="blocks",
    after="downsample",
    finish=("layernorm", MEAN),
    context=lambda model: Grid(),
)
CONVNEXT = Architecture(
    blocks=("encoder.stages",),
    stage="layers",
    before="downsampling_layer",
    finish=(MEAN, "layernorm"),
)
RESNET = Architecture(
    stem=("embedder",),
    blocks=("encoder.stages",),
    stage="layers",
    finish=("pooler", FLAT),
)
MOBILENET = Architecture(stem=("conv_stem",), blocks=("layer",), finish=("pooler", FLAT))

ARCHITECTURES: dict[str, Architecture] = {
    "vit": CLASS_TOKEN,
    "deit": CLASS_TOKEN,
    "dinov2": CLASS_TOKEN,
    "dinov2_with_registers": CLASS_TOKEN,
    "dinov3_vit": replace(CLASS_TOKEN, finish=(FIRST, "norm"), context=Rope),
    "vit_msn": CLASS_TOKEN,
    "vit_mae": replace(CLASS_TOKEN, inputs=unmasked_inputs),
    "ijepa": Architecture(feature="mean", finish=("layernorm", MEAN)),
    "clip": CLIP,
    "clip_vision_model": CLIP,
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP,
    "swin": SWIN,
    "swinv2": SWIN,
    "convnext": CONVNEXT,
    "convnextv2": CONVNEXT,
    "dinov3_convnext": replace(
        CONVNEXT,
        stem=(),
        blocks=("model.stages",),
        before="downsample_layers",
        finish=(MEAN, "layer_norm"),
    ),
    "resnet": RESNET,
    "regnet": RESNET,
    "bit": replace(RESNET, finish=("norm", "pooler", FLAT)),
    "efficientnet": Architecture(
        blocks=("encoder.blocks",),
        finish=("encoder.top_conv", "encoder.top_bn", "encoder.top_activation", "pooler", FLAT),
        trains_finish=True,
    ),
    "mobilenet_v1": MOBILENET,
    "mobilenet_v2": replace(MOBILENET, finish=("conv_1x1", "pooler", FLAT), trains_finish=True),
}
"""By the library's `model_type`."""

WHOLE = Architecture()
"""For models that are not in the table: they are not split."""


def architecture_of(config: "PretrainedConfig") -> Architecture:
    """Return the architecture of a model by its configuration."""
    return ARCHITECTURES.get(config.model_type, WHOLE)
