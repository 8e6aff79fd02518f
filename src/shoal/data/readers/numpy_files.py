"""Read arrays of npy and npz files, memory-mapped if they are large; nothing is unpickled."""

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
"""Size from which the large array of an uncompressed npz is memory-mapped instead of read."""


def load_arrays(path: Path, large: str) -> dict[str, Array]:
    """Return the arrays of an npz file by name; that of an npy file is called `large`.

    The array of an npy file is memory-mapped, and so is a big array `large` of an npz file.
    """
    is_archive = path.suffix.lower() == ".npz"
    expected = b"PK" if is_archive else b"\x93NUMPY"
    try:
        # Opened here: numpy does not close a file that it cannot read.
        with path.open("rb") as file:
            # numpy would take unknown content for pickled objects.
            start = file.read(6)
            if not start.startswith(expected):
                raise ValueError(f"it starts with {start!r}")
            file.seek(0)
            if not is_archive:
                return {large: np.load(path, allow_pickle=False, mmap_mode="r")}
            with np.load(file, allow_pickle=False) as archive:
                return archive_arrays(archive, _map_member(path, large))
    except DAMAGED as error:
        reason = f"cannot be read as a {path.suffix} file ({error}); save it again with numpy"
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            reason = (
                "holds Python objects, which are never unpickled; save numbers, and names as a "
                "text array (dtype U)"
            )
        raise DataError(f"{path}: {reason}") from error


def _map_member(path: Path, name: str) -> dict[str, Array]:
    """Return a memory-mapped array of an npz; nothing if it is small, compressed or missing."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        if f"{name}.npy" not in archive.namelist():
            return {}
        member = archive.getinfo(f"{name}.npy")
        if member.file_size < MAPPED_BYTES or member.compress_type != zipfile.ZIP_STORED:
            return {}
        # The lengths of the name and of the extra field are the last 4 of the header's 30 bytes.
        file.seek(member.header_offset + 26)
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
    """Return an array (N,) as a list; refuse any other shape."""
    if values.shape != (n_rows,):
        raise DataError(
            f"{where}: found shape {values.shape}, expected ({n_rows},), one per row of the "
            "embeddings in their order"
        )
    return list(values.tolist())
