"""The cache of decoded images, frozen embeddings, views, indexes of shards and encoders converted
for OpenVINO.

Each of its folders may be deleted at any time and is created again when needed.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shoal.data.pixels.loading import store_folder
from shoal.errors import UsageError
from shoal.files import cache_folder

# Default size above which the least recently used folders are removed, see $SHOAL_CACHE_GB
MAX_GB = "50"

# Folders used within this time are not removed: another run may be using them
RECENT_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Store:
    """The decoded images of one folder at one size, embeddings, views, the index of a shard, or an
    encoder."""

    folder: Path
    n_bytes: int
    # Seconds since 1970
    last_used: float


def list_stores() -> list[Store]:
    """Return the folders of the cache, the most recently used first."""
    stores = []
    for kind in ("pixels", "embeddings", "views", "shards", "engines"):
        for folder in (cache_folder() / kind).glob("[!.]*/"):
            states = [file.stat() for file in folder.iterdir() if file.is_file()]
            n_bytes = sum(state.st_size for state in states)
            last_used = max(state.st_mtime for state in [*states, folder.stat()])
            stores.append(Store(folder=folder, n_bytes=n_bytes, last_used=last_used))
    return sorted(stores, key=lambda store: (-store.last_used, store.folder.name))


def remove_stores(stores: Iterable[Store]) -> None:
    """Delete folders; a file that another process has open on Windows stays."""
    for store in stores:
        shutil.rmtree(store.folder, ignore_errors=True)


def trim_cache(root: Path | str, size: int) -> list[Store]:
    """Mark the decoded images of `root` as used, and delete the least recently used folders above
    the limit of the cache; return the deleted ones."""
    used = store_folder(cache_folder(), root, size)
    now = time.time()
    with contextlib.suppress(OSError):  # not writable, so nothing was decoded into it
        os.utime(used, (now, now))
    n_bytes = 0
    removed = []
    limit = max_bytes()
    for store in list_stores():
        is_removable = store.folder != used and now - store.last_used > RECENT_S
        if is_removable and n_bytes + store.n_bytes > limit:
            removed.append(store)
        else:
            n_bytes += store.n_bytes
    remove_stores(removed)
    return removed


def max_bytes() -> float:
    value = os.environ.get("SHOAL_CACHE_GB") or MAX_GB
    with contextlib.suppress(ValueError):
        if float(value) >= 0:
            return float(value) * 1e9
    raise UsageError(f"SHOAL_CACHE_GB: found {value!r}, expected a number of gigabytes, such as 50")
