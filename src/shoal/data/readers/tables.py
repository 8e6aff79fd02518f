"""Read csv, tsv, jsonl, parquet, xlsx and data frames as columns, and their cells as class names
and images; rows know their line in the file.

In a csv file a text in quotes may contain line breaks. If its closing quote is missing, the next
quote of the file closes it, and the rows between become part of one cell: valid CSV, but their
labels are lost. Cells that look like this are refused.
"""

import csv
import io
import json
import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arrays import UNLABELED, Ints, as_class, sort_classes
from shoal.data.readers.folders import IMAGE_SUFFIXES, TABLE_SUFFIXES
from shoal.data.storage import ADDRESS, Place, absolute, is_utf8, open_file, open_parquet, reading
from shoal.errors import DataError, UsageError, count, first_few, missing_package

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

# Accepted names in any case, the first found counts; spaces count as underscores
PATH_COLUMNS = (
    *("file_name", "path", "filepath", "filename", "image", "img_file_name"),
    *("file", "file_path", "image_path", "image_name", "photo"),
)
LABEL_COLUMNS = (
    *("label", "class", "category", "object_annotation_category", "species", "scientific_name"),
    *("scientificname", "taxon", "class_name", "category_name", "common_name", "breed", "variety"),
)

LINE_END = re.compile(r"\r\n|\r|\n")
BETWEEN_CELLS = re.compile(r"[\r\n,;\t]+")


# Share of a table's rows that may name missing images; more are likely wrong paths. One row always
# may.
MAX_ABSENT_SHARE = 0.05


@dataclass(frozen=True)
class Table:
    """Columns of equal length."""

    # The file, for messages
    where: str
    # The file's folder, to which its paths are relative; None for a data frame
    folder: Place | None
    columns: Mapping[str, Sequence[object]]
    # The line (row, for parquet, xlsx and frames) of each row in the file
    lines: Sequence[int]
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    def location(self, row: int) -> str:
        """Return the place of a row for messages: 'labels.csv, line 14'."""
        return f"{self.where}, {self.unit} {self.lines[row]}"


def read_table(source: Any) -> Table:
    """Read a csv, tsv, jsonl, parquet or xlsx file (text is UTF-8, with or without a BOM), a data
    frame of pandas or polars, or a mapping of paths to labels."""
    if is_frame(source):
        columns = {str(name): list(source[name].to_list()) for name in source.columns}
        table = Table("the data frame", None, columns, range(int(source.shape[0])), unit="row")
    elif isinstance(source, Mapping):
        columns = {"path": list(source), "label": list(source.values())}
        table = Table("the mapping", None, columns, range(len(source)), unit="entry")
    elif isinstance(source, str | os.PathLike):
        table = _read_file(absolute(source))
    else:
        raise UsageError(
            f"found {type(source).__name__}, expected a table, a data frame or a mapping of paths "
            "to labels"
        )
    if not len(table):
        raise DataError(
            f"{table.where}: no rows; expected a header, and a row per image (in an xlsx file, on "
            "its first sheet)"
        )
    return table


def is_frame(source: object) -> bool:
    """Return whether this is a pandas or polars data frame; neither package is imported."""
    return all(hasattr(source, name) for name in ("columns", "__getitem__", "shape"))


def _read_file(path: Place) -> Table:
    read = READERS.get(path.suffix.lower())
    if read is None or (isinstance(path, Path) and not path.is_file()):
        raise DataError(
            f"{path}: not an existing table ({', '.join(TABLE_SUFFIXES)}); give one of paths and "
            "labels"
        )
    return read(path)


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
    rows: dict[int, list[str]] = {}
    line = 1
    try:
        for row in reader:
            header = next(iter(rows.values()), row)
            if row and len(row) != len(header):
                raise csv.Error(
                    f"found {count(len(row), 'cell')}, expected {len(header)} as in the header"
                )
            if any(map(_holds_rows, row)):
                raise csv.Error("a quote is not closed")
            # No empty row, nor EcoTaxa's second row, which holds the types of the columns.
            if not all(cell in ("[t]", "[f]") for cell in row):
                rows[line] = row
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {line}: {error}; put a text that contains {delimiter!r} in quotes, "
            'write a quote inside it as "", and leave no cell out'
        ) from error
    return _with_header(path, rows, "line")


def _with_header(path: Place, rows: Mapping[int, Sequence[object]], unit: str) -> Table:
    """Return a table of rows by line, of which the first one names the columns, each
    differently."""
    header = [str(cell) for cell in next(iter(rows.values()), ())]
    if len(set(header)) < len(header):
        raise DataError(f"{path}: a column name appears twice in {_listed(header)}; rename it")
    body = list(rows.values())[1:]
    columns = {name: [row[i] for row in body] for i, name in enumerate(header)}
    return Table(path.name, path.parent, columns, list(rows)[1:], unit)


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
    cells = {line: [row[i] for i in named] for line, row in rows.items()}
    return _with_header(path, cells, "row")


def _read_jsonl(path: Place) -> Table:
    rows: dict[int, Mapping[str, object]] = {}
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
        rows[line] = row
    names = dict.fromkeys(name for row in rows.values() for name in row)
    columns = {name: [row.get(name) for row in rows.values()] for name in names}
    return Table(path.name, path.parent, columns, list(rows))


def _read_parquet(path: Place) -> Table:
    columns = {name: values.to_pylist() for name, values in read_parquet_columns(path).items()}
    n_rows = len(next(iter(columns.values()), []))
    return Table(path.name, path.parent, columns, range(n_rows), unit="row")


READERS = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".xlsx": _read_xlsx,
}


