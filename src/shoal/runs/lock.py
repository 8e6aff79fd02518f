"""One writer at a time: the lock on a run folder, or on a table that is kept up to date.

The lock is the operating system's, on a small file that is held open, so it ends with its process, kill -9 included.
The file says who holds it, and its time is renewed while they do. That serves where the lock of another machine cannot
be seen, as on some network file systems: what another machine holds counts as left behind after two minutes of silence.
"""

import contextlib
import errno
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shoal.errors import UsageError
from shoal.files import make_folder, open_own, writing

LOCK = "run.lock"
"""The file in a run folder that is there while a process writes to it."""

RENEW_S = 20.0
"""Seconds between two signs of life."""

SILENT_S = 120.0
"""Seconds without one after which a process of another machine counts as gone."""

BEYOND = 1 << 20
"""The byte that Windows locks: nobody could read the others otherwise."""

N_TRIES = 10
"""Looks at a lock that is held: a process that only asks whether it is holds it for a moment."""

HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The process that holds a lock."""

    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    started: str = field(default_factory=lambda: _start_of(os.getpid()))
    """When the process began, by the machine's own count, which tells it from a later one of the same number."""
    since: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))
    command: str = field(default_factory=lambda: " ".join(Path(word).name for word in sys.argv[:2]))

    def in_words(self) -> str:
        """Name the process, its machine, and since when it holds the lock."""
        return f"process {self.pid} on {self.host} ({self.command}), since {self.since}"


_mine: dict[Path, int] = {}
"""The locks of this process, each with the thread that holds it."""


@contextlib.contextmanager
def locked(folder: Path | str) -> Iterator[None]:
    """Hold a run folder, made where it is missing; refuses one that a living process holds.

    A folder that is empty in the end is removed. Within a thread the same lock may be taken again.
    """
    file = Path(folder).absolute() / LOCK
    try:
        with _held(file, folder):
            yield
    finally:
        if file not in _mine:
            with contextlib.suppress(OSError):  # it holds a run
                file.parent.rmdir()


def locked_file(file: Path) -> contextlib.AbstractContextManager[None]:
    """Hold a file, there or not, by a hidden neighbor; refuses one that a living process holds."""
    return _held(file.absolute().with_name(f".{file.name}.lock"), file)


@contextlib.contextmanager
def _held(file: Path, path: Path | str) -> Iterator[None]:
    owner = _mine.get(file)
    if owner is not None:
        if owner != threading.get_ident():
            raise UsageError(_refusal(path, "another thread of this process"))
        yield
        return
    make_folder(file.parent)
    descriptor = _acquire(file, path)
    _mine[file] = threading.get_ident()
    is_over = threading.Event()
    threading.Thread(target=_renew, args=(file, is_over), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        del _mine[file]
        _release(file, descriptor)


def check_not_held(folder: Path | str) -> None:
    """Refuse a run folder that a living process holds; makes and removes nothing."""
    file = Path(folder).absolute() / LOCK
    if file in _mine:
        return
    try:
        descriptor = open_own(str(file), os.O_RDWR)
    except OSError:  # nobody holds it, or nothing can be written there, which is said elsewhere
        return
    try:
        _refuse_living(file, descriptor, folder, has_locks=_try_lock(descriptor, folder))
    finally:
        os.close(descriptor)


def _acquire(file: Path, path: Path | str) -> int:
    """The open file with our name in it."""
    while True:
        with writing(file):
            descriptor = open_own(str(file), os.O_RDWR | os.O_CREAT)
        try:
            has_locks = _try_lock(descriptor, path)
            if not _is_same(file, descriptor):  # whoever held it has just removed it
                os.close(descriptor)
                continue
            _refuse_living(file, descriptor, path, has_locks=has_locks)
            with writing(file):
                _write(descriptor, Holder())
            if not has_locks:
                time.sleep(0.5)  # two that write at the same time: the later one has it
                _refuse_living(file, descriptor, path, has_locks=False)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        return descriptor


def _release(file: Path, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        if os.name == "posix" and _is_same(file, descriptor):
            file.unlink()
    os.close(descriptor)
    if os.name != "posix":  # Windows removes no open file
        with contextlib.suppress(OSError):
            file.unlink()


def _try_lock(descriptor: int, path: Path | str) -> bool:
    """Lock an open file and say so; False where the file system has no locks; refused where another process has it."""
    for tries_left in reversed(range(N_TRIES)):
        try:
            _lock(descriptor)
            return True
        except OSError as error:
            if error.errno not in HELD:
                return False
            if not tries_left:
                holder = _read(descriptor)
                raise UsageError(
                    _refusal(path, holder.in_words() if holder else "another process")
                ) from error
        time.sleep(0.05)
    raise AssertionError("the last try returns or raises")


def _refuse_living(file: Path, descriptor: int, path: Path | str, *, has_locks: bool) -> None:
    """Refuse where the file names a process that may still be at it."""
    holder = _read(descriptor)
    if holder is None:
        return
    is_here = holder.host == socket.gethostname()
    if is_here and (
        has_locks or holder.pid == os.getpid() or holder.started != _start_of(holder.pid)
    ):
        return
    if _silence(file, descriptor) < SILENT_S:
        hint = f"; should that process be gone, try again {SILENT_S / 60:.0f} minutes after its end"
        raise UsageError(_refusal(path, holder.in_words()) + hint)


def _refusal(path: Path | str, holder: str) -> str:
    return f"{path}: is being written by {holder}; wait until that ends, or choose another path"


def _silence(file: Path, descriptor: int) -> float:
    """Seconds since the file's time was renewed, by the clock of the file system, which may be another machine's."""
    renewed = os.fstat(descriptor).st_mtime_ns
    try:
        os.utime(file)
        now = file.stat().st_mtime_ns
        os.utime(file, ns=(renewed, renewed))
    except OSError:  # not ours to touch
        now = time.time_ns()
    return (now - renewed) / 1e9


def _renew(file: Path, is_over: threading.Event) -> None:
    while not is_over.wait(RENEW_S):
        with contextlib.suppress(OSError):
            os.utime(file)


def _is_same(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write(descriptor: int, holder: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, (json.dumps(asdict(holder)) + "\n").encode())


def _read(descriptor: int) -> Holder | None:
    """Read the holder from the file; None where it names none that can be read."""
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        return Holder(**json.loads(os.read(descriptor, 4096)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _start_of(pid: int) -> str:
    """When a process of this machine began; 'gone' where it has ended, empty where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    if sys.platform == "win32":
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except OSError:
        pass
    return ""


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, BEYOND, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
