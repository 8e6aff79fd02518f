"""The tables of a run: their rows, written to and read from CSV.

People edit files and disks damage them, so every error names the file, the line and a remedy;
`reading` converts exceptions to such errors. People may also edit one table and not the other:
`check_columns` reports inconsistencies.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mode
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from shoal.arrays import UNLABELED, archive_arrays, name_rows, unusable_rows
from shoal.boxes import BOX_COLUMNS, Box, split_name
from shoal.errors import DataError, one_line
from shoal.files import atomic_file
from shoal.settings import TYPE_NAMES, Plain

TABLE = "assignments.csv"

# The category id of an image without a category
NO_CATEGORY = UNLABELED

# An image is uncertain if its confidence is below this
UNCERTAIN_BELOW = 0.5

# A category may be a mixture of two if its `mixed_probability` is at least this
MIXED_FROM = 0.1

# The status of an unreadable image in a list given to `assign`; runs have none
UNREADABLE = "unreadable"

DECIMALS = 6

# Values of lower-cased cells; spreadsheets write TRUE
BOOLEANS = {"true": True, "false": False}


@contextmanager
def reading(file: Path, line: int | None = None) -> Iterator[None]:
    """Convert exceptions while reading a file of a run to errors that name file and remedy."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{file}: missing; is {file.parent} the folder of a run?") from error
    except Exception as error:  # readers raise anything for a damaged file
        found = one_line(error, 300).replace(f"{file}: ", "")
        reason = f"cannot be read ({found})"
        # NumPy would advise allow_pickle=True, which is unsafe
        if "allow_pickle" in reason or "Python objects" in reason:
            reason = "not an array of numbers or strings"
        raise damaged(file, reason, line) from error


def damaged(file: Path, reason: str, line: int | None = None) -> DataError:
    at_line = "" if line is None else f", line {line}"
    return DataError(
        f"{file}{at_line}: damaged or edited, {reason}; restore a copy, or run again with --force"
    )


def read_text(file: Path) -> str:
    with reading(file):
        return file.read_bytes().decode("utf-8-sig")


def read_object(file: Path) -> Plain:
    return _parsed(read_text(file), file)


def read_objects(file: Path) -> list[Plain]:
    """Read a JSON object per line."""
    lines = enumerate(read_text(file).splitlines(), start=1)
    return [_parsed(line, file, number) for number, line in lines]


def _parsed(text: str, file: Path, line: int | None = None) -> Plain:
    with reading(file, line):
        content = json.loads(text)
    if not isinstance(content, dict):
        raise damaged(file, f"found {content!r:.60}, expected an object with keys", line)
    return content


def read_array(file: Path) -> NDArray[Any]:
    """Map an array into memory, read-only."""
    with reading(file):
        return np.lib.format.open_memmap(file, mode="r")


def read_vectors(file: Path, n_rows: int) -> NDArray[Any]:
    """Map the embeddings of a run into memory: (N, D), finite, no row all zeros."""
    vectors = read_array(file)
    is_matrix = vectors.ndim == 2 and vectors.dtype.kind == "f" and vectors.shape[1] > 0
    if not is_matrix or len(vectors) != n_rows:
        raise damaged(
            file,
            f"found {vectors.dtype} of shape {vectors.shape}, expected a row of numbers for each "
            f"of {n_rows:,} images in assignments.csv",
        )
    is_bad = unusable_rows(vectors)
    if is_bad.any():
        raise damaged(file, f"found NaN, infinity or only zeros in {name_rows(is_bad)}")
    return vectors


def read_arrays(file: Path) -> dict[str, NDArray[Any]]:
    with reading(file), np.load(file, allow_pickle=False) as archive:
        return archive_arrays(archive)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """One image of a finished run.

    Attributes
    ----------
    path
        Its path, or its name in the collection; of a box, with the box.
    label_given
        The given label; empty for an unlabeled image.
    category_id
        -1: possibly new, rejected or unreadable.
    category
        The name of its category.
    is_novel
        Whether the category was given no labels.
    confidence
        The probability that the category is correct, calibrated on held-out labels.
    outlier_score
        1 - mean cosine similarity to the nearest images.
    nearest_known
        The known category whose center is nearest.
    nearest_known_similarity
        The cosine similarity to that center.
    second_category
        The next most likely category.
    is_apart
        Whether it is in the part of its category that may be another category.
    status
        What people decided: predicted (no decision), confirmed, rejected, moved or flagged; or
        unreadable.
    classified_by
        The person who decided.
    classified_at
        The time of the decision.
    """

    path: str
    label_given: str = ""
    category_id: int
    category: str
    is_novel: bool
    confidence: float
    outlier_score: float
    nearest_known: str = ""
    nearest_known_similarity: float = float("nan")
    second_category: str = ""
    is_apart: bool = False
    status: str = "predicted"
    classified_by: str = ""
    classified_at: str = ""

    @property
    def box(self) -> Box | None:
        """The box in an image that `path` names; None for a whole image."""
        return split_name(self.path)[1]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Category:
    """One category of a finished run.

    Attributes
    ----------
    category_id
        Its number in the run; a review keeps it.
    category
        Its name.
    is_novel
        Whether it was given no labels.
    size
        The number of its images.
    n_labeled
        The number of these that were labeled.
    confidence
        The mean over its images.
    nearest_known
        The known category whose center is nearest to its own.
    nearest_known_similarity
        The cosine similarity of the two centers.
    exemplars
        Paths of its most typical images.
    mixed_probability
        The probability that it is two categories: the images with `is_apart` are the second.
    parent
        The inner node right above it in the tree of categories; '' if there is none.
    """

    category_id: int
    category: str
    is_novel: bool
    size: int
    n_labeled: int
    confidence: float
    nearest_known: str = ""
    nearest_known_similarity: float = float("nan")
    exemplars: tuple[str, ...] = ()
    mixed_probability: float = 0.0
    parent: str = ""


