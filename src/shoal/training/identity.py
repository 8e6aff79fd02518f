"""Fingerprints of encoders: equal ones, or it is not the same run and is not resumed."""

import hashlib
from typing import Any

from torch import nn

from shoal.encoders.engines import TORCH
from shoal.encoders.vision import Encoder

N_NUMBERS = 64
"""How many numbers of each weight are looked at, evenly spaced."""


def identify_encoder(encoder: Encoder) -> dict[str, Any]:
    """What makes two encoders the same before any training: the tail's own weights come from the checkpoint."""
    # Torch goes without saying: runs were made with it before there was another engine.
    engine = {} if encoder.engine == TORCH else {"engine": encoder.engine}
    return {
        **engine,
        "name": encoder.name,
        "n_tail_blocks": encoder.n_tail_blocks,
        "input": repr(encoder.input_format),
        "weights": digest_weights(encoder.trunk),
    }


def digest_weights(module: nn.Module) -> str:
    """A short checksum of frozen weights: of some numbers of each."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        some = value.flatten()[:: max(1, value.numel() // N_NUMBERS)].float().cpu()
        digest.update(f"{name}{tuple(value.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]
