"""Parts of large files, named NAME-00000-of-00010.SUFFIX and so on."""

from pathlib import Path

from shoal.runs.run_files import damaged

PART_ROWS = 1_000_000
"""Rows per part; fewer rows are one file."""


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
    digits = "[0-9]" * 5
    return f"{name.stem}-{digits}-of-{digits}{name.suffix}"


def part_files(folder: Path, whole: str) -> list[Path]:
    """Return the parts of a file in order; empty without parts. Refuse a missing part."""
    n_parts = max((int(file.stem[-5:]) for file in folder.glob(part_glob(whole))), default=0)
    files = [folder / part_name(whole, part, n_parts) for part in range(n_parts)]
    for number, file in enumerate(files, start=1):
        if not file.is_file():
            raise damaged(file, f"part {number} of {n_parts} is missing")
    return files
