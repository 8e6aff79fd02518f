"""The thumbnails of a run: thumbnails.zip, past a million images parts of a million each.

A part of a million stays below 4 GB, so that its directory has one form, which is read at once:
zipfile takes 9 s and 590 MB for a million entries, reading them as an array 0.2 s and 12 MB.
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
from shoal.runs.run_files import CAUSES, Damaged, reading

THUMBNAILS = "thumbnails.zip"
THUMBNAIL_PARTS = part_glob(THUMBNAILS)

ENTRY = np.dtype(
    [
        ("mark", "<u4"),
        ("_", "V12"),
        ("crc", "<u4"),
        ("size", "<u4"),
        ("whole", "<u4"),
        ("name", "<u2"),
        ("extra", "<u2"),
        ("comment", "<u2"),
        ("__", "V8"),
        ("at", "<u4"),
        ("row", "S8"),
    ]
)
"""An entry of the central directory whose name has eight digits and nothing else: 54 bytes."""

Places = NDArray[np.uint32]
"""(N, 3) where each thumbnail begins, its bytes, and their checksum."""


def write_thumbnails(folder: Path, images: Iterable[bytes], n_images: int | None = None) -> None:
    """Write a small WebP, PNG or JPEG per row, in row order; `n_images` says how many, to have them
    in parts."""
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
            # A fixed date: same images, same bytes.
            archive.writestr(zipfile.ZipInfo(f"{row:08d}"), image)


def drop_thumbnails(folder: Path) -> None:
    """Remove what is there of them."""
    for file in (folder / THUMBNAILS, *folder.glob(THUMBNAIL_PARTS)):
        file.unlink(missing_ok=True)


def thumbnail_files(folder: Path) -> list[Path]:
    """thumbnails.zip, or its parts; none where the run has no thumbnails, or was killed while it
    wrote them."""
    if (folder / THUMBNAILS).is_file():
        return [folder / THUMBNAILS]
    try:
        return part_files(folder, THUMBNAILS)
    except Damaged:
        return []


class Thumbnails:
    """The thumbnails of a run, each archive opened when the first of its pictures is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = thumbnail_files(folder)
        self._lock = threading.Lock()
        self._archives: dict[Path, _Archive] = {}

    @property
    def is_there(self) -> bool:
        """Whether the run has any."""
        return bool(self.files)

    def close(self) -> None:
        """Let go of the files."""
        for archive in self._archives.values():
            archive.file.close()
        self._archives = {}

    def read(self, rows: Sequence[int]) -> list[bytes]:
        """The thumbnails of some rows; an error that names the file where one cannot be read."""
        with self._lock:
            return [self._read(row) for row in rows]

    def get(self, rows: Sequence[int]) -> list[bytes]:
        """The same with empty bytes for what cannot be read."""
        pictures = []
        for row in rows:
            try:
                pictures += self.read([row])
            except DataError:
                pictures.append(b"")
        return pictures

    def file_of(self, row: int) -> Path:
        """The file that holds the thumbnail of a row, or that ought to."""
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
    """One zip file of thumbnails, from a row on."""

    def __init__(self, path: Path, first: int) -> None:
        self.file = path.open("rb")
        self.first = first
        try:
            self.places = _places(self.file, first)
        except CAUSES:
            self.file.close()
            raise

    def read(self, row: int) -> bytes:
        at, size, crc = self.places[row - self.first].tolist()
        self.file.seek(at)
        header = self.file.read(30)
        self.file.seek(sum(struct.unpack("<HH", header[26:30])), os.SEEK_CUR)
        picture = self.file.read(size)
        if zlib.crc32(picture) != crc:
            raise zipfile.BadZipFile(f"bad checksum of {row:08d}")
        return picture


def _places(file: BinaryIO, first: int) -> Places:
    """Where each thumbnail is, from row `first` on."""
    end_size = 22
    file.seek(-end_size, os.SEEK_END)
    mark, _, _, _, n_entries, size, at, comment = struct.unpack("<IHHHHIIH", file.read(end_size))
    if n_entries == 0xFFFF:  # more than fit into this record: the one before has the true numbers
        file.seek(-end_size - 20 - 56, os.SEEK_END)
        n_entries, size, at = struct.unpack("<32xQQQ", file.read(56))
    if mark != 0x06054B50 or comment or size != n_entries * ENTRY.itemsize:
        raise zipfile.BadZipFile("not an archive as runs write it")
    file.seek(at)
    table: NDArray[np.void] = np.frombuffer(file.read(size), ENTRY)
    is_plain = (table["size"] == table["whole"]) & (table["name"] == 8) & (table["extra"] == 0)
    rows = table["row"].astype(np.int64)
    if not is_plain.all() or not np.array_equal(rows, first + np.arange(n_entries)):
        raise zipfile.BadZipFile("not an archive as runs write it")
    return np.stack([table["at"], table["size"], table["crc"]], axis=1)
