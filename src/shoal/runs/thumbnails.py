"""The thumbnails of a run: thumbnails.zip, or parts of a million images each.

A part stays below 4 GB, so that its directory has a fixed format and can be read as an array, which
is much faster and smaller than `zipfile`.
"""

import itertools
import os
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from shoal.errors import DataError
from shoal.files import atomic_file
from shoal.runs import file_parts
from shoal.runs.file_parts import part_files, part_glob, part_names
from shoal.runs.run_files import reading

THUMBNAILS = "thumbnails.zip"
THUMBNAIL_PARTS = part_glob(THUMBNAILS)

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

LOCAL_HEADER_BYTES = 38
"""Bytes between the offset of an entry and its content, with a name of eight digits."""

Places = NDArray[np.uint32]
"""(N, 3) offset, size and checksum of each thumbnail."""


def write_thumbnails(folder: Path, images: Iterable[bytes], n_images: int | None = None) -> None:
    """Write a small WebP, PNG or JPEG per row, in row order; beyond a million with `n_images`."""
    drop_thumbnails(folder)
    source = enumerate(images)
    for name in part_names(THUMBNAILS, n_images or 0):
        with atomic_file(folder / name) as file, zipfile.ZipFile(file, "w") as archive:
            for row, image in itertools.islice(source, file_parts.PART_ROWS):
                # A fixed date makes the bytes reproducible.
                archive.writestr(zipfile.ZipInfo(f"{row:08d}"), image)


def drop_thumbnails(folder: Path) -> None:
    """Remove all thumbnails."""
    for file in (folder / THUMBNAILS, *folder.glob(THUMBNAIL_PARTS)):
        file.unlink(missing_ok=True)


def thumbnail_files(folder: Path) -> list[Path]:
    """Return thumbnails.zip or its parts; empty if they are missing or incomplete."""
    if (folder / THUMBNAILS).is_file():
        return [folder / THUMBNAILS]
    try:
        return part_files(folder, THUMBNAILS)
    except DataError:
        return []


class Thumbnails:
    """The thumbnails of a run; archives are opened on first access."""

    def __init__(self, folder: Path) -> None:
        self.files = thumbnail_files(folder)
        self._parts = self.files or [folder / THUMBNAILS]  # reading it will say that it is missing
        self._lock = threading.Lock()
        self._archives: dict[Path, tuple[Places, BinaryIO]] = {}

    def close(self) -> None:
        """Close the files."""
        for _, archive in self._archives.values():
            archive.close()

    def read(self, rows: Sequence[int]) -> list[bytes]:
        """Return the thumbnails of some rows; refuse a damaged file."""
        with self._lock:
            return [self._read(row) for row in rows]

    def get(self, rows: Sequence[int]) -> list[bytes]:
        """Return the thumbnails of some rows, empty bytes for unreadable ones."""
        pictures = []
        for row in rows:
            try:
                pictures += self.read([row])
            except DataError:
                pictures.append(b"")
        return pictures

    def _read(self, row: int) -> bytes:
        part = min(row // file_parts.PART_ROWS, len(self._parts) - 1)
        file = self._parts[part]
        with reading(file):
            if file not in self._archives:
                self._archives[file] = (_read_places(file), file.open("rb"))
            places, archive = self._archives[file]
            offset, size, checksum = places[row - part * file_parts.PART_ROWS].tolist()
            archive.seek(offset + LOCAL_HEADER_BYTES)
            picture = archive.read(size)
            if zlib.crc32(picture) != checksum:
                raise zipfile.BadZipFile(f"bad checksum of {row:08d}")
            return picture


def _read_places(file: Path) -> Places:
    """Return the places of the thumbnails in an archive.

    Nothing else is checked: where the archive is damaged, checksums differ.
    """
    with file.open("rb") as archive:
        archive.seek(-22, os.SEEK_END)
        n_entries, offset = struct.unpack("<10xH4xI2x", archive.read(22))
        if n_entries == 0xFFFF:  # too many for this record: the Zip64 record before it has them
            archive.seek(-98, os.SEEK_END)
            n_entries, offset = struct.unpack("<32xQ8xQ", archive.read(56))
    table = np.fromfile(file, ENTRY, n_entries, offset=offset)
    return np.stack([table["offset"], table["size"], table["crc"]], axis=1)
