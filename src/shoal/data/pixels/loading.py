"""Load the pixels of a collection, from the cache or decoded now.

The cache has a folder per image folder and size, with rows and an index. Rows are raw bytes and are
only appended. The index maps each image to its row, with the state (size and modification time) of
the file when it was decoded. It is replaced in one step after its rows are on the disk, so that an
interrupted writer leaves either the old or the new index, both valid.

A state is not a hash of the content, because that would read every image before each run. A file
replaced by another one of the same size and modification time is therefore not noticed.
"""

import contextlib
import errno
import hashlib
import json
import mmap
import os
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from shoal.arrays import Ints, digest_rows
from shoal.boxes import split_file
from shoal.data.collection import Collection
from shoal.data.pixels.decoding import MISSING, Unreadable, decode_image
from shoal.data.pixels.workers import DecodingJob, available_cpus, decode_files
from shoal.data.storage import LOST, Location, as_address
from shoal.errors import DataError, ShoalError
from shoal.files import cache_folder, make_folder, scratch_array, write_text, writing
from shoal.progress import Progress

# Version of the decoding; a new one invalidates cached pixels
VERSION = 1

INDEX = "index.json"

# Seconds between two saves of the index; saving that of a million images takes one
SAVE_EVERY_S = 20.0

# Consecutive images with a lost connection after which decoding stops
MAX_LOST = 64

# Default limit of workers; a disk seldom feeds more
MAX_WORKERS = 16


@dataclass(frozen=True)
class Pixels:
    """The decoded images of a collection; `pixels[i]` is a new uint8 array (size, size, 3), and
    `pixels[rows]` is (B, size, size, 3)."""

    # (R, size, size, 3), memory-mapped and read-only, in the order of decoding
    store: NDArray[np.uint8]
    rows: Ints  # (N,) row of each image in `store`
    names: tuple[str, ...]  # (N,) images that could be decoded, in the order of the collection
    index: Ints  # (N,) their positions in the collection
    # Images that could not be decoded, and why
    skipped: dict[str, str]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | slice | Sequence[int] | Ints) -> NDArray[np.uint8]:
        return np.take(self.store, self.rows[key], axis=0)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, size, size, 3)."""
        size = self.store.shape[1]
        return (len(self), size, size, 3)

    @cached_property
    def checksum(self) -> str:
        return digest_rows(self)

    @property
    def copies(self) -> list[str]:
        """The images whose pixels equal those of an earlier image."""
        middle = self.store.shape[1] // 2
        lines = [hash(self.store[row, middle].tobytes()) for row in self.rows]
        n_alike = Counter(lines)
        found = []
        earlier = set[str]()
        for i, line in enumerate(lines):
            if n_alike[line] > 1:  # of most images one line of pixels is read
                digest = digest_rows(self[[i]])
                if digest in earlier:
                    found.append(self.names[i])
                earlier.add(digest)
        return found

    def unload(self) -> None:
        """Remove the pages of the mapped file from the memory of this process; the next access
        loads them again."""
        mapped = getattr(self.store.base, "_mmap", None)
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def load_pixels(
    collection: Collection,
    size: int = 256,
    *,
    cache: Location | None = None,
    n_workers: int | None = None,
    progress: Progress | None = None,
) -> Pixels:
    """Return the pixels of a collection: central squares, resized to `size`.

    Worker processes decode files into a cache, (size, size, 3) bytes each. The next call decodes
    only files whose size, modification time or version in a store has changed. An interrupted call
    keeps what it has decoded. Files that cannot be decoded are listed in `skipped` and tried again
    next time; `none_readable` is the error if no image is left. In-memory images are resized by
    threads and not cached.

    Args:
        collection: The images.
        size: Pixels along a side.
        cache: Folder of caches; default $SHOAL_CACHE or the platform's cache folder.
        n_workers: Number of processes; default all processors, at most 16.
        progress: Called with (images done, all images), from this thread.
    """
    n_workers = n_workers or min(available_cpus(), MAX_WORKERS)
    report = progress or (lambda done, total: None)
    if collection.images is not None:
        return _load_memory(collection, size, cache_folder(cache), n_workers, report)
    folder = store_folder(cache_folder(cache), collection.where, size)
    names = collection.names
    if collection.stored is not None:
        states: Sequence[str | None] = collection.stored.states
    else:
        states = [file_state(f"{collection.root}/{name}") for name in names]
    failed = {i: MISSING for i, state in enumerate(states) if state is None}
    store = Store.read(folder, size)
    if store.pending(names, states):
        make_folder(folder)
        with writing(folder):
            lock = FileLock(folder / "lock").acquire()
        with lock:
            # Another process may have decoded the same files while this one waited.
            store = Store.read(folder, size)
            if 2 * len(store.rows) < store.n_rows:  # most rows are outdated: start a new file
                store = Store(folder, size)
            pending = store.pending(names, states)
            if pending:
                failed |= _decode(collection, pending, states, store, n_workers, report)
    report(len(names), len(names))
    rows = [store.rows[name][1] if name in store.rows else -1 for name in names]
    return _assemble(collection, store.open(), rows, failed)


def none_readable(skipped: dict[str, str]) -> DataError:
    reasons = [reason for reason, _ in Counter(skipped.values()).most_common(3)]
    return DataError(f"none of the {len(skipped):,} images can be decoded: {'; '.join(reasons)}")


@dataclass(frozen=True)
class Store:
    """A folder of the cache: the row of each image in its file of pixels."""

    folder: Path
    size: int
    # Name of the file of rows
    data: str = field(default_factory=lambda: f"rows-{uuid.uuid4().hex[:12]}.u8")
    # State of the file and row, by image name
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, size: int) -> "Store":
        """Return the store of a folder; an empty one if its index is missing or damaged."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            entries = zip(content["fingerprints"], content["rows"], strict=True)
            rows = dict(zip(content["names"], entries, strict=True))
            store = cls(folder, size, content["data"], rows)
            if (folder / store.data).stat().st_size >= store.n_rows * store.row_bytes:
                return store
        return cls(folder, size)

    @property
    def n_rows(self) -> int:
        """Rows that the file must have; some may no longer belong to any image."""
        return 1 + max((row for _, row in self.rows.values()), default=-1)

    @property
    def row_bytes(self) -> int:
        return self.size * self.size * 3

    def pending(self, names: Sequence[str], states: Sequence[str | None]) -> list[int]:
        """Return the positions of existing files that are new or have changed."""
        known = {name: state for name, (state, _) in self.rows.items()}
        return [
            i
            for i, state in enumerate(states)
            if state is not None and state != known.get(names[i])
        ]

    def write(self) -> None:
        """Replace the index in one step, after its rows are on the disk."""
        with writing(self.folder), (self.folder / self.data).open("ab") as rows:
            os.fsync(rows.fileno())
        content = {
            "data": self.data,
            "names": list(self.rows),
            "fingerprints": [state for state, _ in self.rows.values()],
            "rows": [row for _, row in self.rows.values()],
        }
        write_text(self.folder / INDEX, json.dumps(content))

    def open(self) -> NDArray[np.uint8]:
        """Return the rows (R, size, size, 3), memory-mapped and read-only."""
        shape = (self.n_rows, self.size, self.size, 3)
        if not self.rows:
            return np.empty(shape, dtype=np.uint8)
        return np.asarray(np.memmap(self.folder / self.data, np.uint8, "r", shape=shape))

    def make_room(self, n_new: int) -> None:
        """Prepare to append `n_new` rows, and check that the disk has space for them."""
        self.remove_leftovers(Store.read(self.folder, self.size).data)
        with writing(self.folder):
            (self.folder / self.data).touch()
            if shutil.disk_usage(self.folder).free < n_new * self.row_bytes:
                raise OSError(errno.ENOSPC, f"{n_new:,} images need more")

    def remove_leftovers(self, used: str = "") -> None:
        """Remove files of interrupted writers, and rows other than those `used`; needs the lock."""
        for leftover in (*self.folder.glob("rows-*.u8"), *self.folder.glob("*.tmp")):
            if leftover.name not in (self.data, used):
                with contextlib.suppress(PermissionError):  # mapped by another process on Windows
                    leftover.unlink(missing_ok=True)


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


