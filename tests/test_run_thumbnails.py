"""The thumbnails of a run, read from one file."""

from pathlib import Path

import pytest

from shoal.errors import DataError
from shoal.runs import Run


def test_thumbnails_come_back_by_row_and_the_file_has_the_same_bytes_each_time(
    tmp_path: Path,
) -> None:
    run = Run.create(tmp_path / "run")
    with pytest.raises(DataError, match="missing"):
        list(run.thumbnails([0]))
    written = []
    for _ in range(2):
        run.write_thumbnails([b"zero", b"", b"two"])
        written.append((run.path / "thumbnails.bin").read_bytes())
    assert written[0] == written[1]
    assert list(run.thumbnails([2, 1, 0])) == [b"two", b"", b"zero"]


@pytest.mark.parametrize("content", [b"", b"PK", bytes(22), b"\xff" * 100])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    run = Run.create(tmp_path / "run")
    run.write_thumbnails(b"%d" % row for row in range(3))
    with pytest.raises(DataError, match=r"thumbnails\.bin: damaged"):
        list(run.thumbnails([3]))
    (run.path / "thumbnails.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"thumbnails\.bin: damaged"):
        list(run.thumbnails([0]))
