"""The rows of a run's tables, and how they are written and read."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np

from shoal.errors import DataError
from shoal.files import atomic_file

UNSURE_BELOW = 0.5
"""An image is unsure when its confidence, the share of its neighbors in its own category, is below this."""

DECIMALS = 6
"""Decimals of a number in a table."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """One image of a finished run."""

    path: str
    label_given: str = ""
    """The name it was labeled with; empty for an unlabeled image."""
    category_id: int
    """-1 means possibly new."""
    category: str
    is_novel: bool
    confidence: float
    outlier_score: float
    nearest_known: str = ""
    nearest_known_similarity: float = float("nan")
    second_category: str = ""


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


def from_csv(kind: type[Row], text: str, where: str) -> list[Row]:
    """Undo `to_csv`; `where` names the file in an error."""
    hints = get_type_hints(kind)
    table = csv.DictReader(io.StringIO(text, newline=""))
    if missing := set(hints) - set(table.fieldnames or ()):
        raise DataError(f"{where}: no column {', '.join(sorted(missing))}; was it edited?")
    return [kind(**{field: _value(hint, row[field]) for field, hint in hints.items()}) for row in table]


def to_parquet(kind: type[Row], rows: Iterable[Row], file: Path) -> bool:
    """Write rows as a parquet file where the optional pyarrow is installed; says whether it is."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    listed = list(rows)
    columns = {field.name: [getattr(row, field.name) for row in listed] for field in dataclasses.fields(kind)}
    with atomic_file(file) as out:
        pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return True


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{round(value, DECIMALS) + 0.0:.{DECIMALS}f}"  # never -0
    return json.dumps(value, ensure_ascii=False) if isinstance(value, tuple) else str(value)


def _value(hint: Any, cell: str) -> Any:
    if hint is bool:
        return cell == "true"
    if hint is float:
        return float(cell) if cell else float("nan")
    if hint in (int, str):
        return hint(cell)
    return tuple(json.loads(cell))
