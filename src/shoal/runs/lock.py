"""One writer at a time: the lock on a run folder, or on a table that is kept up to date.

The lock is the operating system's, by filelock, on a small file that is held open: it ends with its
process, kill -9 included. The file says who holds it.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from shoal.errors import UsageError
from shoal.files import make_folder, writing

LOCK = "run.lock"
"""The file in a run folder that is there while a process writes to it."""

WAIT_S = 0.5
"""Seconds to wait for a lock: a process that only asks whether it is held has it for a moment."""


@contextlib.contextmanager
def locked(folder: Path | str) -> Iterator[None]:
    """Hold a run folder, made where it is missing; refuses one that a living process holds.

    A folder that is empty in the end is removed. Within a thread the same lock may be taken again.
    """
    file = Path(folder).absolute() / LOCK
    try:
        with _held(file, folder, WAIT_S):
            yield
    finally:
        with contextlib.suppress(OSError):  # it holds a run, or is still held
            file.parent.rmdir()


def locked_file(file: Path, wait_s: float = WAIT_S) -> contextlib.AbstractContextManager[None]:
    """Hold a file, there or not, by a hidden neighbor; refuses one that a living process holds."""
    return _held(file.absolute().with_name(f".{file.name}.lock"), file, wait_s)


def check_not_held(folder: Path | str) -> None:
    """Refuse a run folder that a living process holds; makes and removes nothing."""
    file = Path(folder).absolute() / LOCK
    if file.is_file():
        # Where nothing can be written, that is said elsewhere.
        with contextlib.suppress(OSError), _refused(file, folder), _lock(file).acquire(WAIT_S):
            pass


@contextlib.contextmanager
def _held(file: Path, path: Path | str, wait_s: float) -> Iterator[None]:
    make_folder(file.parent)
    lock = _lock(file)
    with writing(file), _refused(file, path):
        lock.acquire(wait_s)
    try:
        if not isinstance(lock, SoftFileLock):  # which names its process itself
            with contextlib.suppress(OSError):  # Windows lets nobody write to a locked file
                file.write_text(_own_name())
        yield
    finally:
        if lock.lock_counter == 1:
            with contextlib.suppress(OSError):  # filelock sees that the file of a lock has gone
                file.unlink()
        lock.release()


def _lock(file: Path) -> BaseFileLock:
    return FileLock(file, poll_interval=0.01, is_singleton=True)


@contextlib.contextmanager
def _refused(file: Path, path: Path | str) -> Iterator[None]:
    """Name the process that holds a lock which could not be taken."""
    try:
        yield
    except Timeout as error:
        try:
            holder = " ".join(file.read_text(errors="replace").split())[:200]
        except OSError:
            holder = ""
        raise UsageError(
            f"{path}: is being written by {holder or 'another process'}; wait until that ends, "
            "or choose another path"
        ) from error


def _own_name() -> str:
    command = " ".join(Path(word).name for word in sys.argv[:2])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()} ({command}), since {since}\n"
