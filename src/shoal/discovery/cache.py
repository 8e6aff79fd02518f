"""The cache: what is in it, what is given up when it grows too large, and how it is emptied.

It holds a folder per folder of decoded images and size, one per shard with the places of its images, and one per
encoder converted for OpenVINO. Each may be deleted at any time, and is made again when it is needed.
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

MAX_GB = 50.0
"""Past this size of the whole cache what was not used for longest is removed; $SHOAL_CACHE_GB sets another."""

KEPT_S = 24 * 3600.0
"""What was used within a day is never removed by itself: another run may be at it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """The decoded images of one folder at one size, or a converted encoder."""

    folder: Path
    n_bytes: int
    last_used: float
    """Seconds since 1970."""


def list_stores() -> list[Store]:
    """What is in the cache, the most recently used first."""
    folders = [
        folder
        for kind in ("pixels", "shards", "engines")
        for folder in (cache_folder() / kind).glob("[!.]*")
    ]
    return sorted(
        map(_read_store, filter(Path.is_dir, folders)),
        key=lambda store: (-store.last_used, store.folder.name),
    )


def remove_stores(stores: Iterable[Store]) -> None:
    """Delete some of them; a file that another process holds on to, on Windows, stays."""
    for store in stores:
        shutil.rmtree(store.folder, ignore_errors=True)


def bound_cache(root: Path | str, size: int, *, now: float | None = None) -> list[Store]:
    """Note that the images under `root` were used, and remove what was not used for longest until the rest fits.

    Returns what was removed.
    """
    used = store_folder(cache_folder(), root, size)
    now = time.time() if now is None else now
    with contextlib.suppress(
        OSError
    ):  # nobody may write there; then it was not decoded into, either
        os.utime(used, (now, now))
    left = 0
    gone = list[Store]()
    limit = max_bytes()
    for store in list_stores():
        left += store.n_bytes
        if left > limit and store.folder != used and now - store.last_used > KEPT_S:
            gone.append(store)
            left -= store.n_bytes
    remove_stores(gone)
    return gone


def max_bytes() -> float:
    """How large the cache may grow."""
    given = os.environ.get("SHOAL_CACHE_GB") or str(MAX_GB)
    try:
        limit = float(given)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise UsageError(
            f"SHOAL_CACHE_GB: found {given!r}, expected a number of gigabytes, such as 50"
        )
    return limit * 1e9


def _read_store(folder: Path) -> Store:
    states = [entry.stat() for entry in folder.iterdir() if entry.is_file()]
    last_used = max(one.st_mtime for one in (*states, folder.stat()))
    return Store(folder=folder, n_bytes=sum(one.st_size for one in states), last_used=last_used)
