"""Parts of what would be one large file: NAME-00000-of-00010.SUFFIX and so on, as other programs
name theirs."""

import re
from pathlib import Path

from shoal.runs.run_files import damaged

PART_ROWS = 1_000_000
"""Rows of a part; what has no more of them is one file."""

PART_NAME = re.compile(r".+-(\d{5})-of-(\d{5})\.\w+")


def count_parts(n_rows: int) -> int:
    """How many parts so many rows take."""
    return -(-n_rows // PART_ROWS)


def part_name(whole: str, part: int, n_parts: int) -> str:
    """The name of a part of a file that would be called `whole`."""
    name = Path(whole)
    return f"{name.stem}-{part:05d}-of-{n_parts:05d}{name.suffix}"


def part_glob(whole: str) -> str:
    """What finds every part of a file."""
    name = Path(whole)
    return f"{name.stem}-*-of-*{name.suffix}"


def part_files(folder: Path, whole: str) -> list[Path]:
    """Every part of a file, in order; empty where it has none. A lost part is an error."""
    parts = {}
    for file in folder.glob(part_glob(whole)):
        if name := PART_NAME.fullmatch(file.name):
            parts[int(name[1])] = (file, int(name[2]))
    n_parts = max((n_parts for _, n_parts in parts.values()), default=0)
    for part in range(n_parts):
        if parts.get(part, (None, 0))[1] != n_parts:
            raise damaged(
                folder / part_name(whole, part, n_parts),
                f"part {part + 1} of {n_parts} is not there",
            )
    return [parts[part][0] for part in range(n_parts)]
