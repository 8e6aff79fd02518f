"""Labels for things that already have names: ready embeddings, or the images of a finished run."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from shoal.data.readers.embeddings import NAME_COLUMNS, Embeddings
from shoal.data.readers.labels import UNLABELED_NAMES, class_name, encode, fold_unlabeled, refuse_second_label
from shoal.data.readers.tables import LABEL_COLUMNS, Table, find_column, read_table, require_column
from shoal.errors import DataError


def read_names(
    file: str | os.PathLike[str],
    names: Sequence[str],
    *,
    path_column: str | None = None,
    label_column: str | None = None,
    unlabeled_names: Iterable[str] = UNLABELED_NAMES,
) -> dict[str, str]:
    """Read the class of each name from a table (csv, tsv, jsonl, parquet); names without one are left out.

    A table without a column of paths is taken to have one row per name, in their order.
    """
    table = read_table(file)
    unlabeled = fold_unlabeled(unlabeled_names)
    cells = table.columns[require_column(table, LABEL_COLUMNS, label_column, "label")]
    labels = [class_name(cell, unlabeled) for cell in cells]
    column = find_column(table, NAME_COLUMNS, path_column, "path")
    if column is None:
        return _in_order(table, names, labels)
    wanted, found, places = set(names), dict[str, str](), dict[str, str]()
    for row, (raw, label) in enumerate(zip(table.columns[column], labels, strict=True)):
        name = _spelled(str(raw), wanted)
        if name is None or label is None:
            continue
        refuse_second_label(name, found.get(name), places.get(name, ""), label, table.place(row))
        found[name], places[name] = label, table.place(row)
    if not found:
        raise DataError(
            f"{table.where}: labels none of the {len(wanted):,} names; the first here is {next(iter(names))!r}, in the "
            f"table {str(table.columns[column][0]) if len(table) else 'nothing'!r}; spell them alike"
        )
    return found


def label_embeddings(
    given: Embeddings,
    file: str | os.PathLike[str],
    *,
    path_column: str | None = None,
    label_column: str | None = None,
) -> Embeddings:
    """The same embeddings with the labels of a table instead of their own."""
    found = read_names(file, given.names, path_column=path_column, label_column=label_column)
    labels, classes = encode([found.get(name) for name in given.names])
    return replace(given, labels=labels, classes=classes)


def _in_order(table: Table, names: Sequence[str], labels: Sequence[str | None]) -> dict[str, str]:
    if len(labels) != len(names):
        raise DataError(
            f"{table.where}: no column of paths ({', '.join(NAME_COLUMNS)}), and {len(labels):,} rows for "
            f"{len(names):,} names; add the column, or give one row per name in their order"
        )
    return {name: label for name, label in zip(names, labels, strict=True) if label is not None}


def _spelled(raw: str, wanted: set[str]) -> str | None:
    """The name that a cell means: as it stands, or as a path with forward slashes and without './'."""
    if raw in wanted:
        return raw
    path = PurePosixPath(raw.replace("\\", "/")).as_posix()
    return path if path in wanted else None
