import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.files import atomic_file, check_writable, make_folder, write_text


def test_a_failed_write_keeps_the_old_file_and_leaves_no_draft(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")

    def fail_halfway() -> None:
        with atomic_file(file) as out:
            out.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_writer_killed_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")
    code = (
        "import sys, pathlib; from shoal.files import atomic_file\n"
        f"with atomic_file(pathlib.Path({str(file)!r})) as out:\n"
        "    out.write(b'x' * 100_000); out.flush(); print('written', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert file.read_text() == "old"


@pytest.mark.skipif(os.name != "posix", reason="needs RLIMIT_FSIZE")
def test_a_full_disk_is_an_error_that_says_so_and_keeps_the_old_file(tmp_path: Path) -> None:
    """A limit on the file size makes the write fail as on a full disk."""
    file = tmp_path / "a.txt"
    write_text(file, "old")
    code = (
        "import resource, signal, pathlib; from shoal.files import write_text\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        f"write_text(pathlib.Path({str(file)!r}), 'x' * 100_000)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"ShoalError: {file}: no space left on the disk" in run.stderr
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "x")
    with pytest.raises(UsageError, match="cannot be written"):
        make_folder(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        make_folder(tmp_path / "file" / "below")
    with pytest.raises(UsageError, match="cannot be written"):
        write_text(tmp_path / "file" / "below.txt", "x")


@pytest.mark.skipif(os.name != "posix", reason="needs users and modes")
def test_a_read_only_folder_is_a_usage_error(tmp_path: Path) -> None:
    """Runs in a process of an ordinary user, because root may write anywhere."""
    code = (
        "import os, pathlib; from shoal.files import write_text\n"
        f"os.chdir({str(tmp_path)!r}); os.chmod('.', 0o555)\n"
        "os.geteuid() == 0 and os.setuid(65534)\n"
        "write_text(pathlib.Path('a.txt'), 'x')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError: a.txt: cannot be written (Permission denied)" in run.stderr


def test_readers_see_only_whole_files_while_a_writer_rewrites(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "0" * 50_000)
    code = (
        "import pathlib, sys; from shoal.files import write_text\n"
        f"for i in range(200): write_text(pathlib.Path({str(file)!r}), str(i % 10) * 50_000)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as writer:
        while writer.poll() is None:
            text = file.read_text()
            assert len(text) == 50_000
            assert len(set(text)) == 1
            time.sleep(0.001)
    assert writer.returncode == 0


@pytest.mark.parametrize("place", ["/proc/a.csv", "/proc/self/none/a.csv"])
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place no root can write to")
def test_a_file_that_cannot_be_written_is_refused_beforehand(place: str) -> None:
    with pytest.raises(UsageError, match="/proc/"):
        check_writable(Path(place), force=False)


def test_looking_whether_a_file_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("old")
    check_writable(tmp_path / "a.csv", force=True)
    with pytest.raises(UsageError, match="force=True"):
        check_writable(tmp_path / "a.csv", force=False)
    check_writable(tmp_path / "new" / "b.csv", force=False)
    assert (tmp_path / "a.csv").read_text() == "old"
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path / "new", force=False)


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_in_the_place_of_a_draft_is_not_written_through(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    (tmp_path / f".a.txt.{os.getpid()}.tmp").symlink_to(mine)
    with pytest.raises(UsageError, match="cannot be written"):
        write_text(tmp_path / "a.txt", "new")
    assert mine.read_text() == "precious"
