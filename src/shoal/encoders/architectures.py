"""The architectures of the transformers library that can be split into trunk and tail: where each
keeps what.

Paths are attributes of the model (of its `vision_model` where it has one). B images, T tokens, C
channels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Feature = Literal["class token", "pooled", "mean"]
"""What of a model's output is its feature: the class token, its own pooled output, or the mean over
all tokens."""

Arguments = dict[str, Tensor | tuple[int, int] | tuple[Tensor, Tensor] | bool]
"""What a module is given by name."""

Inputs = Callable[[Tensor], Arguments]
"""Turns images (B, 3, S, S) into the arguments of a model's forward, `pixel_values` first."""

FIRST = "[first]"
MEAN = "[mean]"
FLAT = "[flat]"
"""Steps of a finish that are no module of the model: the first token, the mean over tokens or
positions, flattening."""

BLOCK_LISTS = ("layers", "layer", "encoder.layers", "encoder.layer", "model.layer")
"""Where the library keeps a transformer's blocks; the place differs by model and by version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """How a model is taken apart: stem, blocks and finish, each a list of modules run one after the
    other."""

    feature: Feature
    """What the finish must come to; the splitting proves it."""
    stem: tuple[str, ...] = ("embeddings",)
    blocks: tuple[str, ...] = BLOCK_LISTS
    """Where the list of blocks, or of stages, may be; the first that is there counts."""
    stage: str | None = None
    """The list of blocks inside a stage; None: the blocks are in one list."""
    before: str | None = None
    """What a stage runs before its first block, where it has it."""
    after: str | None = None
    """What it runs after its last."""
    finish: tuple[str, ...]
    trains_finish: bool = False
    """Whether the finish is trained with the tail; a head convolution is, a final norm is not."""
    context: Callable[["PreTrainedModel"], nn.Module] | None = None
    """Makes the module that tells every block what it needs besides the tokens."""
    inputs: Callable[["PreTrainedModel"], Inputs] = lambda model: plain_inputs
    """Makes the function that turns images into the model's arguments."""
    model_class: str = "AutoModel"
    """The library's class with this model's image half."""

    plain: tuple[str, ...] = ()
    """Norms that files may lack, as those of models pretrained by masking do: they are plain ones
    then, not random."""
    along: tuple[str, ...] = ()
    """What such files hold instead, for their own purpose."""

    @property
    def unused(self) -> tuple[str, ...]:
        """Parts of names of weights that a feature does not depend on: they may be missing in a
        file."""
        return ("mask_token", "pooler") if self.feature == "class token" else ("mask_token",)


class Grid(nn.Module):
    """Tells blocks the side of the square of tokens that they get (Swin)."""

    def forward(self, tokens: Tensor) -> Arguments:
        """The arguments of a block of tokens (B, T, C)."""
        side = math.isqrt(tokens.shape[1])
        return {"input_dimensions": (side, side)}


class Rope(nn.Module):
    """Tells blocks the rotations of their positions (DINOv3)."""

    def __init__(self, model: "PreTrainedModel") -> None:
        super().__init__()
        self.rotations = model.rope_embeddings
        self.patch = model.config.patch_size
        self.n_others = 1 + model.config.num_register_tokens

    def forward(self, tokens: Tensor) -> Arguments:
        """The arguments of a block of tokens (B, T, C)."""
        side = math.isqrt(tokens.shape[1] - self.n_others) * self.patch
        return {"position_embeddings": self.rotations(tokens.new_empty(1, 3, side, side))}


class RelativeBias(nn.Module):
    """Tells blocks the side of the image, and the bias of relative positions that they share
    (BEiT)."""

    def __init__(self, model: "PreTrainedModel") -> None:
        super().__init__()
        self.shared = model.shared_position_bias
        self.patch = model.config.patch_size

    def forward(self, tokens: Tensor) -> Arguments:
        """The arguments of a block of tokens (B, T, C)."""
        side = math.isqrt(tokens.shape[1] - 1)
        given: Arguments = {"resolution": (side * self.patch, side * self.patch)}
        if self.shared is not None:
            given["attention_mask"] = self.shared((side, side), dim_size=tokens.shape[1])
        return given


def plain_inputs(images: Tensor) -> Arguments:
    """Just the pixels; positions are stretched to other image sizes, which at the native size
    changes nothing."""
    return {"pixel_values": images, "interpolate_pos_encoding": True}


