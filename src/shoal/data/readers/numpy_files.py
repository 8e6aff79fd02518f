"""Read arrays of npy and npz files, memory-mapped if they are large; nothing is unpickled."""

import os
import struct
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from shoal.arrays import archive_arrays
from shoal.data.storage.remote import reading
from shoal.errors import DataError

Array = NDArray[np.generic]

MAPPED_BYTES = 1 << 30
"""Size from which the large array of an uncompressed npz is memory-mapped instead of read."""


def load_arrays(path: Path, large: str) -> dict[str, Array]:
    """Return the arrays of an npz file by name; that of an npy file is called `large`.

    The array of an npy file is memory-mapped, and so is a big array `large` of an npz file.
    """
    kind = f"{path.suffix} file of numbers and text (Python objects are never unpickled)"
    with reading(path, kind):
        if path.suffix.lower() == ".npy":
            return {large: np.lib.format.open_memmap(path, mode="r")}
        with path.open("rb") as file, NpzFile(file, allow_pickle=False) as archive:
            return archive_arrays(archive, _map_member(path, large))


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
        file.seek(sum(struct.unpack("<2H", file.read(4))), os.SEEK_CUR)
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
