"""The store: one folder of the cache per image folder and size, holding a file of rows and an index
of them.

The rows are raw bytes, only ever appended to; the index says which row belongs to which file, with
the state (size and modification time) that the file had when it was decoded. Rows that the index
does not name do not exist, and the index is replaced in one step after the rows it names are on the
disk: whatever interrupts a writer, the index is the old one or the new one, and true.

A state is no hash of the content, because a hash reads every byte of every image before each run.
The price: a file replaced by another one of the same size and the same modification time is not
noticed.
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

from shoal.data.storage.addresses import as_address
from shoal.errors import ShoalError
from shoal.files import write_text
from shoal.words import count

VERSION = 1
"""Raised whenever decoding changes, so that pixels decoded in another way are not found."""

INDEX = "index.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Index:
    """The row of each image in a store."""

    data: str = field(default_factory=lambda: f"rows-{uuid.uuid4().hex[:12]}.u8")
    """Name of the file of rows."""
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Image name -> state of the file, row."""

    @property
    def n_rows(self) -> int:
        """Rows that must be in the file of rows; some may no longer belong to any image."""
        return 1 + max((row for _, row in self.rows.values()), default=-1)


def store_folder(cache: Path, root: Path | str, size: int) -> Path:
    """The folder for the images under `root` (a folder, an address, shards) at `size`.

    It may be deleted at any time, to be decoded again.
    """
    real = as_address(root) or Path(root).resolve()
    identity = f"{VERSION}\n{real}".encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(identity, digest_size=6).hexdigest()
    # Shards and addresses may hold what no file name may.
    name = re.sub(r'[*?:{}"<>|]+', "_", real.name)[:100]
    return cache / "pixels" / f"{name or 'root'}-{digest}-{size}px"


def file_state(path: str) -> str | None:
    """What tells one state of a file from the next: its size and time of modification; None if
    it is not there."""
    try:
        status = os.stat(path)  # noqa: PTH116  (N of them: a Path each would double the time)
    except OSError:
        return None
    return f"{status.st_size}-{status.st_mtime_ns}"


def read_index(folder: Path, size: int) -> Index:
    """The index of a store; an empty one if there is none, or none that can be believed."""
    try:
        kept = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        entries = zip(kept["names"], kept["fingerprints"], kept["rows"], strict=True)
        index = Index(kept["data"], {name: (state, row) for name, state, row in entries})
        is_whole = (folder / index.data).stat().st_size >= index.n_rows * row_bytes(size)
    except (OSError, ValueError, KeyError, TypeError):
        return Index()
    return index if is_whole else Index()


def write_index(folder: Path, index: Index) -> None:
    """Replace the index in one step, after the rows it names have reached the disk."""
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
    """The rows (R, size, size, 3), memory-mapped and read-only."""
    if not index.rows:
        return np.empty((0, size, size, 3), dtype=np.uint8)
    shape = (index.n_rows, size, size, 3)
    return np.asarray(np.memmap(folder / index.data, dtype=np.uint8, mode="r", shape=shape))


def row_bytes(size: int) -> int:
    """Bytes of one image."""
    return size * size * 3


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the store alone while writing; another process waits here, and then finds the work
    done."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock").acquire()
    with lock:
        yield


def make_room(folder: Path, index: Index, n_new: int, size: int) -> None:
    """Make ready to append `n_new` rows, and check that there is space for them."""
    with explained(folder):
        remove_leftovers(folder, index, read_index(folder, size))
        (folder / index.data).touch()
        free = shutil.disk_usage(folder).free
    need = n_new * row_bytes(size)
    if need > free:
        raise ShoalError(
            f"pixel cache {folder}: {count(n_new, 'image')} take {need / 1e6:,.1f} MB, but "
            f"{free / 1e6:,.1f} MB are free; make room, or set SHOAL_CACHE to a folder with room"
        )


def remove_leftovers(folder: Path, *used: Index) -> None:
    """Remove what an interrupted writer left behind, and rows that were given up; for the holder
    of the lock."""
    for leftover in (*folder.glob("rows-*.u8"), *folder.glob("*.tmp")):
        if leftover.name not in {index.data for index in used}:
            with contextlib.suppress(PermissionError):  # still mapped by a process, on Windows
                leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn failures of the disk into an error that says what to do."""
    try:
        yield
    except OSError as error:
        what = "cannot be written; check the permissions, or"
        if error.errno in FULL:
            what = (
                "the disk is full or a limit is reached; what was decoded is kept; "
                "make room and run again, or"
            )
        raise ShoalError(
            f"pixel cache {folder}: {what} set SHOAL_CACHE to another folder "
            f"({error.strerror or error})"
        ) from error