def unmasked_inputs(model: "PreTrainedModel") -> Inputs:
    """Inputs of a masked autoencoder with nothing masked, its patches in their own order."""
    model.embeddings.config.mask_ratio = 0.0
    patch = model.config.patch_size

    def inputs(images: Tensor) -> Arguments:
        order = torch.arange(
            (images.shape[-1] // patch) ** 2, device=images.device, dtype=torch.float32
        )
        return plain_inputs(images) | {"noise": order.expand(len(images), -1)}

    return inputs


def patch_inputs(model: "PreTrainedModel") -> Inputs:
    """Inputs of a model that takes patches, each (rows, columns, channels) in one line, and their
    number (SigLIP 2)."""
    patch = model.config.patch_size

    def inputs(images: Tensor) -> Arguments:
        n_images = len(images)
        side = images.shape[-1] // patch
        tiles = images[..., : side * patch, : side * patch].view(
            n_images, 3, side, patch, side, patch
        )
        patches = tiles.permute(0, 2, 4, 3, 5, 1).reshape(n_images, side * side, -1)
        shapes = torch.full((n_images, 2), side, device=images.device)
        mask = torch.ones(n_images, side * side, dtype=torch.long, device=images.device)
        return {"pixel_values": patches, "pixel_attention_mask": mask, "spatial_shapes": shapes}

    return inputs


CLASS_TOKEN = Architecture(feature="class token", finish=(FIRST, "layernorm"))
CLIP = Architecture(
    feature="pooled",
    stem=("embeddings", "pre_layrnorm"),  # CLIP's own spelling
    finish=(FIRST, "post_layernorm"),
    model_class="CLIPVisionModel",
)
SIGLIP = Architecture(
    feature="pooled", finish=("post_layernorm", "head"), model_class="SiglipVisionModel"
)
SIGLIP2 = Architecture(
    feature="pooled",
    finish=("post_layernorm", "head"),
    inputs=patch_inputs,
    model_class="Siglip2VisionModel",
)
SWIN = Architecture(
    feature="pooled",
    blocks=("encoder.layers",),
    stage="blocks",
    after="downsample",
    finish=("layernorm", MEAN),
    context=lambda model: Grid(),
)
CONVNEXT = Architecture(
    feature="pooled",
    blocks=("encoder.stages",),
    stage="layers",
    before="downsampling_layer",
    finish=(MEAN, "layernorm"),
)
RESNET = Architecture(
    feature="pooled",
    stem=("embedder",),
    blocks=("encoder.stages",),
    stage="layers",
    finish=("pooler", FLAT),
)

ARCHITECTURES: dict[str, Architecture] = {
    "vit": CLASS_TOKEN,
    "deit": CLASS_TOKEN,
    "dinov2": CLASS_TOKEN,
    "dinov2_with_registers": CLASS_TOKEN,
    "dinov3_vit": Architecture(feature="class token", finish=(FIRST, "norm"), context=Rope),
    "vit_msn": CLASS_TOKEN,
    "vit_mae": Architecture(
        feature="class token", finish=(FIRST, "layernorm"), inputs=unmasked_inputs
    ),
    "ijepa": Architecture(feature="mean", finish=("layernorm", MEAN)),
    "beit": Architecture(
        feature="pooled",
        finish=("layernorm", "pooler"),
        context=RelativeBias,
        plain=("pooler.layernorm.",),
        along=("layernorm.",),
    ),
    "clip": CLIP,
    "clip_vision_model": CLIP,
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP,
    "siglip2": SIGLIP2,
    "siglip2_vision_model": SIGLIP2,
    "swin": SWIN,
    "swinv2": SWIN,
    "convnext": CONVNEXT,
    "convnextv2": CONVNEXT,
    "dinov3_convnext": Architecture(
        feature="pooled",
        stem=(),
        blocks=("model.stages",),
        stage="layers",
        before="downsample_layers",
        finish=(MEAN, "layer_norm"),
    ),
    "resnet": RESNET,
    "regnet": RESNET,
    "bit": Architecture(
        feature="pooled",
        stem=("embedder",),
        blocks=("encoder.stages",),
        stage="layers",
        finish=("norm", "pooler", FLAT),
    ),
    "efficientnet": Architecture(
        feature="pooled",
        blocks=("encoder.blocks",),
        finish=("encoder.top_conv", "encoder.top_bn", "encoder.top_activation", "pooler", FLAT),
        trains_finish=True,
    ),
    "mobilenet_v1": Architecture(
        feature="pooled", stem=("conv_stem",), blocks=("layer",), finish=("pooler", FLAT)
    ),
    "mobilenet_v2": Architecture(
        feature="pooled",
        stem=("conv_stem",),
        blocks=("layer",),
        finish=("conv_1x1", "pooler", FLAT),
        trains_finish=True,
    ),
    "mobilevit": Architecture(
        feature="pooled", stem=("conv_stem",), finish=("conv_1x1_exp", MEAN), trains_finish=True
    ),
    "mobilevitv2": Architecture(feature="pooled", stem=("conv_stem",), finish=(MEAN,)),
}
"""By the library's `model_type`."""

WHOLE = Architecture(feature="pooled", blocks=(), finish=())
"""One that is not in the table: it is not taken apart."""


def architecture_of(config: "PretrainedConfig") -> Architecture:
    """What is known of a model by its configuration."""
    return ARCHITECTURES.get(config.model_type, WHOLE)
