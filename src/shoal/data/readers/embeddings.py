"""Ready embeddings: a row per image, computed elsewhere; every later step is the same as for our
own."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shoal.arrays import (
    UNLABELED,
    UNLABELED_NAMES,
    Floats,
    Ints,
    as_stored_embeddings,
    each_row,
    fold_unlabeled,
    name_rows,
)
from shoal.data.readers.folders import refuse_address
from shoal.data.readers.labels import class_names, encode, similar_classes
from shoal.data.readers.numpy_files import decoded, load_array, load_arrays, one_per_row
from shoal.data.readers.tables import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    Table,
    find_column,
    read_parquet_columns,
    read_table,
)
from shoal.errors import DataError
from shoal.files import cache_folder, scratch_array, writing
from shoal.text import shown
from shoal.words import count

NAME_COLUMNS = (*PATH_COLUMNS, "uuid", "filenames")
VECTOR_COLUMNS = ("emb", "embedding", "vector")
GIVEN_LABEL_COLUMNS = (*LABEL_COLUMNS, "labels")
NUMBERED_COLUMN = re.compile(r"embedding_(\d+)")
NUMBERED_NAME = re.compile(r"(row|image)-\d+")
"""Names of rows, or of images in memory, that came without one: sorted they stay in their order."""
ROWS_AT_ONCE = 65_536
"""Rows that are sorted at a time."""
EMBEDDING_SUFFIXES = (".npy", ".npz", ".parquet", ".csv")


@dataclass(frozen=True, eq=False)
class Embeddings:
    """N embeddings under unique, sorted names, some of them labeled."""

    names: tuple[str, ...]
    x: Floats
    """(N, D) as they were stored, not scaled; a large file is mapped into memory, not read."""
    labels: Ints
    """(N,) position in `classes`, -1 for unlabeled."""
    classes: tuple[str, ...]
    rows: Ints
    """(N,) the row of the file that each is."""
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Say in words what was found: the counts, then one line per counted warning."""
        n_labeled = int((self.labels != UNLABELED).sum())
        labeled = "none labeled"
        if n_labeled:
            labeled = f"{n_labeled:,} labeled in {count(len(self.classes), 'category')}"
        counts = f"{len(self.names):,} embeddings of {self.x.shape[1]:,} numbers, {labeled}, "
        lines = [f"{counts}{len(self.names) - n_labeled:,} unlabeled"]
        lines += [f"note: {shown(note)}" for note in self.notes]
        return "\n".join(lines)


def read_embeddings(
    file: str | os.PathLike[str],
    *,
    path_column: str | None = None,
    label_column: str | None = None,
    classes: Sequence[str] | None = None,
    unlabeled_names: Iterable[str] = UNLABELED_NAMES,
) -> Embeddings:
    """Read embeddings, with names and labels where the file has them; rows are sorted by name.

    Accepted are npy (N, D); npz with X and optionally y and paths; parquet with a list column (emb,
    embedding or vector) beside path, uuid, …; parquet or csv with columns embedding_0, embedding_1,
    … beside filename. Without names, rows are named by their number and keep their order. Unlabeled
    are empty cells, None, NaN, NA, -1 and `unlabeled_names`. Rows of zeros, which have no
    direction, are refused.
    """
    refuse_address(file)
    path = Path(file)
    readers = {".npy": _read_npy, ".npz": _read_npz, ".parquet": _read_parquet, ".csv": _read_csv}
    if not path.is_file():
        raise DataError(f"{path}: no such file; give embeddings as {', '.join(EMBEDDING_SUFFIXES)}")
    if path.suffix.lower() not in readers:
        raise DataError(
            f"{path}: found a {path.suffix or 'nameless'} file, expected "
            f"{', '.join(EMBEDDING_SUFFIXES)}"
        )
    raw = readers[path.suffix.lower()](path, path_column, label_column)
    x = as_stored_embeddings(raw.x, name=path.name)
    names = _as_names(raw.names, len(x), f"{path}: names")
    _refuse_zeros(x, names, path)
    given: list[str | None] = [None] * len(x)
    if raw.labels is not None:
        unlabeled = fold_unlabeled(unlabeled_names)
        given = class_names(raw.labels, unlabeled, lambda row: f"{path}, row {row}")
    order = _sorting(names, path)
    labels, known = encode([given[i] for i in order], classes)
    if (np.diff(order) < 0).any():  # else a memory-mapped matrix need not be copied
        x = _ordered(x, order)
    return Embeddings(
        names=tuple(names[i] for i in order),
        x=x,
        labels=labels,
        classes=known,
        rows=order,
        notes=similar_classes(known),
    )


def _ordered(x: Floats, order: Ints) -> Floats:
    """The rows in another order, past 1 GiB in a mapped file."""
    cache = cache_folder()
    with writing(cache):
        ordered: Floats = scratch_array(x.shape, x.dtype, cache)
    for start in range(0, len(order), ROWS_AT_ONCE):
        ordered[start : start + ROWS_AT_ONCE] = x[order[start : start + ROWS_AT_ONCE]]
    return ordered


def _refuse_zeros(x: Floats, names: Sequence[str], path: Path) -> None:
    """Refuse rows of zeros here, where rows still have their place in the file."""
    is_zero = each_row(x, lambda rows: ~rows.any(axis=1))  # (N,)
    if is_zero.any():
        first = names[int(is_zero.argmax())]
        raise DataError(
            f"{path.name}: only zeros in {name_rows(is_zero)}, the first {first!r}; remove them"
        )


