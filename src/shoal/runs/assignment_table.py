"""The table of a run's images: assignments.csv, or Parquet parts for more than a million rows.

Parts of a million rows are named assignments-00000-of-00010.parquet and so on. Numbers in them are
rounded as in CSV, so that both formats contain the same values. Boxes in images have the columns x,
y, width and height, but not in parts, where `path` contains them.

People may edit one table of a run and not the other: `check_columns` reports inconsistencies.
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from statistics import mode
from typing import Any, get_type_hints, overload

import numpy as np

from shoal.arrays import UNLABELED
from shoal.boxes import BOX_COLUMNS
from shoal.errors import DataError, missing_package
from shoal.files import atomic_file
from shoal.runs import file_parts
from shoal.runs.file_parts import part_files, part_glob, part_names
from shoal.runs.rows import (
    DECIMALS,
    Assignment,
    Category,
    Columns,
    has_boxes,
    read_columns,
    read_rows,
    write_csv,
)
from shoal.runs.run_files import damaged, read_array, reading

TABLE = "assignments.csv"
PARQUET = "assignments.parquet"
TABLE_PARTS = part_glob(PARQUET)
HINTS = get_type_hints(Assignment)

BLOCK_ROWS = 65_536
"""Rows in a group of a Parquet table, and in memory while an array is written."""

NO_CATEGORY = UNLABELED
"""The category id of an image without a category."""


def write_assignments(folder: Path, rows: Iterable[Assignment], n_rows: int) -> None:
    """Write the table of `n_rows` images: assignments.csv and, with pyarrow, assignments.parquet,
    or parts instead of both for a large run."""
    if n_rows > file_parts.PART_ROWS and _has_pyarrow():
        for name in (TABLE, PARQUET):
            (folder / name).unlink(missing_ok=True)
        write_parquet(folder, rows, n_rows)
        return
    listed = list(rows)
    write_parquet(folder, listed, n_rows)
    write_csv(Assignment, listed, folder / TABLE)


def write_parquet(folder: Path, rows: Iterable[Assignment], n_rows: int) -> None:
    """Write assignments.parquet, or parts of a large table; nothing without pyarrow."""
    for file in folder.glob(TABLE_PARTS):
        file.unlink()
    if not _has_pyarrow():
        return
    source = iter(rows)
    for name in part_names(PARQUET, n_rows):
        _write_part(folder / name, list(islice(source, file_parts.PART_ROWS)))


def _write_part(file: Path, rows: Sequence[Assignment]) -> None:
    import pyarrow
    import pyarrow.parquet

    is_whole = file.name == PARQUET
    columns = {}
    for name, hint in HINTS.items():
        values = [getattr(row, name) for row in rows]
        if hint is float and not is_whole:
            values = [round(value, DECIMALS) + 0.0 for value in values]  # never -0
        columns[name] = pyarrow.array(values, pyarrow.from_numpy_dtype(hint))
    if is_whole and has_boxes(rows):
        for name in BOX_COLUMNS:
            values = [getattr(row.box, name, None) for row in rows]
            columns[name] = pyarrow.array(values, pyarrow.int64())
    with atomic_file(file) as out:
        pyarrow.parquet.write_table(pyarrow.table(columns), out, row_group_size=BLOCK_ROWS)


def table_files(folder: Path) -> list[Path]:
    """Return all parts of the table, or the path of assignments.csv; refuse a missing part."""
    return part_files(folder, PARQUET) or [folder / TABLE]


def count_assignments(folder: Path) -> int:
    """Return the number of images in the table."""
    return len(read_assignment_columns(folder, ["category_id"])["category_id"])


def read_assignments(folder: Path) -> Sequence[Assignment]:
    """Return a row per image: a list, or for parts a sequence that builds rows on access."""
    file = table_files(folder)[0]
    if file.name == TABLE:
        return read_rows(Assignment, file)
    return PartRows(read_assignment_columns(folder))


def read_assignment_columns(folder: Path, names: Sequence[str] = tuple(HINTS)) -> Columns:
    """Return all or some columns of the table."""
    files = table_files(folder)
    if files[0].name == TABLE:
        return read_columns(Assignment, files[0], names)
    parts = [_read_part(file, names) for file in files]
    columns: Columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    for name in names:
        if HINTS[name] is str:
            columns[name] = columns[name].tolist()
    return columns


def column(rows: Sequence[Assignment], name: str) -> Any:
    """Return (N,) one column of rows, a list or an array."""
    if isinstance(rows, PartRows):
        return rows.columns[name]
    return [getattr(row, name) for row in rows]


class PartRows(Sequence[Assignment]):
    """The rows of a large table, stored as columns, which take less memory."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["path"])

    @overload
    def __getitem__(self, at: int) -> Assignment: ...

    @overload
    def __getitem__(self, at: slice) -> list[Assignment]: ...

    def __getitem__(self, at: int | slice) -> Assignment | list[Assignment]:
        if isinstance(at, slice):
            return [self[row] for row in range(*at.indices(len(self)))]
        return Assignment(
            **{name: HINTS[name](values[at]) for name, values in self.columns.items()}
        )


