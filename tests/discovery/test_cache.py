"""The size limit of the cache."""

import os
import time
from pathlib import Path

import pytest

from shoal.data.pixels.loading import load_pixels, store_folder
from shoal.data.readers import read_collection
from shoal.discovery.cache import RECENT_S, list_stores, trim_cache
from shoal.errors import UsageError

DAY = RECENT_S + 1


def fill(cache: Path, name: str, n_bytes: int, used: float) -> Path:
    folder = cache / "pixels" / name
    folder.mkdir(parents=True)
    (folder / "rows.u8").write_bytes(bytes(n_bytes))
    for place in (folder / "rows.u8", folder):
        os.utime(place, (used, used))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SHOAL_CACHE_GB", "1e-6")  # 1,000 bytes
    return tmp_path / "cache"


def test_the_least_recently_used_folders_are_deleted_until_the_rest_fits(
    cache: Path, tmp_path: Path
) -> None:
    """Of three folders with 400 bytes each, the oldest is deleted. An even older one with 100 bytes
    fits and stays."""
    now = time.time()
    own = fill(cache, store_folder(cache, tmp_path, 16).name, 400, 0)
    newer = fill(cache, "newer", 400, now - 2 * DAY)
    older = fill(cache, "older", 400, now - 3 * DAY)
    small = fill(cache, "small", 100, now - 4 * DAY)
    assert [store.folder for store in trim_cache(tmp_path, 16)] == [older]
    assert [folder.exists() for folder in (own, newer, older, small)] == [True, True, False, True]
    assert list_stores()[0].folder == own  # most recently used


def test_folders_in_use_are_not_deleted(cache: Path, tmp_path: Path) -> None:
    """Neither the folder of this run nor one that another run used within a day is deleted."""
    now = time.time()
    own = fill(cache, store_folder(cache, tmp_path, 16).name, 5000, 0)
    other = fill(cache, "other", 5000, now - RECENT_S / 2)
    assert trim_cache(tmp_path, 16) == []
    assert own.exists()
    assert other.exists()


def test_a_cache_of_real_images_is_listed_with_its_size(photos) -> None:
    load_pixels(read_collection(photos.folder, False), 16)
    (store,) = list_stores()
    assert store.n_bytes > 60 * 16 * 16 * 3
    assert trim_cache(photos.folder, 16) == []


@pytest.mark.parametrize("given", ["much", "-1", "nan"])
def test_an_invalid_cache_limit_is_refused(
    cache: Path, tmp_path: Path, monkeypatch, given: str
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_GB", given)
    with pytest.raises(UsageError, match=f"SHOAL_CACHE_GB: found '{given}'"):
        trim_cache(tmp_path, 16)
