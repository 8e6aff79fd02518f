"""Tables: csv, tsv, jsonl, parquet and data frames as named columns, every row knowing its place
in the file."""

import io
import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from shoal.data.readers.csv_rows import LINE_END, Row, refuse_swallowed_rows, split_csv
from shoal.data.readers.folders import IMAGE_SUFFIXES, TABLE_SUFFIXES
from shoal.data.storage.addresses import Address, absolute
from shoal.data.storage.remote import asking, open_remote, read_bytes
from shoal.errors import DataError, missing_package
from shoal.words import count, first_few

PATH_COLUMNS = ("file_name", "path", "filepath", "filename", "image", "img_file_name")
LABEL_COLUMNS = ("label", "class", "category", "object_annotation_category")

MAX_NAMED = 12
"""Columns that an error lists."""


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    where: str
    """The file, for messages."""
    folder: Path | Address | None
    """The file's folder, to which its paths are relative; None for a data frame."""
    columns: dict[str, list[Any]]
    lines: Sequence[int]
    """The line (row, for parquet and frames) of each row in the file."""
    unit: str = "line"
    delimiter: str = ""
    """What stands between cells, for csv and tsv."""
    spanning: Sequence[int] = ()
    """Rows of which a cell holds line ends, for csv and tsv, where a quote may be missing."""

    def __len__(self) -> int:
        return len(self.lines)

    def location(self, row: int) -> str:
        """Name a row for a message: 'labels.csv, line 14'."""
        return f"{self.where}, {self.unit} {self.lines[row]}"

    def refuse_swallowed_rows(self, is_row: Callable[[Row], bool]) -> None:
        """Refuse a text in quotes that holds a row, by what `is_row` says of its cells."""
        for row in self.spanning:
            cells = [column[row] for column in self.columns.values()]
            refuse_swallowed_rows(cells, self.delimiter, is_row, self.location(row))


def read_table(file: str | os.PathLike[str]) -> Table:
    """Read a csv, tsv, jsonl or parquet file; text must be UTF-8 (a byte order mark is fine)."""
    path = absolute(file)
    if isinstance(path, Path) and not path.is_file():
        what = "found a folder" if path.is_dir() else "no such file"
        raise DataError(
            f"{path}: {what}; give a table ({', '.join(TABLE_SUFFIXES)}) of paths and labels"
        )
    readers = {
        ".csv": _read_csv,
        ".tsv": _read_csv,
        ".jsonl": _read_jsonl,
        ".parquet": _read_parquet,
    }
    if path.suffix.lower() not in readers:
        raise DataError(
            f"{path}: found a {path.suffix or 'nameless'} file, expected one of "
            f"{', '.join(TABLE_SUFFIXES)}"
        )
    table = readers[path.suffix.lower()](path)
    if not len(table):
        raise DataError(f"{path}: no rows; expected a row per image")
    return table


def is_frame(source: Any) -> bool:
    """Whether this is a pandas or polars data frame (or something shaped like one); neither
    package is needed."""
    return (
        hasattr(source, "columns") and hasattr(source, "__getitem__") and hasattr(source, "shape")
    )


def as_table(frame: Any) -> Table:
    """Read a pandas or polars data frame."""
    columns = {str(name): list(frame[name].to_list()) for name in frame.columns}
    return Table("data frame", None, columns, range(int(frame.shape[0])), unit="row")


def find_column(
    table: Table,
    accepted: Sequence[str],
    chosen: str | None,
    what: str,
    names: Collection[str] = (),
) -> str | None:
    """The column that holds the paths or labels: the chosen one, or the first accepted name that is
    there.

    A cell of it that spans lines is refused, and so is a text of any column that holds a row with
    the path of an image, known by its suffix or one of `names`: there a quote is not closed.
    """
    if chosen is not None and chosen not in table.columns:
        raise DataError(
            f"{table.where}: no column {chosen!r} for the {what}s; found {_listed(table.columns)}"
        )
    by_name = {name.strip().casefold(): name for name in reversed(table.columns)}
    column = chosen or next((by_name[name] for name in accepted if name in by_name), None)
    if column is not None and table.spanning:
        at = [*table.columns].index(column)
        known = frozenset(names)
        for row in table.spanning:
            if LINE_END.search(table.columns[column][row]):
                raise DataError(
                    f"{table.location(row)}: a {what} in quotes spans lines; close the quote on "
                    "the line where it "
                    "opens, no name of an image and no label may span lines"
                )
        if what == "path":
            table.refuse_swallowed_rows(lambda row: _is_image(row[at]) or row[at] in known)
    return column


