"""Headers: which files are no images at all, seen without decoding any."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from shoal.data.collection import Collection
from shoal.data.pixels.decoding import EMPTY, Unreadable, check_header
from shoal.data.pixels.loading import Skipped
from shoal.data.pixels.store import file_state, read_index, store_folder
from shoal.files import cache_folder

N_THREADS = 16
"""Files looked at together: the time goes by while the disk is asked."""


def check_headers(
    collection: Collection, size: int = 256, *, cache: str | os.PathLike[str] | None = None
) -> tuple[Skipped, ...]:
    """Find the files that are missing, empty or in no known format, by their first bytes.

    Files that were decoded before, at this size and as they are now, are not opened. A file that
    breaks off later, or is too large, shows only when it is decoded: there may be more. In-memory
    images are not looked at, and of images on a network or in shards only those without a byte are
    found: more would be a request each.
    """
    if collection.stored is not None:
        empty = np.flatnonzero(collection.stored.n_bytes == 0)
        return tuple(Skipped(collection.names[i], EMPTY) for i in empty)
    if collection.root is None:
        return ()
    root = collection.root
    known = read_index(store_folder(cache_folder(cache), collection.root, size), size).rows

    def check(name: str) -> Skipped | None:
        path = f"{root}/{name}"
        if name in known and known[name][0] == file_state(path):
            return None
        try:
            check_header(path)
        except Unreadable as error:
            return Skipped(name, str(error))
        return None

    with warnings.catch_warnings(), ThreadPoolExecutor(N_THREADS) as threads:
        warnings.simplefilter("ignore")  # Pillow's, of large images: decoding will judge them
        found = list(threads.map(check, collection.names))
    return tuple(unreadable for unreadable in found if unreadable is not None)
