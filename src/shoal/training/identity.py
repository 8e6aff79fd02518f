"""Fingerprints of what a run was made from: equal ones, or it is not the same run and is not resumed."""

import hashlib
import math
from typing import Any

import numpy as np
from torch import Tensor, nn

from shoal.encoders.vision import Encoder

N_NUMBERS = 64
"""How many numbers of each weight are looked at, evenly spaced."""

BLOCK_NUMBERS = 1 << 24
"""How many numbers of an array are held at once."""


def identify_encoder(encoder: Encoder) -> dict[str, Any]:
    """What makes two encoders the same before any training: the tail's own weights come from the checkpoint."""
    return {
        "name": encoder.name,
        "n_tail_blocks": encoder.n_tail_blocks,
        "input": repr(encoder.input_format),
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
    """A short fingerprint of the shape and of every row of an array, a memory map or a tensor, read block by block."""
    digest = hashlib.sha256(f"{tuple(array.shape)}".encode())
    step = max(1, BLOCK_NUMBERS // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        rows = array[start : start + step]
        block = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        digest.update(np.ascontiguousarray(block).reshape(-1).data)
    return digest.hexdigest()[:16]
