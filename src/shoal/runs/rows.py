"""The rows of a run's tables, and how they are written and read."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np

from shoal.files import atomic_file
from shoal.runs.run_files import Damaged, damaged, read_text, split_table, table_columns

UNSURE_BELOW = 0.5
"""An image is unsure when its confidence is below this."""

MIXED_FROM = 0.1
"""A category is marked as one that may hold another where `mixed_probability` is this or more."""

UNREADABLE = "unreadable"
"""The status of a listed image that could not be read; no run holds one."""

DECIMALS = 6
"""Decimals of a number in a table."""

Columns = dict[str, Any]
"""The columns of a table by name: texts in lists, the rest in arrays."""

TRUTH = {"true": True, "false": False}
"""Cells in lower case; a spreadsheet writes TRUE."""

EXPECTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple[str, ...]: "a JSON list of texts",
}
"""What a cell of each type holds, in words."""


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
    """What people decided: predicted (nothing), confirmed, rejected, moved, flagged; or
    unreadable."""
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


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A CSV table as text."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def to_csv(kind: type[Row], rows: Iterable[Row]) -> str:
    """Rows as the text of a table with a header."""
    header, *cells = _cells(kind, rows)
    return csv_text(header, cells)


def write_csv(kind: type[Row], rows: Iterable[Row], file: Path) -> None:
    """Write the same table to a file, a row at a time."""
    with atomic_file(file) as out:
        text = io.TextIOWrapper(out, encoding="utf-8", newline="")
        csv.writer(text, lineterminator="\n").writerows(_cells(kind, rows))
        text.detach()


def _cells(kind: type[Row], rows: Iterable[Row]) -> Iterator[list[str]]:
    """The header of a table, and its rows."""
    names = [field.name for field in dataclasses.fields(kind)]
    yield names
    for row in rows:
        yield [_cell(getattr(row, name)) for name in names]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return (
            "" if math.isnan(value) else f"{round(value, DECIMALS) + 0.0:.{DECIMALS}f}"
        )  # never -0
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def read_rows(kind: type[Row], file: Path) -> list[Row]:
    """Read a table that `to_csv` has written; columns that someone has added are left aside."""
    columns = read_columns(kind, file)
    values = [each.tolist() if isinstance(each, np.ndarray) else each for each in columns.values()]
    return [kind(**dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True)]


def read_columns(kind: type[Row], file: Path, names: Sequence[str] | None = None) -> Columns:
    """Read the same table, or some columns of it, column by column."""
    text = read_text(file)
    header, cells = table_columns(text, file)
    hints = get_type_hints(kind)
    if missing := set(hints) - set(header):
        raise damaged(file, f"no column {', '.join(sorted(missing))}", 1)
    columns: Columns = {}
    for name in names or hints:
        hint = hints[name]
        at = header.index(name)
        try:
            column = _parsed(name, hint, cells[at])
        except (ValueError, KeyError):
            raise _bad_cell(name, hint, at, text, file) from None
        columns[name] = np.array(column, hint) if hint in (bool, int, float) else column
    return columns


def _parsed(name: str, hint: Any, cells: Sequence[str]) -> list[Any]:
    """The values of a column; ValueError or KeyError where a cell has none."""
    if hint is str:
        return list(cells)
    if hint is bool:
        values = {cell: TRUTH[cell.casefold()] for cell in set(cells)}
        return [values[cell] for cell in cells]
    if hint is int:
        return [int(cell) for cell in cells]
    if hint is not float:
        return [_texts(cell) for cell in cells]
    numbers = [float(cell or "nan") for cell in cells]
    if name == "mixed_probability" and not all(0 <= number <= 1 for number in numbers):
        raise ValueError(name)
    return numbers


def _bad_cell(name: str, hint: Any, at: int, text: str, file: Path) -> Damaged:
    """The error for the first cell of a column that cannot be read."""
    for line, row in split_table(text, file)[1]:
        try:
            _parsed(name, hint, [row[at]])
        except (ValueError, KeyError):
            expected = EXPECTED[hint]
            if name == "mixed_probability":
                expected = "a number from 0 to 1"
            return damaged(file, f"{name}: found {row[at][:40]!r}, expected {expected}", line)
    raise AssertionError("a cell that could not be read can be read now")


def _texts(cell: str) -> tuple[str, ...]:
    texts = json.loads(cell)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(cell)
    return tuple(texts)
