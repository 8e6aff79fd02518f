"""The lock on a run folder, held by real processes: the living are respected and named, the dead are not."""

import errno
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from held_runs import hold_lock
from shoal.errors import UsageError
from shoal.runs import lock
from shoal.runs.lock import LOCK, SILENT_S, check_not_held, locked, locked_file


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with hold_lock(tmp_path / "run") as process:
        yield process
        process.kill()


def take(folder: Path) -> None:
    with locked(folder):
        assert json.loads((folder / LOCK).read_text())["pid"] == os.getpid()


def test_a_living_process_is_named_with_its_host_and_since_when(tmp_path: Path, holder) -> None:
    for look in (check_not_held, take):
        with pytest.raises(UsageError, match="wait until that ends") as refused:
            look(tmp_path / "run")
        assert f"is being written by process {holder.pid} on {socket.gethostname()} (-c" in str(
            refused.value
        )
        assert ", since 20" in str(refused.value)
    holder.communicate("go on\n")
    assert holder.returncode == 0
    assert not (tmp_path / "run").exists(), "an empty folder is left by nobody"
    take(tmp_path / "run")


def test_the_systems_lock_alone_keeps_others_out_where_the_file_names_nobody(
    tmp_path: Path, holder
) -> None:
    (tmp_path / "run" / LOCK).write_text("")  # as a full disk, or an editor, may leave it
    for look in (check_not_held, take):
        with pytest.raises(
            UsageError, match="is being written by another process; wait until that ends"
        ):
            look(tmp_path / "run")


def test_a_killed_process_holds_nothing_though_its_file_is_there(tmp_path: Path, holder) -> None:
    holder.kill()
    holder.wait()
    assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == holder.pid
    check_not_held(tmp_path / "run")
    take(tmp_path / "run")


def test_the_same_thread_may_take_it_again_and_another_may_not(tmp_path: Path) -> None:
    refused: list[str] = []

    def try_it() -> None:
        try:
            take(tmp_path)
        except UsageError as error:
            refused.append(str(error))

    with locked(tmp_path):
        take(tmp_path)
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
        assert (tmp_path / LOCK).exists()
    assert refused == [
        f"{tmp_path}: is being written by another thread of this process; wait until that ends, or choose another path"
    ]


def test_a_lock_that_was_removed_by_its_holder_in_the_last_moment_is_made_anew(
    tmp_path: Path, monkeypatch
) -> None:
    """Whoever waits has the old file open; without a second look it would lock one that nobody else can see."""
    (tmp_path / LOCK).touch()
    taken = []

    def lock_what_is_gone(descriptor: int) -> None:
        if not taken:
            (tmp_path / LOCK).unlink()
        taken.append(descriptor)

    monkeypatch.setattr(lock, "_lock", lock_what_is_gone)
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert len(taken) == 2


def foreign(folder: Path, **more: object) -> None:
    (folder / LOCK).write_text(
        json.dumps({"pid": 1, "host": "elsewhere", "started": "5", "since": "s"} | more)
    )


def test_another_machine_counts_as_gone_after_two_minutes_of_silence(tmp_path: Path) -> None:
    foreign(tmp_path, command="shoal discover")
    with pytest.raises(
        UsageError,
        match=r"process 1 on elsewhere \(shoal discover\), since s; .* try again 2 minutes",
    ):
        take(tmp_path)
    check = (tmp_path / LOCK).stat()
    os.utime(tmp_path / LOCK, (check.st_atime, check.st_mtime - SILENT_S - 1))
    check_not_held(tmp_path)
    take(tmp_path)


def test_signs_of_life_are_given(tmp_path: Path, monkeypatch) -> None:
    renewed = threading.Event()
    utime = os.utime
    monkeypatch.setattr(lock, "RENEW_S", 0.01)
    monkeypatch.setattr(
        lock.os, "utime", lambda *args, **more: (utime(*args, **more), renewed.set())
    )
    with locked(tmp_path):
        assert renewed.wait(300)


def no_locks(descriptor: int) -> None:
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


def test_without_locks_of_the_file_system_a_living_process_of_this_machine_is_known_by_its_number_and_start(
    tmp_path: Path, holder, monkeypatch
) -> None:
    monkeypatch.setattr(lock, "_lock", no_locks)
    with pytest.raises(UsageError, match=f"process {holder.pid} on"):
        take(tmp_path / "run")
    file = tmp_path / "run" / LOCK
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"started": "an earlier process of that number"})
    )
    take(tmp_path / "run")


def test_without_locks_a_dead_process_holds_nothing(tmp_path: Path, holder, monkeypatch) -> None:
    monkeypatch.setattr(lock, "_lock", no_locks)
    holder.kill()
    holder.wait()
    take(tmp_path / "run")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"color": "red"}', "[" * 4_000])
def test_a_file_that_names_nobody_is_taken(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    take(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_in_the_place_of_the_lock_is_refused_and_what_it_leads_to_is_kept(
    tmp_path: Path,
) -> None:
    """Somebody who gives away a run folder must not choose which of our files is written."""
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(mine)
    with pytest.raises(
        UsageError, match=rf"{LOCK}: is a link where a file of our own belongs; remove it"
    ):
        take(tmp_path / "run")
    check_not_held(tmp_path / "run")
    assert mine.read_text() == "precious"


def test_a_table_is_held_by_a_hidden_neighbor(tmp_path: Path) -> None:
    with locked_file(tmp_path / "new.csv"):
        assert [file.name for file in tmp_path.iterdir()] == [".new.csv.lock"]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file, expected a folder"):
        take(tmp_path / "file")
