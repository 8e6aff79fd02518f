"""Read precomputed embeddings, a row per image, and labels for existing names.

The names are those of embeddings, or of the images of a finished run.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from shoal.arrays import (
    Floats,
    Ints,
    archive_arrays,
    as_stored_embeddings,
    is_missing,
    name_rows,
)
from shoal.data.collection import count_labeled
from shoal.data.readers.tables import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    Table,
    class_names,
    encode,
    is_frame,
    label_images,
    name_finder,
    pick_column,
    read_parquet_columns,
    read_table,
    require_column,
    table_rows,
)
from shoal.data.storage import Location, reading
from shoal.errors import DataError, shown

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

NAME_COLUMNS = (*PATH_COLUMNS, "uuid", "filenames")

# Accepted names of embeddings, paths and labels in parquet and in npz files, in any case
COLUMN_NAMES: tuple[Sequence[str], ...] = (
    ("emb", "embedding", "vector"),
    NAME_COLUMNS,
    (*LABEL_COLUMNS, "labels"),
)
ARRAY_NAMES: tuple[Sequence[str], ...] = (("x",), ("paths",), ("y",))

# Names given to rows, or to images in memory, that have none; sorting keeps their order
NUMBERED_NAME = re.compile(r"(row|image)-\d+")

EMBEDDING_SUFFIXES = (".npy", ".npz", ".parquet")

Array = NDArray[np.generic]
Cells = Sequence[object]


@dataclass(frozen=True)
class Embeddings:
    """N embeddings under unique, sorted names, some of them labeled."""

    names: tuple[str, ...]
    x: Floats  # (N, D) as stored, not normalized; a large file is memory-mapped
    labels: Ints  # (N,) position in `classes`, -1 for unlabeled
    classes: tuple[str, ...]
    rows: Ints  # (N,) row of each embedding in the file
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        labeled = count_labeled(self.labels, self.classes)
        lines = [f"{len(self.names):,} embeddings of {self.x.shape[1]:,} numbers, {labeled}"]
        lines += [f"note: {shown(note)}" for note in self.notes]
        return "\n".join(lines)


def read_embeddings(
    file: Location,
    *,
    path_column: str | None = None,
    label_column: str | None = None,
) -> Embeddings:
    """Read embeddings, with names and labels if the file has them; rows are sorted by name.

    Accepted are npy (N, D); npz with X and optionally y and paths; parquet with a list column (emb,
    embedding or vector) and path, uuid, …. Rows without names are named by their number. Empty
    cells, None, NaN, NA, -1, 'unlabeled' and 'unknown' mean unlabeled. Rows of zeros are refused:
    they have no direction.
    """
    path = Path(file)
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in EMBEDDING_SUFFIXES:
        raise DataError(
            f"{path}: not a file of embeddings; give an existing local file "
            f"({', '.join(EMBEDDING_SUFFIXES)})"
        )
    if suffix == ".parquet":
        columns = read_parquet_columns(path)
        vector_names, path_names, label_names = COLUMN_NAMES
    else:
        columns = _load_arrays(path, "X")
        vector_names, path_names, label_names = ARRAY_NAMES
    vectors = pick_column(columns, vector_names, None, path.name)
    if vectors is None:
        raise DataError(
            f"{path}: found {', '.join(columns)}, expected embeddings (N, D) as an array X, or as "
            f"lists of numbers in a column {', '.join(vector_names)}"
        )
    matrix = columns[vectors]
    if suffix == ".parquet":
        matrix = _stack_lists(matrix, f"{path}: column {vectors}")
    x = as_stored_embeddings(matrix, name=path.name)

    def read(accepted: Sequence[str], chosen: str | None) -> Cells | None:
        name = pick_column(columns, accepted, chosen, path.name)
        if name is None:
            return None
        if suffix == ".parquet":
            return columns[name].to_pylist()
        return _one_per_row(columns[name], len(x), f"{path}: {name}")

    row_names = _as_names(read(path_names, path_column), len(x), path)
    cells = read(label_names, label_column) or [None] * len(x)
    labels_of_rows = class_names(cells, lambda row: f"{path}, row {row}")
    order = np.array(sorted(range(len(x)), key=row_names.__getitem__), dtype=np.int64)
    for before, after in pairwise(order):
        if row_names[before] == row_names[after]:
            raise DataError(
                f"{path}: rows {before} and {after} are both named {row_names[after]!r}; give each "
                "row its own name"
            )
    labels, classes = encode([labels_of_rows[i] for i in order])
    if (np.diff(order) < 0).any():  # else a memory-mapped matrix is not copied
        x = x[order]
    return Embeddings(
        names=tuple(row_names[i] for i in order),
        x=x,
        labels=labels,
        classes=classes,
        rows=order,
    )


def _load_arrays(path: Path, name: str) -> dict[str, Any]:
    """Return the arrays of an npz file by name; that of an npy file is called `name`, and mapped.

    Nothing is unpickled.
    """
    kind = f"{path.suffix} file of numbers and text (Python objects are never unpickled)"
    with reading(path, kind):
        if path.suffix.lower() == ".npy":
            return {name: np.lib.format.open_memmap(path, mode="r")}
        with path.open("rb") as file, NpzFile(file, allow_pickle=False) as archive:
            return archive_arrays(archive)


def _one_per_row(values: Array, n_rows: int, where: str) -> list[object]:
    """Return an array (N,) as a list; refuse any other shape."""
    if values.shape != (n_rows,):
        raise DataError(
            f"{where}: found shape {values.shape}, expected ({n_rows},), one per row of the "
            "embeddings in their order"
        )
    return list(values.tolist())


def _stack_lists(column: "ChunkedArray", where: str) -> Array:
    """Return a parquet list column as (N, D), without a Python object per number."""
    import pyarrow
    import pyarrow.compute

    lists = column.combine_chunks()
    lengths: list[int | None] = []
    if hasattr(lists, "flatten") and not pyarrow.types.is_struct(lists.type):
        lengths = pyarrow.compute.list_value_length(lists).unique().to_pylist()
    if len(lengths) != 1 or None in lengths:  # None: no list
        raise DataError(f"{where}: found {lists.type}, expected lists of the same length")
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1)


def _as_names(values: Cells | None, n_rows: int, path: Path) -> list[str]:
    """Return a name per row as text, or the number of the row if there are no names."""
    if values is None:
        width = max(6, len(str(n_rows - 1)))
        return [f"row-{i:0{width}d}" for i in range(n_rows)]
    no_name = np.array(
        [is_missing(name) or isinstance(name, bytes) or not str(name).strip() for name in values]
    )
    if no_name.any():
        raise DataError(f"{path}: no name in {name_rows(no_name)}; give each row its own, as text")
    return [str(name) for name in values]


def read_labels(
    file: Any,
    names: Sequence[str],
    *,
    path_column: str | None = None,
    label_column: str | None = None,
    is_file_order: bool = False,
    allow_missing: bool = True,
) -> tuple[dict[str, str], list[str]]:
    """Return the class of each labeled name, and notes about possible mistakes.

    `file` is a table (csv, tsv, jsonl, parquet or a data frame) or an array (npy). Paths may start
    with folders that all of them share and the names lack. Rows with a path that is none of the
    names are counted in a note; many are an error unless `allow_missing`.

    An array, and a table without a column of paths, has one row per name in the order of their
    file. Only numbered names keep that order when they are sorted; `is_file_order` says that
    `names` are in it.
    """
    if not is_frame(file) and Path(file).suffix.lower() == ".npy":
        array = _load_arrays(Path(file), "label")["label"]
        cells = _one_per_row(array, len(names), str(file))
        table = Table(str(file), None, {"label": cells}, range(len(cells)), unit="row")
    else:
        table = read_table(file)
    column = require_column(table, LABEL_COLUMNS, label_column, "label")
    paths = pick_column(table.columns, NAME_COLUMNS, path_column, table.where)
    if paths is None:
        labels = class_names(table.columns[column], table.location)
        is_ordered = is_file_order or all(map(NUMBERED_NAME.fullmatch, names))
        if not is_ordered or len(labels) != len(names):
            raise DataError(
                f"{table.where}: no column of paths ({', '.join(NAME_COLUMNS)}), and "
                f"{len(labels):,} rows for {len(names):,} sorted names such as {names[0]!r}; give "
                "a table with a path per row"
            )
        pairs = zip(names, labels, strict=True)
        return {name: label for name, label in pairs if label is not None}, []

    def path_of(cell: object) -> str:
        return "" if is_missing(cell) else str(cell)

    name_of, dropped = _names_by_path(map(path_of, table.columns[paths]), names)
    rows = table_rows(table, paths, column, lambda cell, _: name_of[path_of(cell)])
    found, notes = label_images(rows, allow_missing=allow_missing)
    if not found:
        raise DataError(
            f"{table.where}: has none of the {len(names):,} names; the first name is {names[0]!r}, "
            f"the first in the table {rows[0][0]!r}; use the same spelling"
        )
    if dropped.parts:
        notes.append(f"paths are read without '{dropped}', which all of them share")
    return {name: label for name, label in found.items() if label is not None}, notes


def _names_by_path(
    paths: Iterable[str], names: Sequence[str]
) -> tuple[dict[str, str | None], PurePosixPath]:
    """Return the name that each path names, None for none, and the folders that were dropped.

    If no path is a name, paths may be relative to another folder: the first folders are dropped, as
    long as all paths share them.
    """
    find_name = name_finder(names)
    parts = {path: PurePosixPath(path.replace("\\", "/")).parts for path in paths}
    folders = [path[:-1] for path in parts.values() if path]
    ends = zip(min(folders, default=()), max(folders, default=()), strict=False)
    shared = [first for first, last in takewhile(lambda pair: pair[0] == pair[1], ends)]
    for n_dropped in range(len(shared) + 1):
        found = {
            path: find_name([path, "/".join(part[n_dropped:])]) for path, part in parts.items()
        }
        if any(found.values()):
            break
    return found, PurePosixPath(*shared[:n_dropped])


def label_embeddings(
    embeddings: Embeddings,
    file: Location,
    *,
    path_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
) -> Embeddings:
    """Return embeddings with the labels of a table or array instead of their own.

    A file without paths has a row per row of the embeddings' file, in the same order.
    """
    named, notes = read_labels(
        file,
        [embeddings.names[i] for i in embeddings.rows.argsort()],
        path_column=path_column,
        label_column=label_column,
        is_file_order=True,
        allow_missing=allow_missing,
    )
    labels, classes = encode([named.get(name) for name in embeddings.names])
    return replace(embeddings, labels=labels, classes=classes, notes=tuple(notes))
