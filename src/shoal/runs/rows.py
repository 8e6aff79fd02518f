"""The rows of a run's tables, and how they are written and read."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np

from shoal.files import atomic_file
from shoal.runs.run_files import damaged, read_text, split_table, table_columns

UNSURE_BELOW = 0.5
"""An image is unsure when its confidence is below this."""

MIXED_FROM = 0.1
"""A category is pointed out as one that may hold another when `mixed_probability` is at least this."""

UNREADABLE = "unreadable"
"""The status of a listed image that could not be read; no run holds one."""

ROWS_AT_ONCE = 65_536
"""Rows that are held while a table is written."""

DECIMALS = 6
"""Decimals of a number in a table."""

TRUTH = {"true": True, "false": False}
"""Cells in lower case; a spreadsheet writes TRUE."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """One image of a finished run."""

    path: str
    label_given: str = ""
    """The name it was labeled with; empty for an unlabeled image."""
    category_id: int
    """-1: possibly new, rejected or unreadable."""
    category: str
    is_novel: bool
    confidence: float
    """How likely the category is right, by labels held back."""
    outlier_score: float
    """1 - mean cosine to the nearest images: large far from all."""
    nearest_known: str = ""
    """The known category whose center is nearest."""
    nearest_known_similarity: float = float("nan")
    """The cosine to that center."""
    second_category: str = ""
    """The next most likely category."""
    is_apart: bool = False
    """Whether it lies in the part of its category that may be another category."""
    status: str = "predicted"
    """What people decided: predicted (nothing), confirmed, rejected, moved or flagged; or unreadable."""
    classified_by: str = ""
    """The account that decided."""
    classified_at: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Category:
    """One category of a finished run."""

    category_id: int
    category: str
    is_novel: bool
    size: int
    n_labeled: int
    confidence: float
    """Mean over its images."""
    nearest_known: str = ""
    nearest_known_similarity: float = float("nan")
    exemplars: tuple[str, ...] = ()
    """Paths of its most typical images."""
    mixed_probability: float = 0.0
    """How likely it holds another category: the images with `is_apart`."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """A file that could not be read."""

    path: str
    reason: str


Row = TypeVar("Row", Assignment, Category, Skip)


def to_csv(kind: type[Row], rows: Iterable[Row]) -> str:
    """Rows as the text of a table with a header."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [field.name for field in dataclasses.fields(kind)]
    table.writerow(names)
    table.writerows([_cell(getattr(row, field)) for field in names] for row in rows)
    return text.getvalue()


def write_csv(kind: type[Row], rows: Iterable[Row], file: Path) -> None:
    """Write the same table to a file, of which some rows at a time are held."""
    source = iter(rows)
    with atomic_file(file) as out:
        out.write(to_csv(kind, ()).encode("utf-8"))
        while some := list(islice(source, ROWS_AT_ONCE)):
            out.write(to_csv(kind, some).partition("\n")[2].encode("utf-8"))


def read_rows(kind: type[Row], file: Path) -> list[Row]:
    """Read a table that `to_csv` has written; columns that someone has added are left aside."""
    header, rows = split_table(read_text(file), file)
    hints = _hints(kind, header, file)
    at = {field: header.index(field) for field in hints}
    found = []
    for line, row in rows:
        cells = [_value(hint, row[at[field]], field, file, line) for field, hint in hints.items()]
        found.append(kind(**dict(zip(hints, cells, strict=True))))
    return found


def read_columns(kind: type[Row], file: Path) -> dict[str, Any]:
    """Read the same table column by column, which takes a fraction of the time: texts in lists, the rest in arrays."""
    header, cells = table_columns(read_text(file), file)
    hints = _hints(kind, header, file)
    try:
        return {field: _column(hint, cells[header.index(field)]) for field, hint in hints.items()}
    except (ValueError, KeyError):
        read_rows(kind, file)  # names the line
        raise


def _hints(kind: type[Row], header: list[str], file: Path) -> dict[str, Any]:
    """The type of each column that is read."""
    hints = get_type_hints(kind)
    if missing := set(hints) - set(header):
        raise damaged(file, f"no column {', '.join(sorted(missing))}", 1)
    return hints


def _column(hint: Any, cells: Sequence[str]) -> Any:
    if hint is str:
        return list(cells)
    if hint is float:
        return np.array([float(cell or "nan") for cell in cells])
    if hint is int:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    if hint is bool:
        values = {cell: TRUTH[cell.casefold()] for cell in set(cells)}
        return np.array([values[cell] for cell in cells], dtype=bool)
    return [_texts(cell) for cell in cells]


def to_parquet(kind: type[Row], rows: Iterable[Row], file: Path) -> bool:
    """Write rows as a parquet file where the optional pyarrow is installed; says whether it is."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    listed = list(rows)
    columns = {
        field.name: [getattr(row, field.name) for row in listed]
        for field in dataclasses.fields(kind)
    }
    with atomic_file(file) as out:
        pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return True


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{round(value, DECIMALS) + 0.0:.{DECIMALS}f}"  # never -0
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _value(hint: Any, cell: str, field: str, file: Path, line: int) -> Any:
    if hint is str:
        return cell
    try:
        if hint is bool:
            return TRUTH[cell.casefold()]
        if hint is float:
            return float(cell or "nan")
        if hint is int:
            return int(cell)
        return _texts(cell)
    except (ValueError, KeyError) as error:
        kinds = {bool: "true or false", float: "a number", int: "a whole number"}
        kind = kinds.get(hint, "a JSON list of texts")
        raise damaged(file, f"{field}: found {cell[:40]!r}, expected {kind}", line) from error


def _texts(cell: str) -> tuple[str, ...]:
    texts = json.loads(cell)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError
    return tuple(texts)
