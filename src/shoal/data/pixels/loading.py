"""Load the pixels of a collection, from the cache or decoded now."""

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.arrays import Ints
from shoal.checksums import digest_rows
from shoal.data.collection import Collection
from shoal.data.pixels.decoding import MISSING, Unreadable, check_header, decode_image
from shoal.data.pixels.store import (
    NO_ROW,
    Index,
    explained,
    file_state,
    locked,
    make_room,
    open_rows,
    read_index,
    remove_leftovers,
    store_folder,
    write_index,
)
from shoal.data.pixels.workers import CHUNK, DecodingJob, available_cpus, decode_files
from shoal.data.storage.addresses import Location
from shoal.data.storage.remote import LOST
from shoal.errors import DataError, ShoalError, UsageError
from shoal.files import cache_folder, scratch_array
from shoal.progress import Progress

SAVE_EVERY_S = 20.0
"""Seconds between two saves of the index; saving that of a million images takes one."""

REPORT_EVERY = 100
"""In-memory images between two calls of `progress`."""

MAX_LOST = 64
"""Consecutive images with a lost connection after which decoding stops."""

N_THREADS = 16
"""Files whose headers are read concurrently."""

MAX_WORKERS = 16
"""Default limit of workers; a disk seldom feeds more."""


@dataclass(frozen=True)
class Skipped:
    """An image that could not be decoded, and why."""

    name: str
    reason: str


class NoneReadable(DataError):
    """No image of a collection can be decoded; `skipped` has the reasons."""

    def __init__(self, skipped: tuple[Skipped, ...]) -> None:
        reasons = Counter(image.reason for image in skipped).most_common(3)
        listed = "; ".join(f"{reason} ({count:,})" for reason, count in reasons)
        super().__init__(f"none of the {len(skipped):,} images can be decoded: {listed}")
        self.skipped = skipped


