"""Tables: csv, tsv, jsonl, parquet and data frames as named columns, every row knowing its place
in the file.

In a csv file a text in quotes may hold line ends. Where its closing quote is missing, the next
quote of the file closes it, and the rows between become part of one cell: valid CSV, and their
labels are gone. Such cells are refused.
"""

import csv
import io
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from shoal.data.readers.folders import IMAGE_SUFFIXES, TABLE_SUFFIXES
from shoal.data.storage.addresses import Address, absolute
from shoal.data.storage.opening import open_file
from shoal.data.storage.remote import asking
from shoal.errors import DataError, missing_package
from shoal.words import count, first_few

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

PATH_COLUMNS = ("file_name", "path", "filepath", "filename", "image", "img_file_name")
LABEL_COLUMNS = ("label", "class", "category", "object_annotation_category")

LINE_END = re.compile(r"\r\n|\r|\n")
BETWEEN_CELLS = re.compile(r"[\r\n,;\t]+")


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    where: str
    """The file, for messages."""
    folder: Path | Address | None
    """The file's folder, to which its paths are relative; None for a data frame."""
    columns: Mapping[str, Sequence[object]]
    lines: Sequence[int]
    """The line (row, for parquet and frames) of each row in the file."""
    unit: str = "line"
    spanning: Sequence[int] = ()
    """Rows of a csv file in which a text in quotes spans lines."""

    def __len__(self) -> int:
        return len(self.lines)

    def location(self, row: int) -> str:
        """Name a row for a message: 'labels.csv, line 14'."""
        return f"{self.where}, {self.unit} {self.lines[row]}"


def read_table(file: str | os.PathLike[str]) -> Table:
    """Read a csv, tsv, jsonl or parquet file; text must be UTF-8 (a byte order mark is fine)."""
    path = absolute(file)
    expected = f"give a table ({', '.join(TABLE_SUFFIXES)}) of paths and labels"
    if isinstance(path, Path) and not path.is_file():
        raise DataError(f"{path}: no such file; {expected}")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        table = _read_parquet(path)
    elif suffix == ".jsonl":
        table = _read_jsonl(path)
    elif suffix in TABLE_SUFFIXES:
        table = _read_csv(path)
    else:
        raise DataError(f"{path}: found a {suffix or 'nameless'} file; {expected}")
    if not len(table):
        raise DataError(f"{path}: no rows; expected a row per image")
    return table


def is_frame(source: object) -> bool:
    """Whether this is a pandas or polars data frame; neither package is needed."""
    return all(hasattr(source, name) for name in ("columns", "__getitem__", "shape"))


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

    A cell of it that spans lines is refused, and so is a text that spans lines and holds the path
    of an image, known by its suffix or one of `names`: there a quote is not closed.
    """
    column = pick_column(table.columns, accepted, chosen, f"{table.where}, {what}s")
    if column is None:
        return None
    known = frozenset(names)
    for row in table.spanning:
        for name, cells in table.columns.items():
            cell = str(cells[row])
            if LINE_END.search(cell) and (
                name == column
                or any(_is_image(part) or part in known for part in BETWEEN_CELLS.split(cell))
            ):
                raise DataError(
                    f"{table.location(row)}: a text in quotes spans lines here, and holds a row of "
                    "its own, or is a path or label; close the quote where the text ends, or write "
                    "it without line ends"
                )
    return column


def pick_column(
    names: Iterable[str], accepted: Sequence[str], chosen: str | None, where: str
) -> str | None:
    """The chosen one of some columns, or the first with an accepted name, whatever its case."""
    by_name = {name.strip().casefold(): name for name in reversed(list(names))}
    if chosen is None:
        return next((by_name[name] for name in accepted if name in by_name), None)
    if chosen not in by_name.values():
        raise DataError(f"{where}: no column {chosen!r}; found {_listed(names)}")
    return chosen


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
    delimiter = "\t"
    if path.suffix.lower() != ".tsv":
        # Excel writes semicolons where the comma is the decimal sign.
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    spanning: list[int] = []
    line = 1
    try:
        for row in reader:
            if rows and row and len(row) != len(rows[0]):
                raise csv.Error(
                    f"found {count(len(row), 'cell')}, expected {len(rows[0])} as in the header"
                )
            if row:
                if reader.line_num > line:
                    spanning.append(len(rows) - 1)
                rows.append(row)
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {line}: {error}; put quotes around a text that holds {delimiter!r} and "
            'close them where it ends, write a quote inside of it as "", and write '
            f"{delimiter!r} for each cell that is empty"
        ) from error
    if not rows:
        raise DataError(f"{path}: empty; expected a header and a row per image")
    header = rows[0]
    if len(set(header)) < len(header) or -1 in spanning:
        raise DataError(
            f"{path}, line {lines[0]}: a column name spans lines or appears twice in "
            f"{_listed(header)}; rename it, or close its quote"
        )
    first = 1
    if len(rows) > 1 and all(cell in ("[t]", "[f]") for cell in rows[1]):
        first = 2  # EcoTaxa's second row gives the columns' types
    columns = {name: [row[i] for row in rows[first:]] for i, name in enumerate(header)}
    spanning = [row - first + 1 for row in spanning]
    return Table(path.name, path.parent, columns, lines[first:], spanning=spanning)


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
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Table(path.name, path.parent, columns, lines)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError(f"a name appears twice in {_listed([name for name, _ in pairs])}")
    return mapping


def _read_parquet(path: Path | Address) -> Table:
    columns = {name: values.to_pylist() for name, values in read_parquet_columns(path).items()}
    n_rows = len(next(iter(columns.values()), []))
    return Table(path.name, path.parent, columns, range(n_rows), unit="row")


def read_parquet_columns(path: Path | Address) -> "dict[str, ChunkedArray]":
    """The columns of a parquet file as pyarrow arrays."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", f"reading {path.name}") from error
    try:
        with asking(path), open_file(str(path)) as file:
            table = pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not a parquet file that can be read ({error}); export it again"
        ) from error
    return {name: table[name] for name in table.column_names}


def _read_text(path: Path | Address) -> str:
    try:
        with asking(path), open_file(str(path)) as file:
            data = file.read()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); check the permissions"
        ) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save the table as "
            "UTF-8 (in a spreadsheet: 'CSV UTF-8')"
        ) from error


def _listed(columns: Iterable[str]) -> str:
    return first_few([repr(name) for name in columns], 12)
