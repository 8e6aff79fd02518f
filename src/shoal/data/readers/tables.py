"""Read csv, tsv, jsonl, parquet, xlsx and data frames as columns; rows know their line in the file.

In a csv file a text in quotes may contain line breaks. If its closing quote is missing, the next
quote of the file closes it, and the rows between become part of one cell: valid CSV, but their
labels are lost. Cells that look like this are refused.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.data.readers.folders import IMAGE_SUFFIXES, TABLE_SUFFIXES
from shoal.data.storage.addresses import Location, Place, absolute
from shoal.data.storage.remote import open_file, reading
from shoal.errors import DataError, missing_package
from shoal.words import count, first_few

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

PATH_COLUMNS = (
    *("file_name", "path", "filepath", "filename", "image", "img_file_name"),
    *("file", "file_path", "image_path", "image_name", "photo"),
)
LABEL_COLUMNS = (
    *("label", "class", "category", "object_annotation_category", "species", "scientific_name"),
    *("scientificname", "taxon", "class_name", "category_name", "common_name", "breed", "variety"),
)
"""Accepted names in any case, the first found counts; spaces count as underscores."""

LINE_END = re.compile(r"\r\n|\r|\n")
BETWEEN_CELLS = re.compile(r"[\r\n,;\t]+")


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    where: str
    """The file, for messages."""
    folder: Place | None
    """The file's folder, to which its paths are relative; None for a data frame."""
    columns: Mapping[str, Sequence[object]]
    lines: Sequence[int]
    """The line (row, for parquet, xlsx and frames) of each row in the file."""
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    def location(self, row: int) -> str:
        """Return the place of a row for messages: 'labels.csv, line 14'."""
        return f"{self.where}, {self.unit} {self.lines[row]}"


def read_table(file: Location) -> Table:
    """Read a csv, tsv, jsonl, parquet or xlsx file; text must be UTF-8, with or without a BOM."""
    path = absolute(file)
    read = READERS.get(path.suffix.lower())
    if read is None or (isinstance(path, Path) and not path.is_file()):
        raise DataError(
            f"{path}: not an existing table ({', '.join(TABLE_SUFFIXES)}); give one of paths and "
            "labels"
        )
    table = read(path)
    if not len(table):
        raise DataError(
            f"{path}: no rows; expected a header, and a row per image (in an xlsx file, on its "
            "first sheet)"
        )
    return table


def is_frame(source: object) -> bool:
    """Return whether this is a pandas or polars data frame; neither package is imported."""
    return all(hasattr(source, name) for name in ("columns", "__getitem__", "shape"))


def as_table(frame: Any) -> Table:
    """Return a pandas or polars data frame as a table."""
    columns = {str(name): list(frame[name].to_list()) for name in frame.columns}
    return Table("the data frame", None, columns, range(int(frame.shape[0])), unit="row")


def pick_column(
    names: Iterable[str], accepted: Sequence[str], chosen: str | None, where: str
) -> str | None:
    """Return the chosen one of some columns, or the first with an accepted name in any case."""
    by_name = {"_".join(name.casefold().split()): name for name in reversed(list(names))}
    if chosen is None:
        return next((by_name[name] for name in accepted if name in by_name), None)
    if chosen not in by_name.values():
        raise DataError(f"{where}: no column {chosen!r}; found {_listed(names)}")
    return chosen


def require_column(table: Table, accepted: Sequence[str], chosen: str | None, what: str) -> str:
    """Return the same as `pick_column`, but raise an error if there is no such column."""
    column = pick_column(table.columns, accepted, chosen, table.where)
    if column is None:
        remedy = "add or rename it"
        if len(accepted) > 1:
            remedy = f"rename it, or name it with --{what}-column"
        raise DataError(
            f"{table.where}: no {what} column; found {_listed(table.columns)}, expected one of "
            f"{', '.join(accepted)}; {remedy}"
        )
    return column