@dataclass(frozen=True)
class _Raw:
    """What a file holds, in its order."""

    x: Any
    names: Sequence[object] | None = None
    labels: Sequence[object] | None = None


def _read_npy(path: Path, _path_column: str | None, _label_column: str | None) -> _Raw:
    return _Raw(load_array(path))


def _read_npz(path: Path, path_column: str | None, label_column: str | None) -> _Raw:
    arrays = load_arrays(path, "X")
    if "X" not in arrays or arrays["X"].ndim != 2:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(
            f"{path}: found {shapes}, expected an array X (N, D), and y and paths where known"
        )

    def read(chosen: str | None, usual: str) -> list[object] | None:
        name = chosen or usual
        if name in arrays:
            return one_per_row(arrays[name], len(arrays["X"]), f"{path}: {name}")
        if chosen is not None:
            raise DataError(f"{path}: no array {chosen!r}; found {', '.join(sorted(arrays))}")
        return None

    return _Raw(arrays["X"], read(path_column, "paths"), read(label_column, "y"))


def _read_parquet(path: Path, path_column: str | None, label_column: str | None) -> _Raw:
    columns = read_parquet_columns(path)
    vector = next((name for name in VECTOR_COLUMNS if name in columns), None)
    numbered = _numbered_columns(columns, path)
    if vector is not None:
        x = _stack_lists(columns[vector], f"{path}: column {vector}")
    elif numbered:
        x = _stack_columns([columns[name].to_pylist() for name in numbered], path)
    else:
        raise DataError(
            f"{path}: found columns {sorted(columns)}, expected a list column "
            f"{' or '.join(VECTOR_COLUMNS)}, "
            "or embedding_0, embedding_1, …"
        )
    table = Table(str(path), path.parent, columns, range(0))

    def read(accepted: Sequence[str], chosen: str | None, what: str) -> list[object] | None:
        name = find_column(table, accepted, chosen, what)
        if name is None:
            return None
        return decoded(columns[name].to_pylist(), f"{path}: column {name}")

    names = read(NAME_COLUMNS, path_column, "path")
    return _Raw(x, names, read(GIVEN_LABEL_COLUMNS, label_column, "label"))


def _read_csv(path: Path, path_column: str | None, label_column: str | None) -> _Raw:
    table = read_table(path)
    numbered = _numbered_columns(table.columns, path)
    if not numbered:
        raise DataError(
            f"{path}: found {len(table.columns)} columns, expected embedding_0, embedding_1, … "
            "among them"
        )
    names = find_column(table, NAME_COLUMNS, path_column, "path")
    labels = find_column(table, GIVEN_LABEL_COLUMNS, label_column, "label")
    at = [[*table.columns].index(name) for name in numbered]
    table.refuse_swallowed_rows(lambda row: all(_is_number(row[i]) for i in at))
    x = _stack_columns([table.columns[name] for name in numbered], path)
    return _Raw(x, table.columns.get(names or ""), table.columns.get(labels or ""))


def _numbered_columns(columns: Iterable[str], path: Path) -> list[str]:
    """The names embedding_0, embedding_1, … among those of columns, by their numbers, which
    leave none out."""
    numbered = sorted(
        (int(match[1]), name) for name in columns if (match := NUMBERED_COLUMN.fullmatch(name))
    )
    start = 1 if numbered and numbered[0][0] == 1 else 0
    for expected, (number, name) in enumerate(numbered, start):
        if number != expected:
            raise DataError(
                f"{path}: found {name} where embedding_{expected} would be next; a column is "
                "missing or named twice, "
                "so write the embeddings again with all of them"
            )
    return [name for _, name in numbered]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _stack_columns(columns: list[Any], path: Path) -> Any:
    """Columns of N cells as (N, D)."""
    try:
        return np.ascontiguousarray(np.array(columns, dtype=np.float64).T)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: a cell of the embedding columns is not a number ({error})"
        ) from error


def _stack_lists(column: Any, where: str) -> Any:
    """A parquet list column as (N, D), without a Python object per number."""
    import pyarrow
    import pyarrow.compute

    lists = column.combine_chunks()
    if not hasattr(lists, "flatten") or pyarrow.types.is_struct(lists.type):
        raise DataError(f"{where}: found {lists.type}, expected a list of numbers per row")
    lengths = set(pyarrow.compute.list_value_length(lists).unique().to_pylist())
    if len(lengths) != 1 or None in lengths:  # None: no list
        raise DataError(
            f"{where}: rows of {sorted(length or 0 for length in lengths)[:5]} numbers, expected "
            "the same in each"
        )
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1)


def _as_names(values: Sequence[object] | None, n_rows: int, where: str) -> list[str]:
    """A name per row as text; rows without any are named by their number, so that sorting keeps
    their order."""
    if values is None:
        width = max(6, len(str(n_rows - 1)))
        return [f"row-{i:0{width}d}" for i in range(n_rows)]
    absent = np.array(
        [value is None or value != value or not str(value).strip() for value in values], dtype=bool
    )
    if absent.any():
        raise DataError(f"{where}: found none in {name_rows(absent)}; every row needs its own name")
    return [str(value) for value in values]


def _sorting(names: Sequence[str], path: Path) -> Ints:
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    for before, after in pairwise(order):
        if names[before] == names[after]:
            raise DataError(
                f"{path}: {names[after]!r} names rows {before} and {after}; every row needs its "
                "own name"
            )
    return order
