"""The cache: what is in it, what is removed when it grows too large, and how it is emptied.

It holds a folder per folder of decoded images and size, one per shard with the places of its
images, and one per encoder converted for OpenVINO. Each may be deleted at any time, and is made
again when it is needed.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shoal.data.pixels.store import store_folder
from shoal.errors import UsageError
from shoal.files import cache_folder

MAX_GB = "50"
"""Past this size the least recently used is removed; $SHOAL_CACHE_GB sets another."""

KEPT_S = 24 * 3600.0
"""What was used within a day is never removed by itself: another run may use it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """The decoded images of one folder at one size, the index of a shard, or an encoder."""

    folder: Path
    n_bytes: int
    last_used: float
    """Seconds since 1970."""


def list_stores() -> list[Store]:
    """What is in the cache, the most recently used first."""
    stores = []
    for kind in ("pixels", "shards", "engines"):
        for folder in (cache_folder() / kind).glob("[!.]*/"):
            states = [file.stat() for file in folder.iterdir() if file.is_file()]
            n_bytes = sum(state.st_size for state in states)
            last_used = max(state.st_mtime for state in [*states, folder.stat()])
            stores.append(Store(folder=folder, n_bytes=n_bytes, last_used=last_used))
    return sorted(stores, key=lambda store: (-store.last_used, store.folder.name))


def remove_stores(stores: Iterable[Store]) -> None:
    """Delete some of them; a file that another process holds on to, on Windows, stays."""
    for store in stores:
        shutil.rmtree(store.folder, ignore_errors=True)


def bound_cache(root: Path | str, size: int, *, now: float | None = None) -> list[Store]:
    """Note that the images under `root` were used, and remove the least recently used stores.

    As few as must go are removed, and returned.
    """
    used = store_folder(cache_folder(), root, size)
    now = now or time.time()
    with contextlib.suppress(OSError):  # not writable; then nothing was decoded into it, either
        os.utime(used, (now, now))
    n_bytes = 0
    gone = []
    limit = max_bytes()
    for store in list_stores():
        is_removable = store.folder != used and now - store.last_used > KEPT_S
        if is_removable and n_bytes + store.n_bytes > limit:
            gone.append(store)
        else:
            n_bytes += store.n_bytes
    remove_stores(gone)
    return gone


def max_bytes() -> float:
    """How large the cache may grow."""
    given = os.environ.get("SHOAL_CACHE_GB") or MAX_GB
    with contextlib.suppress(ValueError):
        if float(given) >= 0:
            return float(given) * 1e9
    raise UsageError(f"SHOAL_CACHE_GB: found {given!r}, expected a number of gigabytes, such as 50")
