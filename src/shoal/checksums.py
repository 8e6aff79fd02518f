"""Checksums of collections and arrays."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.arrays import Ints

BLOCK_NUMBERS = 1 << 24
"""Numbers of an array in memory at a time."""


def digest_names(names: Sequence[str], labels: Ints) -> str:
    """Return a checksum of the names of images and of their labels."""
    digest = hashlib.sha256(labels.tobytes())
    digest.update("\0".join(names).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def digest_rows(array: Any) -> str:
    """Return a short checksum of the shape and all rows of an array, memory map or tensor."""
    digest = hashlib.sha256(f"{tuple(array.shape)}".encode())
    step = max(1, BLOCK_NUMBERS // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        rows = array[start : start + step]
        if hasattr(rows, "cpu"):  # a tensor; torch is not imported here
            rows = rows.cpu().numpy()
        digest.update(np.ascontiguousarray(rows).reshape(-1).data)
    return digest.hexdigest()[:16]
