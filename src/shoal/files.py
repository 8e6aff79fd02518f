"""Atomic writes (after a crash there is the old file or the new one, never a part of one), scratch
arrays, and the folder of caches.
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

if TYPE_CHECKING:  # worker processes that decode images start without numpy
    from numpy.typing import DTypeLike, NDArray

AnyPath = str | os.PathLike[str]

# Larger scratch arrays are mapped to a temporary file
MAX_SCRATCH_BYTES = 1 << 30


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name only when it is complete and on the disk.

    The bytes go to a hidden file in the same folder, which replaces `path` at the end of the block.
    After an error, or if the process is killed, `path` is unchanged.
    """
    draft = _draft(path)
    with writing(path):
        file = open(draft, "wb", opener=open_no_follow)  # noqa: SIM115
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def open_no_follow(path: str, flags: int) -> int:
    """Open a file without following a link, as the opener of `open`."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def absolute_path(path: AnyPath) -> Path:
    """Return an absolute path; unlike `Path.resolve`, links are not resolved."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, with the line ends of `text`."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError while writing `path` into an error with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ShoalError(
                f"{path}: no space left on the disk; free some, or choose another path "
                "($SHOAL_CACHE for the cache)"
            ) from error
        reason = error.strerror or error
        raise UsageError(
            f"{path}: cannot be written ({reason}); choose another path ($SHOAL_CACHE for the "
            "cache)"
        ) from error


def check_writable(path: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, or that exists, without `force`."""
    if path.is_file() and not force:
        raise UsageError(f"{path}: exists already; give --force to overwrite it, or another --out")
    make_folder(path.parent)
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError("is a folder")
        _draft(path).touch()
        _draft(path).unlink()


def make_folder(path: Path) -> None:
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def scratch_array(shape: tuple[int, ...], dtype: "DTypeLike", folder: Path) -> "NDArray[Any]":
    """Return an uninitialized array in memory, or mapped to a temporary file if it is large.

    The file has no name, and disappears with the array.
    """
    import numpy as np

    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if n_bytes <= MAX_SCRATCH_BYTES:
        return np.empty(shape, dtype=dtype)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            # If the disk were full later, a write to the map would kill the process.
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        return np.asarray(np.memmap(file, dtype=dtype, mode="w+", shape=shape))


def cache_folder(cache: AnyPath | None = None) -> Path:
    """Return the folder of all caches: `cache`, $SHOAL_CACHE, or shoal in the platform's folder."""
    chosen = cache or os.environ.get("SHOAL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(local) / "shoal" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "shoal"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"
