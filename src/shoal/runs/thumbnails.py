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
from shoal.runs.file_parts import count_parts, part_files, part_glob, part_name
from shoal.runs.run_files import CAUSES, reading

THUMBNAILS = "thumbnails.zip"
THUMBNAIL_PARTS = part_glob(THUMBNAILS)

ENTRY = np.dtype(
    [
        ("signature", "<u4"),
        ("_", "V12"),
        ("crc", "<u4"),
        ("size", "<u4"),
        ("uncompressed_size", "<u4"),
        ("name_length", "<u2"),
        ("extra_length", "<u2"),
        ("comment_length", "<u2"),
        ("__", "V8"),
        ("offset", "<u4"),
        ("row", "S8"),
    ]
)
"""An entry of the central directory with a name of eight digits: 54 bytes."""

Places = NDArray[np.uint32]
"""(N, 3) offset, size and checksum of each thumbnail."""


def write_thumbnails(folder: Path, images: Iterable[bytes], n_images: int | None = None) -> None:
    """Write a small WebP, PNG or JPEG per row, in row order; `n_images` is needed for parts."""
    drop_thumbnails(folder)
    source = enumerate(images)
    n_parts = count_parts(n_images or 0)
    if n_parts < 2:
        _write(folder / THUMBNAILS, source)
        return
    for part in range(n_parts):
        _write(
            folder / part_name(THUMBNAILS, part, n_parts),
            itertools.islice(source, file_parts.PART_ROWS),
        )


def _write(file: Path, images: Iterable[tuple[int, bytes]]) -> None:
    with atomic_file(file) as opened, zipfile.ZipFile(opened, "w") as archive:
        for row, image in images:
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
        self.folder = folder
        self.files = thumbnail_files(folder)
        self._lock = threading.Lock()
        self._archives: dict[Path, _Archive] = {}

    def close(self) -> None:
        """Close the files."""
        for archive in self._archives.values():
            archive.file.close()
        self._archives = {}

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

    def file_of(self, row: int) -> Path:
        """Return the file with the thumbnail of a row, which may be missing."""
        if not self.files:
            return self.folder / THUMBNAILS
        return self.files[min(row // file_parts.PART_ROWS, len(self.files) - 1)]

    def _read(self, row: int) -> bytes:
        file = self.file_of(row)
        with reading(file):
            if file not in self._archives:
                first = self.files.index(file) * file_parts.PART_ROWS if self.files else 0
                self._archives[file] = _Archive(file, first)
            return self._archives[file].read(row)


class _Archive:
    """A zip file of thumbnails, those of row `first` and later."""

    def __init__(self, path: Path, first: int) -> None:
        self.file = path.open("rb")
        self.first = first
        try:
            self.places = _places(self.file, first)
        except CAUSES:
            self.file.close()
            raise

    def read(self, row: int) -> bytes:
        offset, size, crc = self.places[row - self.first].tolist()
        self.file.seek(offset)
        header = self.file.read(30)
        # Skip the name and the extra field, whose lengths end the local header.
        self.file.seek(sum(struct.unpack("<HH", header[26:30])), os.SEEK_CUR)
        picture = self.file.read(size)
        if zlib.crc32(picture) != crc:
            raise zipfile.BadZipFile(f"bad checksum of {row:08d}")
        return picture


def _places(file: BinaryIO, first: int) -> Places:
    """Return the places of the thumbnails of a file that starts with row `first`."""
    end_size = 22
    file.seek(-end_size, os.SEEK_END)
    end = struct.unpack("<IHHHHIIH", file.read(end_size))
    signature, _, _, _, n_entries, size, offset, comment_length = end
    if n_entries == 0xFFFF:  # too many for this record: the Zip64 record before it has them
        file.seek(-end_size - 20 - 56, os.SEEK_END)
        n_entries, size, offset = struct.unpack("<32xQQQ", file.read(56))
    if signature != 0x06054B50 or comment_length or size != n_entries * ENTRY.itemsize:
        raise zipfile.BadZipFile("not an archive written by a run")
    file.seek(offset)
    table: NDArray[np.void] = np.frombuffer(file.read(size), ENTRY)
    is_plain = table["size"] == table["uncompressed_size"]
    is_plain &= (table["name_length"] == 8) & (table["extra_length"] == 0)
    rows = table["row"].astype(np.int64)
    if not is_plain.all() or not np.array_equal(rows, first + np.arange(n_entries)):
        raise zipfile.BadZipFile("not an archive written by a run")
    return np.stack([table["offset"], table["size"], table["crc"]], axis=1)
