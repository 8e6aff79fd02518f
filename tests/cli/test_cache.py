"""`shoal cache`: list and clear the cache."""

import json
from pathlib import Path

from commands import shoal
from shoal.data.pixels.loading import load_pixels
from shoal.data.readers import read_collection


def cache(*flags: str):
    return shoal("cache", *flags)


def test_the_cache_is_listed_and_cleared_and_originals_stay(photos, tmp_path: Path) -> None:
    pixels = tmp_path / "cache" / "pixels"
    assert cache().stdout == f"      0.0 MB  of 50 GB in {pixels.parent}\n"
    load_pixels(read_collection(photos.folder, False), 64)
    found = json.loads(cache("--json").stdout)
    assert found["bytes"] > 60 * 64 * 64 * 3
    assert [Path(store["folder"]).parent for store in found["stores"]] == [pixels]
    converted = pixels.parent / "engines" / "0123"
    converted.mkdir(parents=True)
    assert str(converted) in {
        store["folder"] for store in json.loads(cache("--json").stdout)["stores"]
    }
    listed = cache()
    assert Path(found["stores"][0]["folder"]).name in listed.stdout
    assert cache("--clear").stdout.startswith("deleted ")
    assert list(pixels.iterdir()) == list(converted.parent.iterdir()) == []
    assert len(list(photos.folder.iterdir())) == 60
