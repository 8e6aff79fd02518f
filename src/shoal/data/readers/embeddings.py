"""Ready embeddings: a row per image, computed elsewhere; every later step is the same as for our
own."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shoal.arrays import (
    UNLABELED,
    Floats,
    Ints,
    as_stored_embeddings,
    each_row,
    is_missing,
    name_rows,
)
from shoal.data.readers.folders import refuse_address
from shoal.data.readers.labels import class_names, encode, similar_classes
from shoal.data.readers.numpy_files import Array, load_arrays, one_per_row
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

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

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


class _Raw(NamedTuple):
    """What a file holds, in its order."""

    x: Array
    names: Sequence[object] | None
    labels: Sequence[object] | None


def read_embeddings(
    file: str | os.PathLike[str],
    *,
    path_column: str | None = None,
    label_column: str | None = None,
) -> Embeddings:
    """Read embeddings, with names and labels where the file has them; rows are sorted by name.

    Accepted are npy (N, D); npz with X and optionally y and paths; parquet with a list column (emb,
    embedding or vector) beside path, uuid, …; parquet or csv with columns embedding_0, embedding_1,
    … beside filename. Without names, rows are named by their number and keep their order. Unlabeled
    are empty cells, None, NaN, NA, -1, 'unlabeled' and 'unknown'. Rows of zeros, which have no
    direction, are refused.
    """
    refuse_address(file)
    path = Path(file)
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in EMBEDDING_SUFFIXES:
        raise DataError(
            f"{path}: no file of embeddings; give one that is there, as "
            f"{', '.join(EMBEDDING_SUFFIXES)}"
        )
    if suffix in (".npy", ".npz"):
        raw = _read_arrays(path, path_column, label_column)
    else:
        raw = _read_columns(path, path_column, label_column)
    x = as_stored_embeddings(raw.x, name=path.name)
    names = _as_names(raw.names, len(x), path)
    is_zero = each_row(x, lambda rows: ~rows.any(axis=1))  # (N,)
    if is_zero.any():
        first = names[int(is_zero.argmax())]
        raise DataError(
            f"{path.name}: only zeros in {name_rows(is_zero)}, the first {first!r}; remove them"
        )
    given: list[str | None] = [None] * len(x)
    if raw.labels is not None:
        cells = _decoded(raw.labels, path)
        given = class_names(cells, lambda row: f"{path}, row {row}")
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    for before, after in pairwise(order):
        if names[before] == names[after]:
            raise DataError(
                f"{path}: {names[after]!r} names rows {before} and {after}; every row needs its "
                "own name"
            )
    labels, known = encode([given[i] for i in order])
    if (np.diff(order) < 0).any():  # else a memory-mapped matrix need not be copied
        x = _ordered(x, order)
    return Embeddings(
        names=tuple(names[i] for i in order),
        x=x,
        labels=labels,
        classes=known,
        rows=order,
        notes=tuple(similar_classes(known)),
    )


def _ordered(x: Floats, order: Ints) -> Floats:
    """The rows in another order, past 1 GiB in a mapped file."""
    cache = cache_folder()
    with writing(cache):
        ordered: Floats = scratch_array(x.shape, x.dtype, cache)
    for start in range(0, len(order), ROWS_AT_ONCE):
        ordered[start : start + ROWS_AT_ONCE] = x[order[start : start + ROWS_AT_ONCE]]
    return ordered


def _read_arrays(path: Path, path_column: str | None, label_column: str | None) -> _Raw:
    """Read an npy file, or X, y and paths of an npz file."""
    arrays = load_arrays(path, "X")
    if "X" not in arrays or arrays["X"].ndim != 2:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(
            f"{path}: found {shapes}, expected an array X (N, D), and y and paths where known"
        )
    given: list[list[object] | None] = []
    for chosen, usual in ((path_column, "paths"), (label_column, "y")):
        name = chosen or usual
        if chosen is not None and name not in arrays and path.suffix.lower() == ".npz":
            raise DataError(f"{path}: no array {chosen!r}; found {', '.join(sorted(arrays))}")
        values = None
        if name in arrays:
            values = one_per_row(arrays[name], len(arrays["X"]), f"{path}: {name}")
        given.append(values)
    return _Raw(arrays["X"], *given)


def _read_columns(path: Path, path_column: str | None, label_column: str | None) -> _Raw:
    """Read a csv or parquet file."""
    x: Array | None = None
    if path.suffix.lower() == ".parquet":
        columns = read_parquet_columns(path)
        n_rows = len(next(iter(columns.values()), ()))
        vector = next((name for name in VECTOR_COLUMNS if name in columns), None)
        if vector is not None:
            x = _stack_lists(columns.pop(vector), f"{path}: column {vector}")
        cells = {name: column.to_pylist() for name, column in columns.items()}
        table = Table(path.name, path.parent, cells, range(n_rows), unit="row")
    else:
        table = read_table(path)
    if table.spanning:
        raise DataError(
            f"{table.location(table.spanning[0])}: a text in quotes spans lines; close the quote "
            "where it opens"
        )
    if x is None:
        x = _stack_columns(table, path)
    names = find_column(table, NAME_COLUMNS, path_column, "path")
    labels = find_column(table, GIVEN_LABEL_COLUMNS, label_column, "label")
    return _Raw(x, table.columns.get(names or ""), table.columns.get(labels or ""))


def _stack_columns(table: Table, path: Path) -> Array:
    """The columns embedding_0, embedding_1, … by their numbers, which leave none out, as (N, D)."""
    matches = [match for match in map(NUMBERED_COLUMN.fullmatch, table.columns) if match]
    numbered = sorted((int(match[1]), match[0]) for match in matches)
    if not numbered:
        raise DataError(
            f"{path}: found {len(table.columns)} columns, expected a list column (parquet: "
            f"{', '.join(VECTOR_COLUMNS)}), or embedding_0, embedding_1, … among them"
        )
    start = min(numbered[0][0], 1)
    for expected, (number, name) in enumerate(numbered, start):
        if number != expected:
            raise DataError(
                f"{path}: found {name} where embedding_{expected} would be next; a column is "
                "missing or named twice, so write the embeddings again with all of them"
            )
    try:
        columns = [table.columns[name] for _, name in numbered]
        return np.ascontiguousarray(np.array(columns, dtype=np.float64).T)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: a cell of the embedding columns is not a number ({error})"
        ) from error


def _stack_lists(column: "ChunkedArray", where: str) -> Array:
    """A parquet list column as (N, D), without a Python object per number."""
    import pyarrow
    import pyarrow.compute

    lists = column.combine_chunks()
    if not hasattr(lists, "flatten") or pyarrow.types.is_struct(lists.type):
        raise DataError(f"{where}: found {lists.type}, expected a list of numbers per row")
    lengths = pyarrow.compute.list_value_length(lists).unique().to_pylist()
    if len(lengths) != 1 or None in lengths:  # None: no list
        raise DataError(f"{where}: rows of {lengths[:5]} numbers, expected the same in each")
    stacked: Array = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1)
    return stacked


def _as_names(values: Sequence[object] | None, n_rows: int, path: Path) -> list[str]:
    """A name per row as text; rows without any are named by their number, so that sorting keeps
    their order."""
    if values is None:
        width = max(6, len(str(n_rows - 1)))
        return [f"row-{i:0{width}d}" for i in range(n_rows)]
    names = _decoded(values, path)
    absent = np.array([is_missing(name) or not str(name).strip() for name in names], dtype=bool)
    if absent.any():
        raise DataError(f"{path}: no name in {name_rows(absent)}; every row needs its own")
    return [str(name) for name in names]


def _decoded(cells: Sequence[object], path: Path) -> list[object]:
    """Names stored as bytes as the text that they spell."""
    try:
        return [cell.decode("utf-8") if isinstance(cell, bytes) else cell for cell in cells]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: found {error.object!r}, which is no UTF-8; save names as text (dtype U)"
        ) from error