Row = TypeVar("Row", Assignment, Category)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def has_boxes(rows: Iterable[Row]) -> bool:
    return any(getattr(row, "box", None) for row in rows)


def to_csv(kind: type[Row], rows: Collection[Row]) -> str:
    header, *cells = _cells(kind, rows)
    return csv_text(header, cells)


def write_csv(kind: type[Row], rows: Collection[Row], file: Path) -> None:
    """Write rows as a CSV table, one at a time."""
    with atomic_file(file) as out:
        text = io.TextIOWrapper(out, encoding="utf-8", newline="")
        csv.writer(text, lineterminator="\n").writerows(_cells(kind, rows))
        text.detach()


def _cells(kind: type[Row], rows: Collection[Row]) -> Iterator[list[str]]:
    """Yield the header of a table, then its rows; boxes have four more columns."""
    names = [field.name for field in dataclasses.fields(kind)]
    box_names: Sequence[str] = BOX_COLUMNS if has_boxes(rows) else ()
    yield names + list(box_names)
    for row in rows:
        cells = [_cell(getattr(row, name)) for name in names]
        box = getattr(row, "box", None)
        yield cells + [str(getattr(box, name, "")) for name in box_names]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:z.{DECIMALS}f}".replace("nan", "")
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def column(rows: Iterable[Row], name: str) -> list[Any]:
    return [getattr(row, name) for row in rows]


def read_rows(kind: type[Row], file: Path) -> list[Row]:
    """Read the rows of a CSV table; additional columns are ignored."""
    return to_rows(kind, read_columns(kind, file))


def to_rows(kind: type[Row], columns: dict[str, Any]) -> list[Row]:
    values = [each.tolist() if isinstance(each, np.ndarray) else each for each in columns.values()]
    return [kind(**dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True)]


def read_columns(kind: type[Row], file: Path, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Read all or some columns of a CSV table by name: lists of strings, or arrays."""
    hints = get_type_hints(kind)
    lines = _lines(file)
    _, header = next(lines, (1, []))
    if missing := set(hints) - set(header):
        raise damaged(file, f"no column {', '.join(sorted(missing))}", 1)
    columns: dict[str, Any] = {name: [] for name in names or hints}
    wanted = [
        (header.index(name), PARSERS.get(hints[name], _texts), values)
        for name, values in columns.items()
    ]
    for line, row in lines:
        if len(row) != len(header):
            raise damaged(file, f"found {len(row)} cells where the header has {len(header)}", line)
        for at, parse, values in wanted:
            try:
                values.append(parse(row[at]))
            except (ValueError, KeyError):
                expected = TYPE_NAMES.get(hints[header[at]], "a JSON list of strings")
                reason = f"{header[at]}: found {row[at][:40]!r}, expected {expected}"
                raise damaged(file, reason, line) from None
    for name, values in columns.items():
        if hints[name] in (bool, int, float):
            columns[name] = np.array(values, hints[name])
    return columns


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV table, each with its first line number."""
    reader = csv.reader(io.StringIO(read_text(file), newline=""), strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise damaged(file, f"not valid CSV ({error})", line) from error


def _texts(cell: str) -> tuple[str, ...]:
    texts = json.loads(cell)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(cell)
    return tuple(texts)


# By type, what returns the value of a cell; ValueError or KeyError for an invalid one
PARSERS: dict[Any, Callable[[str], object]] = {
    str: str,
    bool: lambda cell: BOOLEANS[cell.casefold()],
    int: int,
    float: lambda cell: float(cell or "nan"),
}


def check_agreement(folder: Path) -> None:
    """Refuse a run whose tables contradict each other or its embeddings."""
    if (folder / TABLE).is_file():
        columns = read_columns(Assignment, folder / TABLE, ("path", "category_id", "category"))
        numbers = columns["category_id"].tolist()
        check_columns(folder, columns["path"], numbers, columns["category"])


def check_columns(
    folder: Path, paths: Sequence[str], numbers: Sequence[int], names: Sequence[str]
) -> None:
    """Check paths, category ids and names that were read already."""
    file = folder / TABLE
    if len(set(paths)) < len(paths):
        raise damaged(file, f"two rows have the path {mode(paths)!r}")
    if (folder / "categories.csv").is_file():
        known = _checked_categories(folder / "categories.csv")
        for number, name in dict.fromkeys(zip(numbers, names, strict=True)):
            expected = known.get(number)
            if number != NO_CATEGORY and name != expected:
                reason = f"category {number} is {name!r}, but in categories.csv {expected!r}"
                raise damaged(file, reason)
    if (folder / "embeddings.npy").is_file():
        shape = read_array(folder / "embeddings.npy").shape
        if shape[:1] != (len(paths),):
            raise damaged(file, f"found {len(paths):,} rows, but embeddings.npy has {shape}")


def _checked_categories(file: Path) -> dict[int, str]:
    """Return the name of each id; refuse duplicate ids and known categories after novel ones."""
    names: dict[int, str] = {}
    is_novel = False
    for line, category in enumerate(read_rows(Category, file), start=2):
        number = category.category_id
        if number < 0 or number in names or (is_novel and not category.is_novel):
            expected = "unique ids from 0 up, with known categories before novel ones"
            raise damaged(file, f"found id {number}, expected {expected}", line)
        names[number] = category.category
        is_novel = category.is_novel
    return names
