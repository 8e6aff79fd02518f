"""The thumbnails of a run: thumbnails.bin has the pictures, then the place where each ends."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from shoal.files import atomic_file
from shoal.runs.run_files import reading

THUMBNAILS = "thumbnails.bin"

NUMBER = np.dtype("<u8")


def write_thumbnails(folder: Path, images: Iterable[bytes]) -> None:
    """Write a small WebP per row, in row order."""
    ends = [0]
    with atomic_file(folder / THUMBNAILS) as file:
        for image in images:
            file.write(image)
            ends.append(ends[-1] + len(image))
        file.write(np.array([*ends, len(ends)], NUMBER).tobytes())


def read_thumbnails(folder: Path, rows: Iterable[int]) -> Iterator[bytes]:
    """Yield the thumbnails of some rows; the file is mapped into memory."""
    file = folder / THUMBNAILS
    with reading(file):
        content = np.memmap(file, mode="r")
        table = content[-NUMBER.itemsize :].tobytes()
        n_ends = int.from_bytes(table, "little")
        start = len(content) - (n_ends + 1) * NUMBER.itemsize
        ends = np.frombuffer(content, NUMBER, n_ends, start)
        for row in rows:
            yield content[ends[row] : ends[row + 1]].tobytes()
