"""Cached arrays; a key contains everything that the bits of an array depend on."""

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.checksums import digest_rows
from shoal.errors import ShoalError
from shoal.files import atomic_file, cache_folder, make_folder


def read_array(kind: str, key: str) -> NDArray[Any] | None:
    """Return the cached array of a key, memory-mapped, and mark it as used; None if there is
    none, or if the file is damaged."""
    found = None
    for file in _folder(kind, key).glob("[!.]*.npy"):
        with contextlib.suppress(OSError, ValueError):  # not readable, or not a whole array
            # Copy on write: torch warns about arrays that are read-only.
            stored = np.load(file, mmap_mode="c", allow_pickle=False)
            if digest_rows(stored) == file.stem:
                found = stored
                os.utime(file.parent)
    return found


def write_array(kind: str, key: str, array: NDArray[Any]) -> None:
    """Cache an array in a file named by its checksum; do nothing if the cache cannot be
    written."""
    folder = _folder(kind, key)
    with contextlib.suppress(ShoalError):
        make_folder(folder)
        with atomic_file(folder / f"{digest_rows(array)}.npy") as file:
            np.save(file, array, allow_pickle=False)


def _folder(kind: str, key: str) -> Path:
    return cache_folder() / kind / hashlib.sha256(key.encode()).hexdigest()[:16]
