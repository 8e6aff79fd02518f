"""Checksums: equal ones, or it is not the same collection, the same array, the same run."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.arrays import Ints

BLOCK_NUMBERS = 1 << 24
"""How many numbers of an array are held at once."""


def digest_names(names: Sequence[str], labels: Ints) -> str:
    """A checksum of the names of images and of the labels given."""
    digest = hashlib.sha256(labels.tobytes())
    digest.update("\0".join(names).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def digest_rows(array: Any) -> str:
    """A short checksum of the shape and every row of an array, memory map or tensor, by blocks."""
    digest = hashlib.sha256(f"{tuple(array.shape)}".encode())
    step = max(1, BLOCK_NUMBERS // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        rows = array[start : start + step]
        if hasattr(rows, "cpu"):  # a tensor, asked for without importing torch
            rows = rows.cpu().numpy()
        digest.update(np.ascontiguousarray(rows).reshape(-1).data)
    return digest.hexdigest()[:16]
