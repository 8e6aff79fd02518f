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
from shoal.files import cache_folder

DAY_S = 24 * 3600.0

MAX_DAYS = 30
"""Days after which an unused folder is deleted."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """The decoded images of one folder at one size, embeddings, views, the index of a shard, or an
    encoder."""

    folder: Path
    n_bytes: int
    last_used: float
    """Seconds since 1970."""


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
    """Mark the decoded images of `root` as used, and delete and return the folders of the cache
    that were not used for `MAX_DAYS`."""
    with contextlib.suppress(OSError):  # not writable, so nothing was decoded into it
        os.utime(store_folder(cache_folder(), root, size))
    oldest = time.time() - MAX_DAYS * DAY_S
    unused = [store for store in list_stores() if store.last_used < oldest]
    remove_stores(unused)
    return unused
