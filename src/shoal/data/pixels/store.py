"""The cache of decoded pixels: a folder per image folder and size, with rows and an index.

Rows are raw bytes and are only appended. The index maps each image to its row, with the state (size
and modification time) of the file when it was decoded. It is replaced in one step after its rows
are on the disk, so that an interrupted writer leaves either the old or the new index, both valid.

A state is not a hash of the content, because that would read every image before each run. A file
replaced by another one of the same size and modification time is therefore not noticed.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from shoal.boxes import split_file
from shoal.data.storage.addresses import as_address
from shoal.errors import ShoalError
from shoal.files import write_text

VERSION = 1
"""Version of the decoding; a new one invalidates cached pixels."""

NO_ROW = ("", -1)
"""What stands for the state and the row of an image that is not in the cache."""

INDEX = "index.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Index:
    """The row of each image in the cache."""

    data: str = field(default_factory=lambda: f"rows-{uuid.uuid4().hex[:12]}.u8")
    """Name of the file of rows."""
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    """State of the file and row, by image name."""

    @property
    def n_rows(self) -> int:
        """Rows that the file must have; some may no longer belong to any image."""
        return 1 + max((row for _, row in self.rows.values()), default=-1)


def store_folder(cache: Path, root: Path | str, size: int) -> Path:
    """Return the cache folder of the images under `root` (a folder, an address, shards) at `size`.

    It may be deleted at any time; images are then decoded again.
    """
    real = as_address(root) or Path(root).resolve()
    name = folder_name(real.name or "root", f"{VERSION}\n{real}")
    return cache / "pixels" / f"{name}-{size}px"


def folder_name(name: str, identity: str) -> str:
    """Return a name for a folder of the cache: a readable one, and a checksum of its identity."""
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    # Patterns and addresses may contain characters that file names may not.
    readable = re.sub(r'[*?:{}"<>|]+', "_", name)[:100]
    return f"{readable}-{digest}"


def file_state(path: str) -> str | None:
    """Return the size and modification time of an image's file as text; None if it does not
    exist."""
    try:
        # A Path per image would double the time.
        status = os.stat(split_file(path)[0])  # noqa: PTH116
    except OSError:
        return None
    return f"{status.st_size}-{status.st_mtime_ns}"


def read_index(folder: Path, size: int) -> Index:
    """Return the index of a cache folder; an empty one if it is missing or damaged."""
    try:
        content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        entries = zip(content["fingerprints"], content["rows"], strict=True)
        index = Index(content["data"], dict(zip(content["names"], entries, strict=True)))
        if (folder / index.data).stat().st_size >= index.n_rows * row_bytes(size):
            return index
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return Index()


def write_index(folder: Path, index: Index) -> None:
    """Replace the index in one step, after its rows are on the disk."""
    with explained(folder), (folder / index.data).open("ab") as rows:
        os.fsync(rows.fileno())
    content = {
        "data": index.data,
        "names": list(index.rows),
        "fingerprints": [state for state, _ in index.rows.values()],
        "rows": [row for _, row in index.rows.values()],
    }
    write_text(folder / INDEX, json.dumps(content))


def open_rows(folder: Path, index: Index, size: int) -> NDArray[np.uint8]:
    """Return the rows (R, size, size, 3), memory-mapped and read-only."""
    if not index.rows:
        return np.empty((0, size, size, 3), dtype=np.uint8)
    shape = (index.n_rows, size, size, 3)
    return np.asarray(np.memmap(folder / index.data, dtype=np.uint8, mode="r", shape=shape))


def row_bytes(size: int) -> int:
    """Return the bytes of one image."""
    return size * size * 3


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a cache folder for writing; another process waits, and then finds the work done."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock").acquire()
    with lock:
        yield


def make_room(folder: Path, index: Index, n_new: int, size: int) -> None:
    """Prepare to append `n_new` rows, and check that the disk has space for them."""
    with explained(folder):
        remove_leftovers(folder, index, read_index(folder, size))
        (folder / index.data).touch()
        if shutil.disk_usage(folder).free < n_new * row_bytes(size):
            raise OSError(errno.ENOSPC, f"{n_new:,} images need {n_new * row_bytes(size):,} bytes")


def remove_leftovers(folder: Path, *used: Index) -> None:
    """Remove files of interrupted writers and rows that no index uses; needs the lock."""
    for leftover in (*folder.glob("rows-*.u8"), *folder.glob("*.tmp")):
        if leftover.name not in {index.data for index in used}:
            with contextlib.suppress(PermissionError):  # mapped by another process on Windows
                leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into one with a remedy."""
    try:
        yield
    except OSError as error:
        problem = "cannot be written; check the permissions"
        if error.errno in FULL:
            problem = "the disk is full; decoded images are kept, so free some space and run again"
        raise ShoalError(
            f"pixel cache {folder}: {problem}, or set SHOAL_CACHE to another folder "
            f"({error.strerror or error})"
        ) from error
