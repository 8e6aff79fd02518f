"""Patterns of shards, with other files beside them and special characters in folder names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.data.readers import read_collection
from shoal.data.readers.shards import expand_braces
from shoal.errors import DataError
from stores import write_parquets, write_tars

Make = Callable[[list[str]], Path]
NAMES = [f"{i:02d}.png" for i in range(6)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("folder", ["set{1,2}", "a*b", "{0..9}/[x]", "what?"])
def test_braces_and_stars_in_the_name_of_a_folder_are_its_name(
    folder: str, make_images: Make, tmp_path: Path
) -> None:
    images = make_images(NAMES)
    there = tmp_path / folder
    write_tars(images, {}, there)
    write_tars(images, {}, tmp_path / "axb")  # would match if the star were a wildcard
    assert read_collection(there).names == tuple(NAMES)
    assert read_collection(f"{there}/photos-{{000..001}}.tar").names == tuple(NAMES)
    assert read_collection(f"{there}/*.tar").names == tuple(NAMES)
    assert len(read_collection(there / "photos-000.tar")) == 3
    write_parquets(images, {}, there)
    assert read_collection(f"{there}/train-*.parquet").names == tuple(NAMES)
    assert len(read_collection(there / "train-00000-of-00002.parquet")) == 3


def test_hidden_files_are_no_shards_and_capital_letters_do_not_matter(
    make_images: Make, tmp_path: Path
) -> None:
    write_tars(make_images(NAMES), {}, tmp_path / "shards")
    (tmp_path / "shards" / "photos-001.tar").rename(tmp_path / "shards" / "photos-001.TAR")
    (tmp_path / "shards" / "._photos-000.tar").write_bytes(b"what macOS leaves beside a file")
    (tmp_path / "shards" / ".cache").mkdir()
    (tmp_path / "shards" / ".cache" / "old.tar").write_bytes(b"none")
    assert read_collection(tmp_path / "shards").names == tuple(NAMES)


def test_a_compressed_shard_among_others_is_noted(make_images: Make, tmp_path: Path) -> None:
    write_tars(make_images(NAMES), {}, tmp_path / "shards")
    (tmp_path / "shards" / "photos-001.tar").rename(tmp_path / "shards" / "photos-001.tar.gz")
    found = read_collection(tmp_path / "shards")
    assert any("photos-001.tar.gz" in note for note in found.notes)


def test_a_pattern_that_matches_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"s-0.tar: no such shard"):
        read_collection(f"{tmp_path}/s-{{0..1}}.tar")
    with pytest.raises(DataError, match=r"\*\.tar"):
        read_collection(f"{tmp_path}/*.tar")
    with pytest.raises(DataError, match=r"9\.\.1"):
        read_collection(f"{tmp_path}/s-{{9..1}}.tar")
    with pytest.raises(DataError, match=r"s\.tar\.gz"):
        read_collection(f"{tmp_path}/s.tar.gz")


def test_braces_stand_for_ranges_and_lists() -> None:
    assert expand_braces("s-{08..11}.tar") == ["s-08.tar", "s-09.tar", "s-10.tar", "s-11.tar"]
    assert expand_braces("{train,test}-{1..2}.tar") == [
        "train-1.tar",
        "train-2.tar",
        "test-1.tar",
        "test-2.tar",
    ]
