"""The table of a run's images: assignments.csv, or past a million rows parts in parquet.

Parts of a million rows each are named assignments-00000-of-00010.parquet and so on, as other
programs name theirs: a glob reads them all. Numbers in them have the decimals of a CSV table, so
that what is read back does not depend on how it was written.

People edit one table of a run and not the other: `check_columns` says where they disagree.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints, overload

import numpy as np

from shoal.errors import DataError, missing_package
from shoal.files import atomic_file
from shoal.runs import file_parts
from shoal.runs.file_parts import count_parts, part_files, part_glob, part_name
from shoal.runs.rows import (
    DECIMALS,
    Assignment,
    Category,
    Columns,
    read_columns,
    read_rows,
    write_csv,
)
from shoal.runs.run_files import damaged, read_array, read_text, reading, split_table

if TYPE_CHECKING:
    import pyarrow.parquet

TABLE = "assignments.csv"
PARQUET = "assignments.parquet"
TABLE_PARTS = part_glob(PARQUET)
HINTS = get_type_hints(Assignment)

ROWS_AT_ONCE = 65_536
"""Rows that are held while a table is written."""

NO_CATEGORY = -1


def write_assignments(folder: Path, rows: Iterable[Assignment], n_rows: int) -> None:
    """Write the table of a run's images, of which there are `n_rows`.

    Where pyarrow is installed, assignments.csv is there as assignments.parquet too, and a large
    table in parts instead.
    """
    if n_rows > file_parts.PART_ROWS and _has_pyarrow():
        for name in (TABLE, PARQUET):
            (folder / name).unlink(missing_ok=True)
        write_parquet(folder, rows, n_rows)
        return
    listed = list(rows)
    write_parquet(folder, listed, n_rows)
    write_csv(Assignment, listed, folder / TABLE)


def write_parquet(folder: Path, rows: Iterable[Assignment], n_rows: int) -> None:
    """Write the table as assignments.parquet, a large one in parts; nothing without pyarrow."""
    for file in folder.glob(TABLE_PARTS):
        file.unlink()
    if not _has_pyarrow():
        return
    source = iter(rows)
    n_parts = count_parts(n_rows)
    if n_parts < 2:
        _write_part(folder / PARQUET, source)
        return
    for part in range(n_parts):
        file = folder / part_name(PARQUET, part, n_parts)
        _write_part(file, islice(source, file_parts.PART_ROWS), is_rounded=True)


def _write_part(file: Path, rows: Iterator[Assignment], *, is_rounded: bool = False) -> None:
    import pyarrow
    import pyarrow.parquet

    kinds = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }
    schema = pyarrow.schema([(name, kinds[hint]) for name, hint in HINTS.items()])
    with atomic_file(file) as out, pyarrow.parquet.ParquetWriter(out, schema) as writer:
        while group := list(islice(rows, ROWS_AT_ONCE)):
            columns = []
            for name, hint in HINTS.items():
                values = [getattr(row, name) for row in group]
                if is_rounded and hint is float:
                    values = [round(value, DECIMALS) + 0.0 for value in values]  # never -0
                columns.append(values)
            writer.write_table(pyarrow.table(columns, schema=schema))


def table_files(folder: Path) -> list[Path]:
    """assignments.csv, whether it is there or not, or every part; a lost part is an error."""
    return part_files(folder, PARQUET) or [folder / TABLE]


def count_assignments(folder: Path) -> int:
    """How many images the table names; parts say so without being read."""
    files = table_files(folder)
    if files[0].name == TABLE:
        return len(read_columns(Assignment, files[0], ["path"])["path"])
    return sum(_open(file).metadata.num_rows for file in files)


def read_assignments(folder: Path) -> Sequence[Assignment]:
    """A row per image: a list or, of parts, a sequence that makes a row when it is asked for."""
    file = table_files(folder)[0]
    if file.name == TABLE:
        return read_rows(Assignment, file)
    return PartRows(read_assignment_columns(folder))


def read_assignment_columns(folder: Path, names: Sequence[str] = tuple(HINTS)) -> Columns:
    """The table, or some columns of it, column by column."""
    files = table_files(folder)
    if files[0].name == TABLE:
        return read_columns(Assignment, files[0], names)
    parts = [_read_part(file, names) for file in files]
    columns: Columns = {}
    for name in names:
        if HINTS[name] is str:
            columns[name] = [text for part in parts for text in part[name]]
        else:
            columns[name] = np.concatenate([part[name] for part in parts])
    return columns


def column(rows: Sequence[Assignment], name: str) -> Any:
    """(N,) one column of rows, a list or an array."""
    if isinstance(rows, PartRows):
        return rows.columns[name]
    return [getattr(row, name) for row in rows]


class PartRows(Sequence[Assignment]):
    """The rows of a large table; what is held are its columns, which take a fraction of them."""

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

    def __iter__(self) -> Iterator[Assignment]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            values = [np.asarray(each[some], object).tolist() for each in self.columns.values()]
            for row in zip(*values, strict=True):
                yield Assignment(**dict(zip(self.columns, row, strict=True)))


def _read_part(file: Path, names: Sequence[str]) -> Columns:
    opened = _open(file)
    import pyarrow

    with reading(file):
        table = opened.read()
        if missing := set(HINTS) - set(table.column_names):
            raise ValueError(f"no column {', '.join(sorted(missing))}")
        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
        columns: Columns = {}
        for name in names:
            hint = HINTS[name]
            cells = table.column(name)
            is_text = cells.type in (pyarrow.string(), pyarrow.large_string())
            if cells.null_count or (hint is str and not is_text):
                raise ValueError(
                    f"{name}: found {cells.type} with {cells.null_count:,} empty cells"
                )
            if hint is not str:
                columns[name] = cells.cast(kinds[hint]).to_numpy()
            elif name == "path":
                columns[name] = cells.to_pylist()
            else:  # of equal texts, as names of categories are, one is kept
                same: dict[str, str] = {}
                columns[name] = [
                    same.setdefault(text, text)
                    for chunk in cells.chunks
                    for text in chunk.to_pylist()
                ]
        return columns


def _open(file: Path) -> "pyarrow.parquet.ParquetFile":
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


def check_agreement(folder: Path) -> None:
    """Refuse a run whose tables contradict each other or its embeddings, as far as they are
    there."""
    if table_files(folder)[0].is_file():
        columns = read_assignment_columns(folder, ("path", "category_id", "category"))
        numbers = columns["category_id"].tolist()
        check_columns(folder, columns["path"], numbers, columns["category"])


def check_columns(
    folder: Path, paths: Sequence[str], numbers: Sequence[int], names: Sequence[str]
) -> None:
    """The same for whoever has read the images, and ids and names of their categories."""
    file = table_files(folder)[0]
    if len(set(paths)) < len(paths):
        path = next(path for path, n in Counter(paths).items() if n > 1)
        raise damaged(file, f"{path!r} is an image of two rows", _lines(file, path=path)[-1])
    if (folder / "categories.csv").is_file():
        known = _checked_categories(folder / "categories.csv")
        for number, name in dict.fromkeys(zip(numbers, names, strict=True)):
            if number == NO_CATEGORY or known.get(number) == name:
                continue
            reason = f"the category {number} is {name!r}, in categories.csv {known.get(number)!r}"
            raise damaged(file, reason, _lines(file, category_id=str(number), category=name)[0])
    try:
        shape = read_array(folder / "embeddings.npy").shape
    except DataError:  # missing or damaged: whoever needs them says so
        return
    if shape[:1] != (len(paths),):
        reason = f"found {len(paths):,} rows, but the shape of embeddings.npy is {shape}"
        raise damaged(file, reason)


def _checked_categories(file: Path) -> dict[int, str]:
    """The name of each id; refuses ids that are not one for each category, known ones first."""
    names: dict[int, str] = {}
    is_novel = False
    for position, category in enumerate(read_rows(Category, file)):
        number = category.category_id
        if number < 0 or number in names or (is_novel and not category.is_novel):
            raise damaged(file, f"found id {number} at position {position}", position + 2)
        names[number] = category.category
        is_novel = category.is_novel
    return names


def _lines(file: Path, **wanted: str) -> list[int | None]:
    """The lines of the rows that have these values; of parts in parquet, which have none, None."""
    if file.name != TABLE:
        return [None]
    header, rows = split_table(read_text(file), file)
    at = {header.index(column): value for column, value in wanted.items()}
    found = (line for line, cells in rows if all(cells[i] == value for i, value in at.items()))
    return [*found] or [None]
