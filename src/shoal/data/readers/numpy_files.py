"""Arrays of npy and npz files, mapped into memory where they are large; nothing is ever
unpickled."""

import os
import struct
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.arrays import DAMAGED, archive_arrays
from shoal.errors import DataError

Array = NDArray[np.generic]

MAPPED_BYTES = 1 << 30
"""From this size on the large array of an npz that is not compressed is mapped into memory
instead of read."""


def load_arrays(path: Path, large: str) -> dict[str, Array]:
    """The arrays of an npz file by name, of which the `large` one may be mapped into memory; that
    of an npy file is mapped, as `large`."""
    is_archive = path.suffix.lower() == ".npz"
    expected = b"PK" if is_archive else b"\x93NUMPY"
    try:
        # Opened here, because numpy leaves open what it cannot read.
        with path.open("rb") as file:
            # numpy takes anything that it does not know for pickled objects.
            start = file.read(6)
            if not start.startswith(expected):
                raise ValueError(f"it starts with {start!r}")
            file.seek(0)
            if not is_archive:
                return {large: np.load(path, allow_pickle=False, mmap_mode="r")}
            with np.load(file, allow_pickle=False) as archive:
                return archive_arrays(archive, _mapped_member(path, large))
    except DAMAGED as error:
        reason = f"cannot be read as a {path.suffix} file ({error}); save it again with numpy"
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            reason = (
                "holds Python objects, which are never unpickled; save numbers, and names as a "
                "text array (dtype U)"
            )
        raise DataError(f"{path}: {reason}") from error


def _mapped_member(path: Path, name: str) -> dict[str, Array]:
    """A large array of an npz mapped into memory; nothing where it is small, compressed or not
    there."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        if f"{name}.npy" not in archive.namelist():
            return {}
        member = archive.getinfo(f"{name}.npy")
        if member.file_size < MAPPED_BYTES or member.compress_type != zipfile.ZIP_STORED:
            return {}
        file.seek(member.header_offset + 26)  # of the 30 bytes before the name
        n_name, n_extra = struct.unpack("<2H", file.read(4))
        file.seek(n_name + n_extra, os.SEEK_CUR)
        read = np.lib.format.read_array_header_2_0
        if np.lib.format.read_magic(file) == (1, 0):
            read = np.lib.format.read_array_header_1_0
        shape, is_fortran, dtype = read(file)
        if dtype.hasobject:
            return {}
        mapped = np.memmap(path, dtype, "r", file.tell(), shape, "F" if is_fortran else "C")
        return {name: mapped}


def one_per_row(values: Array, n_rows: int, where: str) -> list[object]:
    """An array (N,) as a list; another shape is refused, since whole rows would be read as names
    of classes."""
    if values.shape != (n_rows,):
        raise DataError(
            f"{where}: found shape {values.shape}, expected ({n_rows},), one per row of embeddings "
            "in their order; reshape it, or look whether it belongs to another file"
        )
    return list(values.tolist())
