"""Locks on run folders and files, so that one process writes at a time.

Locks are those of the operating system, by filelock: they end with their process, even when it is
killed. The lock file names the process.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from shoal.errors import UsageError
from shoal.files import make_folder, writing

LOCK = "run.lock"

# Seconds to wait for a lock; `check_not_locked` of another process takes it for a moment
WAIT_S = 0.5


@contextlib.contextmanager
def locked(folder: Path | str) -> Iterator[None]:
    """Lock a run folder, created if missing; refuse one that another process has locked.

    The folder is removed if it is empty in the end. The lock is reentrant.
    """
    file = Path(folder).absolute() / LOCK
    try:
        with _held(file, folder, WAIT_S):
            yield
    finally:
        with contextlib.suppress(OSError):  # not empty
            file.parent.rmdir()


def locked_file(file: Path, wait_s: float = WAIT_S) -> contextlib.AbstractContextManager[None]:
    """Lock a file by a hidden file next to it; refuse one that another process has locked."""
    return _held(file.absolute().with_name(f".{file.name}.lock"), file, wait_s)


def check_not_locked(folder: Path | str) -> None:
    file = Path(folder).absolute() / LOCK
    if file.is_file():
        # A folder that is not writable is refused elsewhere.
        with contextlib.suppress(OSError), _refused(file, folder), _lock(file).acquire(WAIT_S):
            pass


@contextlib.contextmanager
def _held(file: Path, path: Path | str, wait_s: float) -> Iterator[None]:
    make_folder(file.parent)
    lock = _lock(file)
    with writing(file), _refused(file, path):
        lock.acquire(wait_s)
    try:
        if not isinstance(lock, SoftFileLock):  # a soft lock names its process itself
            with contextlib.suppress(OSError):  # Windows refuses writing to a locked file
                file.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        if lock.lock_counter == 1:
            with contextlib.suppress(OSError):  # filelock tolerates a removed file
                file.unlink()
        lock.release()


def _lock(file: Path) -> BaseFileLock:
    return FileLock(file, poll_interval=0.01, is_singleton=True)


@contextlib.contextmanager
def _refused(file: Path, path: Path | str) -> Iterator[None]:
    """Convert a timeout to an error that names the process with the lock."""
    try:
        yield
    except Timeout as error:
        try:
            holder = " ".join(file.read_text(errors="replace").split())[:200]
        except OSError:
            holder = ""
        raise UsageError(
            f"{path}: is being written by {holder or 'another process'}; wait until it ends, or "
            "choose another path"
        ) from error