def require_column(
    table: Table,
    accepted: Sequence[str],
    chosen: str | None,
    what: str,
    names: Collection[str] = (),
) -> str:
    """Like `find_column`, but a table without one is an error."""
    column = find_column(table, accepted, chosen, what, names)
    if column is None:
        raise DataError(
            f"{table.where}: no {what} column; found {_listed(table.columns)}, expected one of "
            f"{', '.join(accepted)}; "
            f"rename it, or name it with --{what}-column ({what}_column in Python)"
        )
    return column


def _is_image(path: str) -> bool:
    return PurePosixPath(path.strip().partition("?")[0]).suffix.lower() in IMAGE_SUFFIXES


def _read_csv(path: Path | Address) -> Table:
    text = _read_text(path)
    # Excel writes semicolons where the comma is the decimal sign.
    header_line = io.StringIO(text, newline="").readline()
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=header_line.count)
    rows, lines = split_csv(text, delimiter, str(path))
    if not rows:
        raise DataError(f"{path}: empty; expected a header and a row per image")
    header = rows.pop(0)
    refuse_swallowed_rows(
        header,
        delimiter,
        lambda row: any(map(_is_image, row)),
        f"{path}, line {lines.pop(0).start}",
    )
    if len(set(header)) < len(header):
        raise DataError(f"{path}: a column name appears twice in {_listed(header)}; rename one")
    for row, at in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {at.start}: found {count(len(row), 'cell')}, expected "
                f"{len(header)} as in the header; "
                f"put quotes around a text that holds {delimiter!r}, close them where it ends, "
                f"and write {delimiter!r} for each cell that is empty"
            )
    if rows and all(cell in ("[t]", "[f]") for cell in rows[0]):
        # EcoTaxa's second row gives the columns' types.
        rows.pop(0)
        lines.pop(0)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    return Table(
        path.name,
        path.parent,
        columns,
        [at.start for at in lines],
        delimiter=delimiter,
        spanning=[row for row, at in enumerate(lines) if len(at) > 1],
    )


def _read_jsonl(path: Path | Address) -> Table:
    rows = []
    lines = []
    decode = json.JSONDecoder(object_pairs_hook=_unique).decode
    for line, text in enumerate(_read_text(path).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            row = decode(text)
        except (ValueError, RecursionError) as error:  # a number of too many digits is a ValueError
            raise DataError(
                f"{path}, line {line}: not valid JSON ({error}); expected one object per line"
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {line}: found {text[:40]!r}, expected an object such as "
                f'{{"file_name": …}}'
            )
        rows.append(row)
        lines.append(line)
    names = dict.fromkeys(name for row in rows for name in row)
    return Table(
        path.name, path.parent, {name: [row.get(name) for row in rows] for name in names}, lines
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError(f"a name appears twice in {_listed([name for name, _ in pairs])}")
    return mapping


def _read_parquet(path: Path | Address) -> Table:
    columns = {name: values.to_pylist() for name, values in read_parquet_columns(path).items()}
    n_rows = len(next(iter(columns.values()), []))
    return Table(path.name, path.parent, columns, range(n_rows), unit="row")


def read_parquet_columns(path: Path | Address) -> dict[str, Any]:
    """The columns of a parquet file as pyarrow arrays."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", "parquet", f"reading {path.name}") from error
    try:
        if isinstance(path, Address):
            with asking(path):
                table = pyarrow.parquet.read_table(open_remote(path))
        else:
            table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not a parquet file that can be read ({error}); export it again"
        ) from error
    return {name: table[name] for name in table.column_names}


def _read_text(path: Path | Address) -> str:
    try:
        if isinstance(path, Address):
            with asking(path):
                data = read_bytes(str(path))
        else:
            data = path.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); check the permissions"
        ) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save the table as "
            "UTF-8 "
            "(in a spreadsheet: 'CSV UTF-8')"
        ) from error


def _listed(columns: Sequence[str] | dict[str, Any]) -> str:
    names = first_few([repr(name) for name in columns], MAX_NAMED)
    if len(columns) > MAX_NAMED:
        names += f" ({len(columns)} columns)"
    return names