def read_parquet_columns(path: Place) -> "dict[str, ChunkedArray]":
    with reading(path, "table"), open_parquet(str(path)) as parquet:
        table = parquet.read()
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


# The class of each image by its name, None for unlabeled
ClassOf = dict[str, str | None]

# Returns the image that a cell of a table at a location names, or None
Finder = Callable[[object, str], str | None]


# The location and path of a row, the image that it names (None if there is none), its class
Row = tuple[str, str | None, str | None]


def label_images(rows: Sequence[Row], *, allow_missing: bool) -> tuple[ClassOf, list[str]]:
    """Return the class of each image that rows name, and notes on absent images.

    An image with two different labels is an error, and so are many rows that name no image, unless
    `allow_missing`.
    """
    labels: ClassOf = {}
    labeled_by: dict[str, str] = {}
    absent = []
    for row, name, label in rows:
        if name is None:
            absent.append(row)
            continue
        first = labels.get(name)
        if first is None:
            labels[name] = label
            labeled_by[name] = row
        elif label not in (None, first):
            raise DataError(
                f"{row} is labeled {label!r}, but {first!r} in {labeled_by[name]}; remove one of "
                "the two rows"
            )
    is_many = len(absent) > max(1, MAX_ABSENT_SHARE * len(rows))
    if labels and is_many and not allow_missing:
        raise DataError(
            f"labels: {len(absent):,} of {len(rows):,} rows name missing images "
            f"({first_few(absent, separator='; ')}); correct their paths, or ignore these rows "
            "with --allow-missing"
        )
    notes = []
    if absent:
        few = first_few(absent, separator="; ")
        notes.append(f"{count(len(absent), 'row')} without an image ({few})")
    return labels, notes


def table_rows(table: Table, paths: str, labels: str, find: Finder) -> list[Row]:
    names = class_names(table.columns[labels], table.location)
    rows: list[Row] = []
    for i, (cell, name) in enumerate(zip(table.columns[paths], names, strict=True)):
        location = table.location(i)
        rows.append((f"{location}: {cell}", find(cell, location), name))
    return rows


def class_names(cells: Iterable[object], location: Callable[[int], str]) -> list[str | None]:
    """Return the class that each cell names as text, or None for unlabeled (see `as_class`).

    `location` returns the place of a row, for messages.
    """
    names: list[str | None] = []
    for row, cell in enumerate(cells):
        is_text = isinstance(cell, str) and cell.strip() != ""
        is_broken = is_text and (LINE_END.search(str(cell)) or not is_utf8(str(cell)))
        if is_broken or isinstance(cell, list | tuple | dict | bytes):
            raise DataError(
                f"{location(row)}: found the label {cell!r:.40}, expected a number or one line of "
                "UTF-8 text"
            )
        try:
            name = as_class(cell)
        except DataError as error:
            raise DataError(f"{location(row)}: {error}") from error
        names.append(None if name is None else str(name))
    return names


def encode(names: Sequence[str | None]) -> tuple[Ints, tuple[str, ...]]:
    """Return (N,) positions of class names among the sorted classes, -1 for None, and the
    classes."""
    classes = tuple(sort_classes({name for name in names if name is not None}))
    position = {None: UNLABELED} | {name: i for i, name in enumerate(classes)}
    return np.array([position[name] for name in names], dtype=np.int64), classes


def name_finder(names: Sequence[str]) -> Callable[[Sequence[str]], str | None]:
    """Return a function that finds the first of some spellings among the names, or None.

    An exact match comes first, then one in another Unicode form: macOS writes 'é' as two code
    points, tables as one.
    """
    known = {unicodedata.normalize("NFC", name): name for name in names}
    known |= {name: name for name in names}

    def find(spellings: Sequence[str]) -> str | None:
        composed = (unicodedata.normalize("NFC", name) for name in spellings)
        return next((known[name] for name in chain(spellings, composed) if name in known), None)

    return find


def image_finder(names: Sequence[str], root: PurePath, folder: PurePath | None) -> Finder:
    """Return a function that finds the image below `root` that a cell of a table names.

    A path is relative to the table's `folder`, then to `root`, then to the working directory; one
    that leads out of `root` is refused.
    """
    find_name = name_finder(names)
    # `normpath` writes an address with one slash; roots are compared in that form.
    prefixes = {
        f"{posixpath.normpath(path.as_posix()).rstrip('/')}/"
        for path in (root, Path(root).resolve())
    }
    bases = [path.as_posix() for path in (folder, root, Path.cwd()) if path is not None]

    @lru_cache(maxsize=1)  # the boxes of an image follow each other
    def spellings(path: str) -> list[str]:
        inside = []
        for spelling in dict.fromkeys((path, path.replace("\\", "/"))):
            # Strings: a Path per row would take longer than everything else.
            for base in [""] if ADDRESS.match(path) else bases:
                file = posixpath.normpath(posixpath.join(base, spelling))
                inside += [
                    file.removeprefix(prefix) for prefix in prefixes if file.startswith(prefix)
                ]
        return inside

    def find(cell: object, location: str) -> str | None:
        path = as_path(cell, location)
        inside = spellings(path)
        if not inside:
            raise DataError(f"{location}: {path!r} leads out of {root}; give paths inside it")
        return find_name(inside)

    return find


def as_path(cell: object, location: str) -> str:
    if isinstance(cell, os.PathLike):
        cell = os.fspath(cell)
    if isinstance(cell, Mapping):  # Hugging Face's image struct: {"bytes": …, "path": …}
        cell = cell.get("path")
    if not isinstance(cell, str) or not cell.strip():
        raise DataError(f"{location}: found {str(cell)[:40]!r}, expected the path of an image")
    return cell
