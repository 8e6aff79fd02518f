"""Cached arrays, also in parts; a key contains everything that the bits of an array depend on."""

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.arrays import digest_rows
from shoal.errors import ShoalError
from shoal.files import atomic_file, cache_folder, make_folder


def read_array(kind: str, key: str, part: int = 0) -> NDArray[Any] | None:
    """Return a cached array, memory-mapped, and mark it as used; None if there is none, or if the
    file is damaged."""
    found = None
    for file in _folder(kind, key).glob(f"{part}-*.npy"):
        with contextlib.suppress(OSError, ValueError):  # not readable, or not a whole array
            # Copy on write: torch warns about arrays that are read-only.
            stored = np.load(file, mmap_mode="c", allow_pickle=False)
            if file.name == _file_name(stored, part):
                found = stored
                os.utime(file.parent)
    return found


def write_array(kind: str, key: str, array: NDArray[Any], part: int = 0) -> None:
    """Cache an array in a file named by its checksum; do nothing if the cache cannot be
    written."""
    folder = _folder(kind, key)
    with contextlib.suppress(ShoalError):
        make_folder(folder)
        with atomic_file(folder / _file_name(array, part)) as file:
            np.save(file, array, allow_pickle=False)


def _file_name(array: NDArray[Any], part: int) -> str:
    return f"{part}-{digest_rows(array)}.npy"


def _folder(kind: str, key: str) -> Path:
    return cache_folder() / kind / hashlib.sha256(key.encode()).hexdigest()[:16]