def _holds_rows(cell: str) -> bool:
    """Return whether a cell spans lines and holds the path of an image, so that a quote before it
    was not closed."""
    if LINE_END.search(cell) is None:
        return False
    parts = BETWEEN_CELLS.split(cell.lower())
    return any(part.strip().partition("?")[0].endswith(IMAGE_SUFFIXES) for part in parts)


def _read_csv(path: Place) -> Table:
    text = read_text(path)
    delimiter = "\t"
    if path.suffix.lower() != ".tsv":
        # Excel writes semicolons in countries where the comma is the decimal sign.
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    line = 1
    try:
        for row in reader:
            if rows and row and len(row) != len(rows[0]):
                raise csv.Error(
                    f"found {count(len(row), 'cell')}, expected {len(rows[0])} as in the header"
                )
            if any(map(_holds_rows, row)):
                raise csv.Error("a quote is not closed")
            if row:
                rows.append(row)
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {line}: {error}; put a text that contains {delimiter!r} in quotes, "
            'write a quote inside it as "", and leave no cell out'
        ) from error
    if len(rows) > 1 and all(cell in ("[t]", "[f]") for cell in rows[1]):
        del rows[1], lines[1]  # EcoTaxa's second row holds the types of the columns
    return _with_header(path, rows, lines, "line")


def _with_header(
    path: Place, rows: Sequence[Sequence[object]], lines: Sequence[int], unit: str
) -> Table:
    """Return a table of rows of which the first one names the columns, each differently."""
    header = [str(cell) for cell in next(iter(rows), ())]
    if len(set(header)) < len(header):
        raise DataError(f"{path}: a column name appears twice in {_listed(header)}; rename it")
    columns = {name: [row[i] for row in rows[1:]] for i, name in enumerate(header)}
    return Table(path.name, path.parent, columns, lines[1:], unit)


def _read_xlsx(path: Place) -> Table:
    """Read the first sheet of a workbook: values instead of formulas, without empty rows."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise missing_package("openpyxl", f"reading {path.name}") from error
    with reading(path, "table"), open_file(str(path)) as file:
        book = load_workbook(io.BytesIO(file.read()), read_only=True, data_only=True)
        sheet = enumerate(book.worksheets[0].iter_rows(values_only=True), start=1)
        rows = {line: row for line, row in sheet if any(cell is not None for cell in row)}
    header = next(iter(rows.values()), ())
    named = [i for i, cell in enumerate(header) if cell is not None]
    cells = [[row[i] for i in named] for row in rows.values()]
    return _with_header(path, cells, list(rows), "row")


def _read_jsonl(path: Place) -> Table:
    rows = []
    lines = []
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        if not text.strip():
            continue
        row = None
        with suppress(ValueError, RecursionError):
            row = json.loads(text)
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {line}: found {text[:40]!r}, expected a JSON object such as "
                f'{{"file_name": …}}'
            )
        rows.append(row)
        lines.append(line)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Table(path.name, path.parent, columns, lines)


def _read_parquet(path: Place) -> Table:
    columns = {name: values.to_pylist() for name, values in read_parquet_columns(path).items()}
    n_rows = len(next(iter(columns.values()), []))
    return Table(path.name, path.parent, columns, range(n_rows), unit="row")


def read_parquet_columns(path: Place) -> "dict[str, ChunkedArray]":
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", f"reading {path.name}") from error
    with reading(path, "table"), open_file(str(path)) as file:
        table = pyarrow.parquet.read_table(file)
    return {name: table[name] for name in table.column_names}


def read_text(path: Place) -> str:
    """Return the content of a UTF-8 file, with or without a BOM."""
    with reading(path), open_file(str(path)) as file:
        data = file.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: not UTF-8 (byte 0x{data[error.start]:02x}); save the table as "
            "UTF-8 (in a spreadsheet: 'CSV UTF-8')"
        ) from error


def _listed(columns: Iterable[str]) -> str:
    return first_few([repr(name) for name in columns], 12)


READERS = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".xlsx": _read_xlsx,
}
"""The readers of `TABLE_SUFFIXES`."""
