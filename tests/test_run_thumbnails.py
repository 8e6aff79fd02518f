"""The thumbnails of a run, read from one archive."""

import zipfile
from pathlib import Path

import pytest

from shoal.errors import DataError
from shoal.runs import Run, Thumbnails


def written(path: Path, n_images: int) -> Run:
    run = Run.create(path)
    run.write_thumbnails(b"%d" % row for row in range(n_images))
    return run


@pytest.mark.parametrize("n_images", [3, pytest.param(70_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("limit", [zipfile.ZIP64_LIMIT, 60])
def test_an_archive_is_read_as_zipfile_reads_it_without_listing_its_members(
    tmp_path: Path, n_images: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more than 65,535 entries, their number is stored in the zip64 record; beyond a limit of
    2 GB, and here of 60 bytes, entries have another format."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    run = written(tmp_path / "run", n_images)
    rows = [0, 1, n_images - 1]
    with zipfile.ZipFile(run.path / "thumbnails.zip") as archive:
        expected = [archive.read(f"{row:08d}") for row in rows]
    monkeypatch.delattr(zipfile, "ZipFile")
    assert Thumbnails(run.path).get([*rows, n_images]) == [*expected, b""]
    assert run.thumbnails(rows) == expected


def test_a_byte_that_a_disk_has_changed_is_noticed(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 10)
    file = run.path / "thumbnails.zip"
    file.write_bytes(file.read_bytes().replace(b"000000055", b"00000005x", 1))
    assert Thumbnails(run.path).get([4, 5, 6]) == [b"4", b"", b"6"]
    with pytest.raises(DataError, match=r"thumbnails\.zip: damaged.*bad checksum"):
        run.thumbnails([5])


@pytest.mark.parametrize("content", [b"", b"PK", bytes(22)])
def test_a_damaged_archive_is_named(tmp_path: Path, content: bytes) -> None:
    run = written(tmp_path / "run", 3)
    (run.path / "thumbnails.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"thumbnails\.zip: damaged"):
        run.thumbnails([0])
