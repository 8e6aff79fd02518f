"""Find weight files and read them without running any code that they may hold."""

import hashlib
import importlib.util
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from shoal.errors import MissingError, one_line

# Numbers of each weight that a checksum covers, evenly spaced
N_NUMBERS = 64


def package_weights(package: str) -> Path | None:
    """Return the weights file inside an installed package; None if either is missing."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("models/*.pth"), None)


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Return the tensors of a .pth file by name; refuse a file that holds anything else."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about files that torch then refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a dozen kinds for a damaged file
        raise MissingError(f"{path}: {why_unreadable(error)}") from error


def why_unreadable(error: Exception) -> str:
    """Return why torch, safetensors or transformers could not load weights, and what to do."""
    return (
        f"cannot be loaded ({type(error).__name__}: {one_line(error, 160)}); it is incomplete, or "
        "holds more than tensors: get the weights again, as .safetensors"
    )


def digest_weights(module: nn.Module) -> str:
    """Return a short checksum of frozen weights, over some numbers of each."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        some = value.flatten()[:: max(1, value.numel() // N_NUMBERS)].float().cpu()
        digest.update(f"{name}{tuple(value.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]
