"""What the cache deletes."""

import os
import time
from pathlib import Path

import pytest

from shoal.data.pixels.loading import load_pixels, store_folder
from shoal.data.readers import read_collection
from shoal.discovery.cache import DAY_S, MAX_DAYS, list_stores, trim_cache


def fill(cache: Path, name: str, used: float) -> Path:
    folder = cache / "pixels" / name
    folder.mkdir(parents=True)
    (folder / "rows.u8").write_bytes(bytes(400))
    for place in (folder / "rows.u8", folder):
        os.utime(place, (used, used))
    return folder


def test_folders_that_were_not_used_for_long_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("SHOAL_CACHE", str(cache))
    limit = time.time() - MAX_DAYS * DAY_S
    own = fill(cache, store_folder(cache, tmp_path, 16).name, 0)
    used = fill(cache, "used", limit + DAY_S)
    unused = fill(cache, "unused", limit - 1)
    assert [store.folder for store in trim_cache(tmp_path, 16)] == [unused]
    assert [folder.exists() for folder in (own, used, unused)] == [True, True, False]
    assert list_stores()[0].folder == own  # most recently used


def test_a_cache_of_real_images_is_listed_with_its_size(photos) -> None:
    load_pixels(read_collection(photos.folder, False), 16)
    (store,) = list_stores()
    assert store.n_bytes > 60 * 16 * 16 * 3
    assert trim_cache(photos.folder, 16) == []
