"""The thumbnails of a run: thumbnails.zip.

Its directory is read as an array, which is much faster and smaller than `zipfile`.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.errors import DataError
from shoal.files import atomic_file
from shoal.runs.run_files import damaged, reading

THUMBNAILS = "thumbnails.zip"

ENTRY = np.dtype(
    [
        ("before", "V16"),
        ("crc", "<u4"),
        ("size", "<u4"),
        ("between", "V18"),
        ("offset", "<u4"),
        ("name", "S8"),
    ]
)
"""An entry of the central directory with a name of eight digits: 54 bytes."""

FAR_ENTRY = np.dtype([("entry", ENTRY), ("extra", "V4"), ("offset", "<u8")])
"""An entry of a thumbnail beyond 2 GB, whose `ENTRY.offset` is `FAR`."""

FAR = 0xFFFFFFFF

LOCAL_HEADER_BYTES = 38
"""Bytes between the offset of an entry and its content, with a name of eight digits."""


def write_thumbnails(folder: Path, images: Iterable[bytes]) -> None:
    """Write a small WebP, PNG or JPEG per row, in row order."""
    with atomic_file(folder / THUMBNAILS) as file, zipfile.ZipFile(file, "w") as archive:
        for row, image in enumerate(images):
            # A fixed date makes the bytes reproducible.
            archive.writestr(zipfile.ZipInfo(f"{row:08d}"), image)


class Thumbnails:
    """The thumbnails of a run; the archive is mapped into memory on first access."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / THUMBNAILS

    def read(self, rows: Sequence[int]) -> list[bytes]:
        """Return the thumbnails of some rows; refuse a damaged file."""
        return [self._read(row) for row in rows]

    def get(self, rows: Sequence[int]) -> list[bytes]:
        """Return the thumbnails of some rows, empty bytes for unreadable ones."""
        pictures = []
        for row in rows:
            try:
                pictures.append(self._read(row))
            except DataError:
                pictures.append(b"")
        return pictures

    def _read(self, row: int) -> bytes:
        with reading(self.file):
            offset, size, checksum = self._places[row].tolist()
        start = offset + LOCAL_HEADER_BYTES
        picture = self._content[start : start + size].tobytes()
        if zlib.crc32(picture) != checksum:
            raise damaged(self.file, f"bad checksum of {row:08d}")
        return picture

    @cached_property
    def _content(self) -> NDArray[np.uint8]:
        return np.memmap(self.file, mode="r")

    @cached_property
    def _places(self) -> NDArray[np.uint64]:
        """(N, 3) offset, size and checksum of each thumbnail.

        Nothing else is checked: where the archive is damaged, checksums differ.
        """
        content = self._content
        n_entries, start = struct.unpack("<10xH4xI2x", content[-22:].tobytes())
        if n_entries == 0xFFFF:  # too many for this record: the Zip64 record before it has them
            n_entries, start = struct.unpack("<32xQ8xQ", content[-98:-42].tobytes())
        near = np.frombuffer(content, ENTRY, n_entries, start)
        n_near = n_entries
        if FAR in near["offset"]:
            n_near = int((near["offset"] == FAR).argmax())
        far_start = start + n_near * ENTRY.itemsize
        far = np.frombuffer(content, FAR_ENTRY, n_entries - n_near, far_start)
        entries = np.concatenate([near[:n_near], far["entry"]])
        offsets = np.concatenate([near["offset"][:n_near], far["offset"]])
        return np.stack([offsets, entries["size"], entries["crc"]], axis=1, dtype=np.uint64)
