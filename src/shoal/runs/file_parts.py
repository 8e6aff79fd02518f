"""Parts of large files, named NAME-00000-of-00010.SUFFIX and so on."""

import re
from pathlib import Path

from shoal.runs.run_files import damaged

PART_ROWS = 1_000_000
"""Rows per part; fewer rows are one file."""

PART_NAME = re.compile(r".+-(\d{5})-of-(\d{5})\.\w+")


def count_parts(n_rows: int) -> int:
    """Return the number of parts for a number of rows."""
    return -(-n_rows // PART_ROWS)


def part_name(whole: str, part: int, n_parts: int) -> str:
    """Return the name of a part of the file `whole`."""
    name = Path(whole)
    return f"{name.stem}-{part:05d}-of-{n_parts:05d}{name.suffix}"


def part_glob(whole: str) -> str:
    """Return a glob pattern for the parts of a file."""
    name = Path(whole)
    return f"{name.stem}-*-of-*{name.suffix}"


def part_files(folder: Path, whole: str) -> list[Path]:
    """Return the parts of a file in order; empty without parts. Refuse a missing part."""
    parts = {}
    for file in folder.glob(part_glob(whole)):
        if name := PART_NAME.fullmatch(file.name):
            parts[int(name[1])] = (file, int(name[2]))
    n_parts = max((n_parts for _, n_parts in parts.values()), default=0)
    for part in range(n_parts):
        if parts.get(part, (None, 0))[1] != n_parts:
            raise damaged(
                folder / part_name(whole, part, n_parts),
                f"part {part + 1} of {n_parts} is missing",
            )
    return [parts[part][0] for part in range(n_parts)]
