"""Files written whole: after a crash there is the old file or the new one, never half of one; and where caches lie."""

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

    The bytes go to a hidden neighbor first; leaving the block without an error renames it over `path`. Leaving with
    one, or being killed, keeps what was there before.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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


def open_own(path: str, flags: int) -> int:
    """Open a file of our own, as the opener of `open`: a link in its place, to somebody's file, is not followed."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """A path from the root on; links keep their names, which `Path.resolve` would replace by what they lead to."""
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
        if error.errno == errno.ELOOP:
            raise UsageError(
                f"{path}: is a link where a file of our own belongs; remove it"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR):
            raise UsageError(
                f"{path}: cannot be written ({error.strerror}); choose another path"
            ) from error
        raise ShoalError(
            f"{path}: cannot be written ({error.strerror or error}); choose another path"
        ) from error


def check_writable(path: Path, *, force: bool) -> None:
    """Refuse a file that could not be written, or is there without `force`, before the work that goes into it."""
    if path.exists() and not path.is_dir() and not force:
        raise UsageError(
            f"{path}: is there already; give --force to overwrite it, or another --out"
        )
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        draft.touch()
        draft.unlink()


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
    """Room for numbers that are not kept: memory, or past a limit a mapped file without a name in `folder`.

    The file is gone when nobody uses the array; the system writes to it what does not fit into memory.
    """
    import numpy as np

    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if n_bytes <= MAX_SCRATCH_BYTES:
        return np.empty(shape, dtype=dtype)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(
            os, "posix_fallocate"
        ):  # a mapped file that outgrows the disk later would kill the process
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        return np.asarray(np.memmap(file, dtype=dtype, mode="w+", shape=shape))


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all caches: the given one, $SHOAL_CACHE, or shoal in the platform's cache folder."""
    given = cache if cache is not None else os.environ.get("SHOAL_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        return (
            Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
            / "shoal"
            / "Cache"
        )
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "shoal"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut; systems that cannot open folders do without."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