def _decode(
    collection: Collection,
    pending: Sequence[int],
    states: Sequence[str | None],
    store: Store,
    n_workers: int,
    report: Progress,
) -> dict[int, str]:
    """Decode images and add them to the index, which is saved every few seconds and at the end.

    Return the reason for each position that cannot be decoded.
    """
    names = collection.names
    stored = collection.stored
    if stored is not None:
        pending = sorted(pending, key=stored.order.__getitem__)
        paths = [stored.locations[i] for i in pending]
    else:
        # Strings: a Path per image would double the time.
        paths = [f"{collection.root}/{names[i]}" for i in pending]
    store.make_room(len(pending))
    job = DecodingJob(store.folder / store.data, store.n_rows, store.size)
    failed: dict[int, str] = {}
    n_done = len(names) - len(pending)
    n_lost = 0
    save_at = time.monotonic() + SAVE_EVERY_S
    report(n_done, len(names))
    try:
        with contextlib.closing(decode_files(job, paths, n_workers)) as batches:
            for positions, reasons in batches:
                for position in positions:
                    i = pending[position]
                    reason = reasons.get(position, "")
                    n_lost = n_lost + 1 if LOST in reason else 0
                    if n_lost >= MAX_LOST:
                        raise ShoalError(
                            f"{collection.where}: {reason}, for {n_lost} images in a row; decoded "
                            "images are kept: check the network and run the command again"
                        )
                    if reason:
                        store.rows.pop(names[i], None)
                        failed[i] = reason
                    else:
                        store.rows[names[i]] = (str(states[i]), job.first_row + position)
                n_done += len(positions)
                if time.monotonic() > save_at:
                    store.write()
                    save_at = time.monotonic() + SAVE_EVERY_S
                report(n_done, len(names))
    finally:
        store.write()  # on a full disk the old index stays, which is valid too
    store.remove_leftovers()
    return failed


def _load_memory(
    collection: Collection, size: int, cache: Path, n_workers: int, report: Progress
) -> Pixels:
    n_images = len(collection)
    failed = dict[int, str]()
    with writing(cache):
        store = scratch_array((n_images, size, size, 3), np.uint8, cache)

    def scale(i: int) -> None:
        try:
            store[i] = decode_image(collection.source(i), size)
        except Unreadable as error:
            failed[i] = str(error)

    # Pillow releases the interpreter lock while it resizes.
    with ThreadPoolExecutor(n_workers) as threads:
        for done, _ in enumerate(threads.map(scale, range(n_images)), start=1):
            report(done, n_images)
    return _assemble(collection, store, range(n_images), failed)


def _assemble(
    collection: Collection, store: NDArray[np.uint8], rows: Sequence[int], failed: dict[int, str]
) -> Pixels:
    """Return the pixels of all images but those that failed, by the row of each image."""
    names = collection.names
    skipped = {names[i]: failed[i] for i in sorted(failed)}
    index = np.array([i for i in range(len(names)) if i not in failed], dtype=np.int64)
    return Pixels(store, np.array(rows)[index], tuple(names[i] for i in index), index, skipped)
