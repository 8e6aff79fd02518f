"""Fingerprints of what a run was made from: equal ones, or it is not the same run and is not resumed."""

import hashlib
from typing import Any

from torch import Tensor, nn

from shoal.encoders.vision import Encoder

N_NUMBERS = 64
"""How many numbers of each weight are looked at, evenly spaced."""

N_IMAGES = 256
"""How many images are looked at, evenly spaced."""


def identify_encoder(encoder: Encoder) -> dict[str, Any]:
    """What makes two encoders the same before any training: the tail's own weights come from the checkpoint."""
    return {
        "name": encoder.name,
        "n_tail_blocks": encoder.n_tail_blocks,
        "input_size": encoder.input_format.size,
        "weights": digest_weights(encoder.trunk),
    }


def digest_weights(module: nn.Module) -> str:
    """A short fingerprint of frozen weights: of some numbers of each."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        some = value.flatten()[:: max(1, value.numel() // N_NUMBERS)].float().cpu()
        digest.update(f"{name}{tuple(value.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]


def digest_rows(array: Any) -> str:
    """A short fingerprint of an array: of all labels, but only of some images."""
    rows = array[:: max(1, len(array) // N_IMAGES)] if len(array.shape) > 1 else array
    content = (rows.cpu().numpy() if isinstance(rows, Tensor) else rows).tobytes()
    return hashlib.sha256(f"{tuple(array.shape)}".encode() + content).hexdigest()[:16]