@dataclass(frozen=True, eq=False)
class Pixels:
    """The decoded images of a collection; `pixels[i]` is a new uint8 array (size, size, 3), and
    `pixels[rows]` is (B, size, size, 3)."""

    store: NDArray[np.uint8]
    """(R, size, size, 3), memory-mapped and read-only, in the order of decoding."""
    rows: Ints
    """(N,) row of each image in `store`."""
    names: tuple[str, ...]
    """(N,) images that could be decoded, in the order of the collection."""
    index: Ints
    """(N,) their positions in the collection."""
    skipped: tuple[Skipped, ...]
    """Images that could not be decoded."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | slice | Sequence[int] | Ints) -> NDArray[np.uint8]:
        taken: NDArray[np.uint8] = np.take(self.store, self.rows[key], axis=0)
        return taken

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, size, size, 3)."""
        return (len(self), self.size, self.size, 3)

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """uint8."""
        return self.store.dtype

    @cached_property
    def checksum(self) -> str:
        """A checksum of all pixels, which are read once."""
        return digest_rows(self)

    @property
    def copies(self) -> list[str]:
        """The images whose pixels equal those of an earlier image."""
        middle = self.size // 2
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

    @property
    def size(self) -> int:
        """Pixels along a side."""
        return int(self.store.shape[1])


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
    next time. In-memory images are resized by threads and not cached.

    Args:
        collection: The images.
        size: Pixels along a side.
        cache: Folder of caches; default $SHOAL_CACHE or the platform's cache folder.
        n_workers: Number of processes; default all processors, at most 16.
        progress: Called with (images done, all images), from this thread.
    """
    if size < 1 or (n_workers is not None and n_workers < 1):
        raise UsageError(f"size and n_workers: found {size} and {n_workers}, expected at least 1")
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
    index = read_index(folder, size)
    if _pending(names, states, index):
        with locked(folder):
            # Another process may have decoded the same files while this one waited.
            index = read_index(folder, size)
            if 2 * len(index.rows) < index.n_rows:  # most rows are outdated: start a new file
                index = Index()
            pending = _pending(names, states, index)
            if pending:
                make_room(folder, index, len(pending), size)
                job = DecodingJob(folder / index.data, index.n_rows, size)
                failed |= _decode(collection, pending, states, index, job, n_workers, report)
                remove_leftovers(folder, index)
    report(len(names), len(names))
    rows = [index.rows.get(name, NO_ROW)[1] for name in names]
    return _assemble(collection, open_rows(folder, index, size), rows, failed)


def _pending(names: Sequence[str], states: Sequence[str | None], index: Index) -> list[int]:
    """Return the positions of existing files that are new or have changed."""
    known = [index.rows.get(name, NO_ROW)[0] for name in names]
    return [i for i, state in enumerate(states) if state is not None and state != known[i]]


def _decode(
    collection: Collection,
    pending: Sequence[int],
    states: Sequence[str | None],
    index: Index,
    job: DecodingJob,
    n_workers: int,
    report: Progress,
) -> dict[int, str]:
    """Decode images and add them to the index, which is saved every few seconds and at the end.

    Return the reason for each position that cannot be decoded.
    """
    names = collection.names
    folder = job.data.parent
    chunk = CHUNK
    if collection.stored is not None:
        pending = collection.stored.reading_order(pending)
        chunk = collection.stored.n_together
        paths = [collection.stored.locations[i] for i in pending]
    else:
        # Strings: a Path per image would double the time.
        paths = [f"{collection.root}/{names[i]}" for i in pending]
    failed: dict[int, str] = {}
    n_done = len(names) - len(pending)
    n_lost = 0
    save_at = time.monotonic() + SAVE_EVERY_S
    report(n_done, len(names))
    try:
        with contextlib.closing(decode_files(job, paths, n_workers, chunk)) as batches:
            for positions, reasons in batches:
                for position in positions:
                    i = pending[position]
                    reason = reasons.get(position, "")
                    n_lost = n_lost + 1 if reason.startswith(LOST) else 0
                    if n_lost >= MAX_LOST:
                        raise ShoalError(
                            f"{collection.where}: {reason}, for {n_lost} images in a row; decoded "
                            "images are kept: check the network and run the command again"
                        )
                    if reason:
                        index.rows.pop(names[i], None)
                        failed[i] = reason
                    else:
                        index.rows[names[i]] = (str(states[i]), job.first_row + position)
                n_done += len(positions)
                if time.monotonic() > save_at:
                    write_index(folder, index)
                    save_at = time.monotonic() + SAVE_EVERY_S
                report(n_done, len(names))
    finally:
        write_index(folder, index)  # on a full disk the old index stays, which is valid too
    return failed


def _load_memory(
    collection: Collection, size: int, cache: Path, n_workers: int, report: Progress
) -> Pixels:
    n_images = len(collection)
    failed = dict[int, str]()
    with explained(cache):
        store = scratch_array((n_images, size, size, 3), np.uint8, cache)

    def scale(i: int) -> None:
        try:
            store[i] = decode_image(collection.source(i), size)
        except Unreadable as error:
            failed[i] = str(error)

    # Pillow releases the interpreter lock while it resizes.
    with ThreadPoolExecutor(n_workers) as threads:
        for done, _ in enumerate(threads.map(scale, range(n_images)), start=1):
            if done % REPORT_EVERY == 0:
                report(done, n_images)
    report(n_images, n_images)
    return _assemble(collection, store, range(n_images), failed)


def _assemble(
    collection: Collection, store: NDArray[np.uint8], rows: Sequence[int], failed: dict[int, str]
) -> Pixels:
    """Return the pixels of all images but those that failed, by the row of each image."""
    names = collection.names
    skipped = tuple(Skipped(names[i], failed[i]) for i in sorted(failed))
    index = np.array([i for i in range(len(names)) if i not in failed], dtype=np.int64)
    if not len(index):
        raise NoneReadable(skipped)
    return Pixels(store, np.array(rows)[index], tuple(names[i] for i in index), index, skipped)


def check_headers(
    collection: Collection, size: int = 256, *, cache: Location | None = None
) -> tuple[Skipped, ...]:
    """Return the files that are missing, empty or of unknown format, by their first bytes.

    Unchanged files that were decoded before at this size are not opened. Truncated and too large
    files are found only when they are decoded. Only local files are checked: others are in memory,
    or would take a request each.
    """
    if collection.root is None:
        return ()
    root = collection.root
    known = read_index(store_folder(cache_folder(cache), root, size), size).rows

    def check(name: str) -> Skipped | None:
        path = f"{root}/{name}"
        if name not in known or known[name][0] != file_state(path):
            try:
                check_header(path)
            except Unreadable as error:
                return Skipped(name, str(error))
        return None

    with warnings.catch_warnings(), ThreadPoolExecutor(N_THREADS) as threads:
        warnings.simplefilter("ignore")  # Pillow warns of large images
        return tuple(filter(None, threads.map(check, collection.names)))