def _read_part(file: Path, names: Sequence[str]) -> Columns:
    """Return columns of a part as arrays; texts as objects."""
    if not _has_pyarrow():
        raise missing_package("pyarrow", "reading the table of a large run")
    import pyarrow
    import pyarrow.parquet

    with reading(file):
        table = pyarrow.parquet.ParquetFile(file).read()
        fields = [
            pyarrow.field(name, pyarrow.from_numpy_dtype(hint), nullable=False)
            for name, hint in HINTS.items()
        ]
        table = table.select([*HINTS]).cast(pyarrow.schema(fields))
        columns: Columns = {name: table.column(name).to_numpy() for name in names}
    for name in names:
        if HINTS[name] is str and name != "path":
            # Names of categories repeat: equal strings are stored once.
            columns[name] = np.array([sys.intern(text) for text in columns[name]], object)
    return columns


def _has_pyarrow() -> bool:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


def check_agreement(folder: Path) -> None:
    """Refuse a run whose tables contradict each other or its embeddings."""
    if table_files(folder)[0].is_file():
        columns = read_assignment_columns(folder, ("path", "category_id", "category"))
        numbers = columns["category_id"].tolist()
        check_columns(folder, columns["path"], numbers, columns["category"])


def check_columns(
    folder: Path, paths: Sequence[str], numbers: Sequence[int], names: Sequence[str]
) -> None:
    """Check paths, category ids and names that were read already."""
    file = table_files(folder)[0]
    if len(set(paths)) < len(paths):
        raise damaged(file, f"two rows have the path {mode(paths)!r}")
    if (folder / "categories.csv").is_file():
        known = _checked_categories(folder / "categories.csv")
        for number, name in dict.fromkeys(zip(numbers, names, strict=True)):
            expected = known.get(number)
            if number != NO_CATEGORY and name != expected:
                reason = f"category {number} is {name!r}, but in categories.csv {expected!r}"
                raise damaged(file, reason)
    try:
        shape = read_array(folder / "embeddings.npy").shape
    except DataError:  # missing or damaged: refused where they are needed
        return
    if shape[:1] != (len(paths),):
        reason = f"found {len(paths):,} rows, but embeddings.npy has the shape {shape}"
        raise damaged(file, reason)


def _checked_categories(file: Path) -> dict[int, str]:
    """Return the name of each id; refuse duplicate ids and known categories after novel ones."""
    names: dict[int, str] = {}
    is_novel = False
    for position, category in enumerate(read_rows(Category, file)):
        number = category.category_id
        if number < 0 or number in names or (is_novel and not category.is_novel):
            raise damaged(file, f"found id {number} at position {position}", position + 2)
        names[number] = category.category
        is_novel = category.is_novel
    return names
