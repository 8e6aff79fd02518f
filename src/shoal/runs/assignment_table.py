"""The table of a run's images: assignments.csv, or past a million rows parts in parquet, a million rows each.

Parts are named assignments-00000-of-00010.parquet and so on, as other programs name theirs: a glob reads them all.
Numbers in them have the decimals of a CSV table, so that what is read back does not depend on how it was written.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_type_hints, overload

import numpy as np

from shoal.errors import missing_package
from shoal.files import atomic_file
from shoal.runs import file_parts
from shoal.runs.file_parts import count_parts, part_files, part_glob, part_name
from shoal.runs.rows import (
    DECIMALS,
    ROWS_AT_ONCE,
    Assignment,
    read_columns,
    read_rows,
    to_parquet,
    write_csv,
)
from shoal.runs.run_files import reading

TABLE = "assignments.csv"
PARQUET = "assignments.parquet"
TABLE_PARTS = part_glob(PARQUET)
HINTS = get_type_hints(Assignment)


def write_assignments(folder: Path, rows: Iterable[Assignment], n_rows: int | None = None) -> None:
    """Write the table of a run's images; `n_rows` says how many there are, to whom rows are made one by one.

    Where pyarrow is installed, assignments.csv is there as assignments.parquet too, and a large table in parts instead.
    """
    if n_rows is None:
        rows = list(rows)
        n_rows = len(rows)
    if n_rows > file_parts.PART_ROWS and _has_pyarrow():
        for name in (TABLE, PARQUET):
            (folder / name).unlink(missing_ok=True)
        write_parquet(folder, rows, n_rows)
        return
    listed = list(rows)
    write_parquet(folder, listed, n_rows)
    write_csv(Assignment, listed, folder / TABLE)


def write_parquet(folder: Path, rows: Iterable[Assignment], n_rows: int) -> None:
    """Write the table as assignments.parquet, a large one in parts; nothing where pyarrow is not installed."""
    for file in folder.glob(TABLE_PARTS):
        file.unlink()
    if n_rows > file_parts.PART_ROWS and _has_pyarrow():
        _write_parts(folder, rows, n_rows)
    elif n_rows <= file_parts.PART_ROWS:
        to_parquet(Assignment, rows, folder / PARQUET)


def table_files(folder: Path) -> list[Path]:
    """The files of the table: assignments.csv, whether it is there or not, or every part; a lost part is an error."""
    return part_files(folder, PARQUET) or [folder / TABLE]


def count_assignments(folder: Path) -> int:
    """How many images the table names; parts say so without being read."""
    files = table_files(folder)
    if files[0].name == TABLE:
        return len(read_columns(Assignment, files[0])["path"])
    return sum(_open(file).metadata.num_rows for file in files)


def read_assignments(folder: Path) -> Sequence[Assignment]:
    """A row per image: a list or, of parts, a sequence that holds columns and makes a row when it is asked for."""
    files = table_files(folder)
    return (
        read_rows(Assignment, files[0])
        if files[0].name == TABLE
        else PartRows(read_assignment_columns(folder))
    )


def read_assignment_columns(folder: Path) -> dict[str, Any]:
    """The table column by column: texts in lists, the rest in arrays."""
    files = table_files(folder)
    if files[0].name == TABLE:
        return read_columns(Assignment, files[0])
    parts = [_read_part(file) for file in files]
    return {
        name: [text for part in parts for text in part[name]]
        if HINTS[name] is str
        else np.concatenate([part[name] for part in parts])
        for name in HINTS
    }


def column(rows: Sequence[Assignment], name: str) -> Any:
    """One column of rows, (N,) as a list or an array, without a look at the others where they are kept apart."""
    return (
        rows.columns[name] if isinstance(rows, PartRows) else [getattr(row, name) for row in rows]
    )


class PartRows(Sequence[Assignment]):
    """The rows of a large table; what is held are its columns, a fraction of what all rows would take."""

    def __init__(self, columns: dict[str, Any]) -> None:
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

    def __iter__(self) -> Iterator[Assignment]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            lists = [
                v[part] if isinstance(v, list) else v[part].tolist() for v in self.columns.values()
            ]
            for values in zip(*lists, strict=True):
                yield Assignment(**dict(zip(self.columns, values, strict=True)))


def _write_parts(folder: Path, rows: Iterable[Assignment], n_rows: int) -> None:
    import pyarrow
    import pyarrow.parquet

    kinds = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }
    schema = pyarrow.schema([(name, kinds[hint]) for name, hint in HINTS.items()])
    source = iter(rows)
    n_parts = count_parts(n_rows)
    for part in range(n_parts):
        file = folder / part_name(PARQUET, part, n_parts)
        left = min(file_parts.PART_ROWS, n_rows - part * file_parts.PART_ROWS)
        with atomic_file(file) as out, pyarrow.parquet.ParquetWriter(out, schema) as writer:
            for start in range(0, left, ROWS_AT_ONCE):
                group = list(islice(source, min(ROWS_AT_ONCE, left - start)))
                columns = [[_stored(getattr(row, name)) for row in group] for name in HINTS]
                writer.write_table(pyarrow.table(columns, schema=schema))


def _stored(value: Any) -> Any:
    return (
        round(value, DECIMALS) + 0.0 if isinstance(value, float) else value
    )  # never -0, as in a CSV table


def _read_part(file: Path) -> dict[str, Any]:
    opened = _open(file)
    import pyarrow

    with reading(file):
        table = opened.read()
        if missing := set(HINTS) - set(table.column_names):
            raise ValueError(f"no column {', '.join(sorted(missing))}")
        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
        columns = {}
        for name, hint in HINTS.items():
            cells = table.column(name)
            if cells.null_count or (
                hint is str and cells.type not in (pyarrow.string(), pyarrow.large_string())
            ):
                raise ValueError(
                    f"{name}: found {cells.type} with {cells.null_count:,} empty cells"
                )
            columns[name] = (
                _texts(cells, name) if hint is str else cells.cast(kinds[hint]).to_numpy()
            )
        return columns


def _texts(cells: Any, name: str) -> list[str]:
    """Texts as a list; of equal ones, as names of categories are, one is kept. Paths are all different."""
    read: list[str] = []
    same: dict[str, str] = {}
    for chunk in cells.chunks:
        texts = chunk.to_pylist()
        read += texts if name == "path" else [same.setdefault(text, text) for text in texts]
    return read


def _open(file: Path) -> Any:
    if not _has_pyarrow():
        raise missing_package("pyarrow", "reading the table of a large run")
    import pyarrow.parquet

    with reading(file):
        return pyarrow.parquet.ParquetFile(file)


def _has_pyarrow() -> bool:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True
