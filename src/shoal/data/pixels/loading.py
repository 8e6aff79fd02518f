"""Loading: the pixels of a collection, decoded now or read from the cache."""

import contextlib
import os
import time
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
from shoal.data.pixels.decoding import Unreadable, decode_image
from shoal.data.pixels.store import (
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
from shoal.data.storage.remote import LOST
from shoal.errors import DataError, ShoalError, UsageError
from shoal.files import cache_folder, scratch_array
from shoal.progress import Progress

SAVE_EVERY_S = 20.0
"""Seconds of work that a kill may cost; saving the index of a million images takes one."""

REPORT_EVERY = 100
"""In-memory images between two calls of progress."""

MAX_LOST = 64
"""Images in a row whose connection was lost before it is called the end of the connection, not
theirs."""

MAX_WORKERS = 16
"""Workers started by default at most; a disk seldom feeds more."""


@dataclass(frozen=True)
class Skipped:
    """An image that could not be decoded, and why."""

    name: str
    reason: str


class NoneReadable(DataError):
    """No image of a collection can be decoded; `skipped` says why of each."""

    def __init__(self, skipped: tuple[Skipped, ...]) -> None:
        reasons = Counter(image.reason for image in skipped).most_common(3)
        listed = "; ".join(f"{reason} ({count:,})" for reason, count in reasons)
        super().__init__(f"none of the {len(skipped):,} images can be decoded: {listed}")
        self.skipped = skipped


@dataclass(frozen=True, eq=False)
class Pixels:
    """The decoded images of a collection; `pixels[i]` is a new uint8 array, (size, size, 3) or
    (B, size, size, 3)."""

    store: NDArray[np.uint8]
    """(R, size, size, 3), memory-mapped and read-only, in the order of decoding; read it through
    `rows`."""
    rows: Ints
    """(N,) the row of each image in `store`."""
    names: tuple[str, ...]
    """(N,) the images that could be decoded, in the order of the collection."""
    index: Ints
    """(N,) their positions in the collection."""
    skipped: tuple[Skipped, ...]
    """The images that could not."""

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
        """A checksum of every pixel; all of them are read once for it."""
        return digest_rows(self)

    @property
    def size(self) -> int:
        """Pixels along a side."""
        return int(self.store.shape[1])


def load_pixels(
    collection: Collection,
    size: int = 256,
    *,
    cache: str | os.PathLike[str] | None = None,
    n_workers: int | None = None,
    progress: Progress | None = None,
) -> Pixels:
    """Decode the images of a collection, or find them decoded: the shorter side scaled to `size`,
    the central square.

    Files are decoded by worker processes into a cache, (size, size, 3) bytes each, and found there
    by the next call as long as their size and modification time, or what a store says of them, stay
    the same; only new and changed ones are decoded. An interrupted call keeps what it has done.
    Files that cannot be decoded are listed in `skipped` and tried again next time. In-memory images
    are scaled by threads and not kept.

    Args:
        collection: The images.
        size: Pixels along a side.
        cache: Folder of caches, instead of $SHOAL_CACHE or the platform's cache folder.
        n_workers: Processes that decode; all processors, up to 16, if not given.
        progress: Called with (images done, images in all), from this thread.
    """
    if size < 1 or (n_workers is not None and n_workers < 1):
        raise UsageError(f"size and n_workers: found {size} and {n_workers}, expected at least 1")
    n_workers = n_workers or min(available_cpus(), MAX_WORKERS)
    report = progress or (lambda done, total: None)
    if collection.images is not None:
        return _load_memory(collection, size, cache_folder(cache), n_workers, report)
    folder = store_folder(cache_folder(cache), collection.where, size)
    names = collection.names
    states = _file_states(collection)
    failed = {i: "the file is not there" for i, state in enumerate(states) if state is None}
    index = read_index(folder, size)
    if _pending(names, states, index):
        with locked(folder):
            # Another process may have decoded the same files while this one waited.
            index = read_index(folder, size)
            if 2 * len(index.rows) < index.n_rows:  # most rows are of images that have changed
                index = Index()
            pending = _pending(names, states, index)
            if pending:
                make_room(folder, index, len(pending), size)
                job = DecodingJob(folder / index.data, index.n_rows, size)
                failed |= _decode(collection, pending, states, index, job, n_workers, report)
                remove_leftovers(folder, index)
    report(len(names), len(names))
    readable = [i for i in range(len(names)) if i not in failed]
    rows = np.array([index.rows[names[i]][1] for i in readable], dtype=np.int64)
    return _assemble(collection, open_rows(folder, index, size), rows, readable, failed)


def _file_states(collection: Collection) -> Sequence[str | None]:
    """(N,) the state of each file, None where it is not there."""
    if collection.stored is not None:
        return collection.stored.states
    return [file_state(f"{collection.root}/{name}") for name in collection.names]


def _pending(names: Sequence[str], states: Sequence[str | None], index: Index) -> list[int]:
    """The images whose file is there, and not in the index as it is now."""
    pending = []
    for i, (name, state) in enumerate(zip(names, states, strict=True)):
        if state is not None and (name not in index.rows or index.rows[name][0] != state):
            pending.append(i)
    return pending


def _decode(
    collection: Collection,
    pending: Sequence[int],
    states: Sequence[str | None],
    index: Index,
    job: DecodingJob,
    n_workers: int,
    report: Progress,
) -> dict[int, str]:
    """Decode images and add them to the index, which is saved now and then and in the end.

    Returns position -> reason for those that cannot be decoded.
    """
    names = collection.names
    folder = job.data.parent
    chunk = CHUNK
    if collection.stored is not None:
        pending = collection.stored.reading_order(pending)
        chunk = collection.stored.n_together
    # A Path per image would double the time.
    paths = [str(collection.source(i)) for i in pending]
    if collection.root is not None:
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
                    reason = reasons.get(position)
                    if reason is None:
                        index.rows[names[i]] = (str(states[i]), job.first_row + position)
                        n_lost = 0
                        continue
                    index.rows.pop(names[i], None)
                    failed[i] = reason
                    n_lost += 1
                    if not reason.startswith(LOST):
                        n_lost = 0
                    if n_lost >= MAX_LOST:
                        raise ShoalError(
                            f"{collection.where}: {reason}; so it was with {n_lost} images in a "
                            "row; what was decoded "
                            "is kept; check the network, then give the command again"
                        )
                n_done += len(positions)
                if time.monotonic() > save_at:
                    write_index(folder, index)
                    save_at = time.monotonic() + SAVE_EVERY_S
                report(n_done, len(names))
    except BaseException:
        # On a full disk the old index stays, which is true as well.
        with contextlib.suppress(ShoalError):
            write_index(folder, index)
        raise
    write_index(folder, index)
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

    # Pillow lets go of the interpreter while it scales.
    with ThreadPoolExecutor(n_workers) as threads:
        for done, _ in enumerate(threads.map(scale, range(n_images)), start=1):
            if done % REPORT_EVERY == 0:
                report(done, n_images)
    report(n_images, n_images)
    readable = [i for i in range(n_images) if i not in failed]
    return _assemble(collection, store, np.array(readable, dtype=np.int64), readable, failed)


def _assemble(
    collection: Collection,
    store: NDArray[np.uint8],
    rows: Ints,
    readable: Sequence[int],
    failed: dict[int, str],
) -> Pixels:
    names = collection.names
    skipped = tuple(Skipped(names[i], failed[i]) for i in sorted(failed))
    if not readable:
        raise NoneReadable(skipped)
    index = np.array(readable, dtype=np.int64)
    return Pixels(store, rows, tuple(names[i] for i in readable), index, skipped)
