"""The thumbnails of a run, read from one archive or from several parts."""

import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from shoal.errors import DataError
from shoal.runs import Run, Thumbnails


def written(path: Path, n_images: int) -> Run:
    run = Run.create(path)
    run.write_thumbnails((b"%d" % row for row in range(n_images)), n_images)
    return run


def got(run: Run, rows: list[int]) -> list[bytes]:
    with closing(Thumbnails(run.path)) as found:
        return found.get(rows)


@pytest.mark.parametrize("n_images", [3, pytest.param(70_000, marks=pytest.mark.slow)])
def test_an_archive_is_read_as_zipfile_reads_it_without_listing_its_members(
    tmp_path: Path, n_images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more than 65,535 entries, their number is stored in the zip64 record."""
    run = written(tmp_path / "run", n_images)
    rows = [0, 1, n_images - 1]
    with zipfile.ZipFile(run.path / "thumbnails.zip") as archive:
        expected = [archive.read(f"{row:08d}") for row in rows]
    monkeypatch.delattr(zipfile, "ZipFile")
    assert got(run, [*rows, n_images]) == [*expected, b""]
    assert run.thumbnails(rows) == expected


def test_of_many_images_there_are_parts_that_are_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.runs.file_parts.PART_ROWS", 4)
    run = written(tmp_path / "run", 4)
    assert [file.name for file in run.path.glob("thumb*")] == ["thumbnails.zip"]
    run.write_thumbnails((b"%d" % row for row in range(10)), 10)
    names = sorted(file.name for file in run.path.glob("thumb*"))
    assert names == [f"thumbnails-0000{part}-of-00003.zip" for part in range(3)]
    assert run.thumbnails([9, 0, 4, 3]) == [b"9", b"0", b"4", b"3"]
    assert got(run, [8, 10]) == [b"8", b""]
    other = Run.create(tmp_path / "other")
    for name in names:
        run.share(name, other)
    assert other.thumbnails(range(10)) == run.thumbnails(range(10))
    run.abandon()
    assert not run.path.exists()


def test_parts_of_which_one_is_missing_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed run leaves incomplete parts; it writes them again when resumed."""
    monkeypatch.setattr("shoal.runs.file_parts.PART_ROWS", 4)
    run = written(tmp_path / "run", 10)
    (run.path / "thumbnails-00002-of-00003.zip").unlink()
    assert not run.has_thumbnails
    assert got(run, [0]) == [b""]
    with pytest.raises(DataError, match=r"thumbnails\.zip"):
        run.thumbnails([0])
    run.write_thumbnails((b"%d" % row for row in range(3)), 3)
    assert [file.name for file in run.path.glob("thumb*")] == ["thumbnails.zip"]


def test_a_byte_that_a_disk_has_changed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.runs.file_parts.PART_ROWS", 4)
    run = written(tmp_path / "run", 10)
    file = run.path / "thumbnails-00001-of-00003.zip"
    file.write_bytes(file.read_bytes().replace(b"000000055", b"00000005x", 1))
    assert got(run, [4, 5, 6]) == [b"4", b"", b"6"]
    with pytest.raises(DataError, match=r"00001-of-00003\.zip: damaged.*bad checksum"):
        run.thumbnails([5])
