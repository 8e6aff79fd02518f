"""Weight files: found, read without running any of their code, and renamed where their authors'
names differ."""

import importlib.util
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.errors import MissingError

Weights = dict[str, Tensor]

DINO_NAMES = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
"""Names in DINO's own files, and in files of transformers' ViT; blocks.N is encoder.layer.N, qkv is
split in three."""

WRAPPERS = ("teacher", "state_dict", "model")
PREFIXES = ("module.", "backbone.")
UNSAFE = ("weights_only", "Weights only", "Unsupported global", "WeightsUnpickler")
"""What torch says of a file that holds more than tensors."""


def weights_folder() -> Path:
    """Where weights given by the user are looked for: $SHOAL_WEIGHTS, else
    ~/.cache/shoal/weights."""
    return Path(os.environ.get("SHOAL_WEIGHTS") or "~/.cache/shoal/weights").expanduser()


def package_weights(package: str) -> Path | None:
    """The weights file inside an installed package; None when the package or the file is not
    there."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    files = sorted(Path(spec.submodule_search_locations[0]).glob("models/*.pth"))
    return files[0] if files else None


def read_weights(file: Path | str) -> Weights:
    """Read the tensors of a .safetensors, .pth, .pt or .bin file; a file that wants to run code is
    refused.

    Wrappers of training checkpoints (`{"teacher": …}`) and prefixes (`module.`, `backbone.`) are
    taken off.
    """
    path = Path(file)
    if not path.is_file():
        raise MissingError(f"{path}: no such file; give the path of a weights file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # remarks on files that torch then refuses
            content: object = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a dozen kinds for a file cut short, or of no weights
        raise MissingError(f"{path}: {why_unreadable(error)}") from error
    for wrapper in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    weights: Weights = {}
    if isinstance(content, dict):
        for name, value in content.items():
            if isinstance(value, Tensor):
                for prefix in PREFIXES:
                    name = str(name).removeprefix(prefix)
                weights[name] = value
    if not weights or not isinstance(content, dict) or len(weights) < len(content):
        raise MissingError(
            f"{path}: found {type(content).__name__}, expected named tensors; give a file of "
            "weights"
        )
    return weights


def is_dino(weights: Mapping[str, Tensor]) -> bool:
    """Whether these are the weights of a ViT under DINO's own names."""
    return {"cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= set(
        weights
    )


def rename_dino(weights: Mapping[str, Tensor]) -> Weights:
    """Turn DINO's names into those of transformers' ViT files; what is no DINO's keeps its name.

    A head, and the token of masked patches, are left out: a feature does not depend on them.
    """
    renamed: Weights = {}
    for name, value in weights.items():
        if name.startswith("head.") or name == "mask_token":
            continue
        block = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        if block is None:
            stem, dot, kind = (name, "", "") if name in DINO_NAMES else name.rpartition(".")
            renamed[DINO_NAMES.get(stem, stem) + dot + kind] = value
            continue
        number, part, kind = block.groups()
        layer = f"encoder.layer.{number}"
        if part == "attn.qkv" and value.ndim > 0 and len(value) % 3 == 0:
            for role, third in zip(("query", "key", "value"), value.chunk(3), strict=True):
                renamed[f"{layer}.attention.attention.{role}.{kind}"] = third.clone()
        else:
            renamed[f"{layer}.{DINO_NAMES.get(part, part)}.{kind}"] = value
    return renamed


def why_unreadable(error: Exception) -> str:
    """What is wrong with a file of weights, and what to do, from what torch, safetensors or
    transformers raised."""
    text = str(error)
    if any(sign in text for sign in UNSAFE):
        return (
            "refused, because it holds objects other than tensors, and opening them could run "
            "code; get the weights as .safetensors, or from their authors"
        )
    if "custom code" in text:
        return (
            "refused, because it wants to run code of its own; use a model that the transformers "
            "library has"
        )
    return (
        f"cannot be loaded ({type(error).__name__}: {in_a_line(error, 160)}); it may be cut short: "
        "download it again"
    )


def in_a_line(error: Exception, longest: int) -> str:
    """What another library says of an error, in so many characters."""
    return " ".join(str(error).split())[:longest] or type(error).__name__
