"""Labels for things that already have names: ready embeddings, or the images of a finished run."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from shoal.data.readers.embeddings import NAME_COLUMNS, NUMBERED_NAME, Embeddings
from shoal.data.readers.labels import Spellings, class_names, encode, label_rows, similar_classes
from shoal.data.readers.numpy_files import load_arrays, one_per_row
from shoal.data.readers.tables import (
    LABEL_COLUMNS,
    as_table,
    find_column,
    is_frame,
    read_table,
    require_column,
)
from shoal.errors import DataError


@dataclass(frozen=True, slots=True)
class NamedClasses:
    """The classes of things by name, of those that have one."""

    classes: dict[str, str]
    notes: tuple[str, ...] = ()
    """What about the file may be a mistake, a sentence each."""


def read_names(
    file: Any,
    names: Sequence[str],
    *,
    path_column: str | None = None,
    label_column: str | None = None,
    as_filed: bool = False,
    allow_missing: bool = True,
) -> NamedClasses:
    """Read the class of each name from a table (csv, tsv, jsonl, parquet or a data frame) or array
    (npy); names without are left out.

    Rows with a path that is none of the names are counted in a note; many are an error unless
    `allow_missing`: a truth may cover more images than a run, labels are of the names or mistaken.

    An array, and a table without a column of paths, has one row per name, in their order. That must
    be the order that their file had, which only numbered names keep when they are sorted;
    `as_filed` says that it is.
    """
    if not is_frame(file) and Path(file).suffix.lower() == ".npy":
        cells = one_per_row(load_arrays(Path(file), "labels")["labels"], len(names), str(file))
        labels = class_names(cells, lambda row: f"{file}, row {row}")
        return _in_order(names, labels, str(file), as_filed=as_filed)
    table = as_table(file) if is_frame(file) else read_table(file)
    column = require_column(table, LABEL_COLUMNS, label_column, "label")
    labels = class_names(table.columns[column], table.location)
    paths = find_column(table, NAME_COLUMNS, path_column, "path", names)
    if paths is None:
        return _in_order(names, labels, table.where, as_filed=as_filed)
    wanted = Spellings(names)

    def find(cell: object, location: str) -> str | None:
        plain = PurePosixPath(str(cell).replace("\\", "/")).as_posix()  # without './'
        return wanted.find([str(cell), plain])

    rows = label_rows(table, paths, labels, find, allow_missing=allow_missing)
    if not rows.labels:
        raise DataError(
            f"{table.where}: has none of the {len(names):,} names; the first here is {names[0]!r}, "
            f"in the table {str(table.columns[paths][0])!r}; spell them alike"
        )
    classes = {name: label for name, label in rows.labels.items() if label is not None}
    return NamedClasses(classes, tuple(rows.notes))


def label_embeddings(
    given: Embeddings,
    file: str | os.PathLike[str],
    *,
    path_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
) -> Embeddings:
    """The same embeddings with the labels of a table or array instead of their own.

    Without paths it has a row per row of the embeddings' file, in the order of that file.
    """
    named = read_names(
        file,
        [given.names[i] for i in given.rows.argsort()],
        path_column=path_column,
        label_column=label_column,
        as_filed=True,
        allow_missing=allow_missing,
    )
    labels, classes = encode([named.classes.get(name) for name in given.names])
    notes = (*named.notes, *similar_classes(classes))
    return replace(given, labels=labels, classes=classes, notes=notes)


def _in_order(
    names: Sequence[str], labels: Sequence[str | None], where: str, *, as_filed: bool
) -> NamedClasses:
    """One label per name, which must stand in the order that their file had."""
    no_paths = f"{where}: no column of paths ({', '.join(NAME_COLUMNS)})"
    if not as_filed and not all(NUMBERED_NAME.fullmatch(name) for name in names):
        raise DataError(
            f"{no_paths}, and names such as {names[0]!r} were sorted, so the order of rows says "
            "nothing; give a table with a path per row"
        )
    if len(labels) != len(names):
        raise DataError(
            f"{no_paths}, and {len(labels):,} rows for {len(names):,} names; add the column, or "
            "give one row per name in their order"
        )
    pairs = zip(names, labels, strict=True)
    return NamedClasses({name: label for name, label in pairs if label is not None})
