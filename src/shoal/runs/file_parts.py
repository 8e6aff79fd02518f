"""Parts of large files, named NAME-00000-of-00010.SUFFIX and so on."""

import math
from pathlib import Path

from shoal.runs.run_files import damaged

PART_ROWS = 1_000_000
"""Rows per part; fewer rows are one file."""


def part_names(whole: str, n_rows: int) -> list[str]:
    """Return the names of the parts of a file with a number of rows; its own name for few rows."""
    if n_rows <= PART_ROWS:
        return [whole]
    return _names(whole, math.ceil(n_rows / PART_ROWS))


def _names(whole: str, n_parts: int) -> list[str]:
    name = Path(whole)
    return [f"{name.stem}-{part:05d}-of-{n_parts:05d}{name.suffix}" for part in range(n_parts)]


def part_glob(whole: str) -> str:
    """Return a glob pattern for the parts of a file."""
    name = Path(whole)
    digits = "[0-9]" * 5
    return f"{name.stem}-{digits}-of-{digits}{name.suffix}"


def part_files(folder: Path, whole: str) -> list[Path]:
    """Return the parts of a file in order; empty without parts. Refuse a missing part."""
    n_parts = max((int(file.stem[-5:]) for file in folder.glob(part_glob(whole))), default=0)
    files = [folder / name for name in _names(whole, n_parts)]
    for number, file in enumerate(files, start=1):
        if not file.is_file():
            raise damaged(file, f"part {number} of {n_parts} is missing")
    return files
