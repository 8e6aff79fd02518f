"""Arrays of npy and npz files, mapped into memory where they are large; nothing is ever
unpickled."""

import os
import struct
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.arrays import DAMAGED, archive_arrays
from shoal.errors import DataError

MAPPED_BYTES = 1 << 30
"""From this size on the large array of an npz that is not compressed is mapped into memory
instead of read."""


def load_array(path: Path) -> Any:
    """The array of an npy file, mapped into memory."""
    _check_start(path, b"\x93NUMPY", "numpy.save")
    try:
        return np.load(path, allow_pickle=False, mmap_mode="r")
    except DAMAGED as error:
        raise DataError(f"{path}: {_why_unreadable(error)}") from error


def load_arrays(path: Path, large: str) -> dict[str, Any]:
    """The arrays of an npz file by name, of which the `large` one may be mapped into memory."""
    _check_start(path, b"PK", "numpy.savez")
    try:
        # Opened here, because numpy leaves open what it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            mapped = _mapped_member(path, large)
            return archive_arrays(archive, {} if mapped is None else {large: mapped})
    except DAMAGED as error:
        raise DataError(f"{path}: {_why_unreadable(error)}") from error


def _check_start(path: Path, expected: bytes, writer: str) -> None:
    """Refuse what is no numpy file at all: numpy takes anything that it does not know for
    pickled objects."""
    try:
        with path.open("rb") as file:
            start = file.read(24)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); check the permissions"
        ) from error
    if not start.startswith(expected):
        raise DataError(
            f"{path}: is not a {path.suffix} file, it starts with {start!r}; write it with "
            f"{writer}, or give the file "
            "the suffix of what it is"
        )


def _why_unreadable(error: Exception) -> str:
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return (
            "holds Python objects, which are never unpickled; save numbers, and names as a text "
            "array (dtype U)"
        )
    return f"cannot be read as a numpy file ({error}); save it again with numpy.save or numpy.savez"


def _mapped_member(path: Path, name: str) -> Any:
    """A large array of an npz mapped into memory; None where it is small, compressed or not
    there."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        member = next((one for one in archive.infolist() if one.filename == f"{name}.npy"), None)
        if member is None or member.file_size < MAPPED_BYTES:
            return None
        if member.compress_type != zipfile.ZIP_STORED:
            return None
        file.seek(member.header_offset + 26)  # of the 30 bytes before the name
        n_name, n_extra = struct.unpack("<2H", file.read(4))
        file.seek(n_name + n_extra, os.SEEK_CUR)
        read = np.lib.format.read_array_header_2_0
        if np.lib.format.read_magic(file) == (1, 0):
            read = np.lib.format.read_array_header_1_0
        shape, is_fortran, dtype = read(file)
        if dtype.hasobject:
            return None
        order: Literal["F", "C"] = "F" if is_fortran else "C"
        return np.memmap(path, dtype=dtype, mode="r", offset=file.tell(), shape=shape, order=order)


def one_per_row(values: Any, n_rows: int, where: str) -> list[Any]:
    """An array (N,) as a list; another shape is refused, since whole rows would be read as names
    of classes."""
    if values.shape == (n_rows,):
        return decoded(values.tolist(), where)
    raise DataError(
        f"{where}: found shape {values.shape}, expected ({n_rows},), one per row of embeddings in "
        "their order; "
        "reshape it, or look whether it belongs to another file"
    )


def decoded(cells: list[Any], where: str) -> list[Any]:
    """Names stored as bytes as the text that they spell."""
    try:
        return [cell.decode("utf-8") if isinstance(cell, bytes) else cell for cell in cells]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: found {error.object!r}, which is no UTF-8; save names as text (dtype U)"
        ) from error
