"""Files written whole: after a crash there is the old file or the new one, never half of one.

Also where caches lie.
"""

import errno
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from shoal.errors import ShoalError, UsageError

if TYPE_CHECKING:  # workers that decode images start without numpy
    from numpy.typing import DTypeLike, NDArray

MAX_SCRATCH_BYTES = 1 << 30
"""Arrays that are not kept and take more than this go to a temporary file."""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that takes its name only when it is complete and on the disk.

    The bytes go to a hidden neighbor first; leaving the block without an error renames it over
    `path`. Leaving with one, or being killed, keeps what was there before.
    """
    draft = _draft(path)
    with writing(path):
        file = open(draft, "wb", opener=open_own)  # noqa: SIM115
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            _sync_folder(path.parent)
        finally:
            draft.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut; systems that cannot open folders do without."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_own(path: str, flags: int) -> int:
    """Open a file of our own, as the opener of `open`; a link in its place is not followed."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """A path from the root on; links keep their names, which `Path.resolve` would replace."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text whole, line ends as given."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write at `path` into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ShoalError(
                f"{path}: no space left on the disk; free some, or write somewhere else"
            ) from error
        reason = error.strerror or error
        if error.errno == errno.ELOOP:  # from `open_own`
            reason = "is a link where a file of our own belongs"
        raise UsageError(f"{path}: cannot be written ({reason}); choose another path") from error


def check_writable(path: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, or exists without `force`, before any work is done."""
    if path.is_file() and not force:
        raise UsageError(
            f"{path}: is there already; give --force to overwrite it, or another --out"
        )
    make_folder(path.parent)
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _draft(path).touch()
        _draft(path).unlink()


def make_folder(path: Path) -> None:
    """Create a folder and its parents."""
    with writing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise UsageError(
                f"{path}: is a file, expected a folder; choose another path"
            ) from error


def scratch_array(shape: tuple[int, ...], dtype: "DTypeLike", folder: Path) -> "NDArray[Any]":
    """Room for numbers that are not kept: memory, or past a limit a nameless file in `folder`.

    The file is gone when nobody uses the array; the system writes to it what does not fit into
    memory.
    """
    import numpy as np

    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if n_bytes <= MAX_SCRATCH_BYTES:
        return np.empty(shape, dtype=dtype)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            # A mapped file that outgrows the disk later would kill the process.
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        return np.asarray(np.memmap(file, dtype=dtype, mode="w+", shape=shape))


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all caches: the given one, $SHOAL_CACHE, or shoal in the platform's folder."""
    given = cache or os.environ.get("SHOAL_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(local) / "shoal" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "shoal"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
