"""The lock on a run folder, held by real processes: locks of running processes are respected and
reported, those of ended ones are not."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from held_runs import hold_lock
from shoal.errors import UsageError
from shoal.runs.run import LOCK, check_not_locked, locked


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with hold_lock(tmp_path / "run") as process:
        yield process
        process.kill()


def take(folder: Path) -> None:
    with locked(folder):
        assert f"process {os.getpid()} on " in (folder / LOCK).read_text()


def test_a_living_process_is_named_with_its_host(tmp_path: Path, holder) -> None:
    for look in (check_not_locked, take):
        with pytest.raises(UsageError) as refused:
            look(tmp_path / "run")
        assert f"process {holder.pid} on {socket.gethostname()}; " in str(refused.value)
        assert "\n" not in str(refused.value)
    holder.communicate("go on\n")
    assert holder.returncode == 0
    assert not (tmp_path / "run").exists(), "an empty folder is left by nobody"
    take(tmp_path / "run")


def test_the_systems_lock_alone_keeps_others_out_where_the_file_names_nobody(
    tmp_path: Path, holder
) -> None:
    (tmp_path / "run" / LOCK).write_text("")  # as left by a full disk or an editor
    for look in (check_not_locked, take):
        with pytest.raises(UsageError, match="another process"):
            look(tmp_path / "run")


def test_a_killed_process_holds_nothing_though_its_file_is_there(tmp_path: Path, holder) -> None:
    holder.kill()
    holder.wait()
    assert f"process {holder.pid} on " in (tmp_path / "run" / LOCK).read_text()
    check_not_locked(tmp_path / "run")
    assert (tmp_path / "run" / LOCK).exists()
    take(tmp_path / "run")


def test_one_process_at_a_time_has_it_though_each_removes_the_file_in_the_end(
    tmp_path: Path,
) -> None:
    """A lock on a file that its last holder has just removed would exclude no process."""
    (tmp_path / "keep").touch()
    log = tmp_path / "log"
    code = (
        "import sys, time\n"
        "from shoal.errors import UsageError\n"
        "from shoal.runs.run import locked\n"
        "n = 0\n"
        "while n < 40:\n"
        "    try:\n"
        f"        with locked({str(tmp_path)!r}), open({str(log)!r}, 'a') as log:\n"
        "            log.write('in\\n'); log.flush(); time.sleep(0.001); log.write('out\\n')\n"
        "            n += 1\n"
        "    except UsageError:\n"
        "        pass\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    both = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert log.read_text() == "in\nout\n" * 80


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_in_the_place_of_the_lock_is_refused_and_what_it_leads_to_is_kept(
    tmp_path: Path,
) -> None:
    """The author of a shared run folder must not be able to make us overwrite another file."""
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(mine)
    with pytest.raises(UsageError, match=LOCK):
        take(tmp_path / "run")
    check_not_locked(tmp_path / "run")
    assert mine.read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError):
        take(tmp_path / "file")
