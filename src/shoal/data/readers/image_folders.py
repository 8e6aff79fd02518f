"""Folders of images, and where their labels come from: folder names, a table, metadata, or a second folder."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from shoal.data.collection import Collection
from shoal.data.readers.folders import METADATA_NAMES, Listing, list_folder
from shoal.data.readers.labels import RowLabels, encode, labels_of_rows, merge, similar_classes
from shoal.data.readers.tables import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    Table,
    as_table,
    find_column,
    is_frame,
    read_table,
    require_column,
)
from shoal.errors import DataError, UsageError
from shoal.words import count, plural

UNLABELED_FOLDERS = ("unlabeled", "unlabelled", "_unlabeled", "unknown", "unsorted")
"""First-level folders whose images have no label, whatever their case."""

SPLIT_FOLDERS = frozenset({"train", "test", "val", "valid", "validation", "dev", "eval"})
"""Folder names that are splits far more often than categories."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How `read_collection` was asked to read; its arguments say more."""

    path_column: str | None
    label_column: str | None
    classes: Sequence[str] | None
    unlabeled: frozenset[str]
    follow_symlinks: bool
    allow_missing: bool


def read_listed(root: PurePath, listing: Listing, labels: Any, options: ReadOptions) -> Collection:
    """Read the images of a folder with the labels that are given, or that it holds itself."""
    if not listing.names:
        ignored = "; ".join(listing.notes) or (
            "no files at all"
            if isinstance(root, Path) and not any(root.iterdir())
            else "only tables or empty folders"
        )
        raise DataError(
            f"{root}: no images (jpg, png, webp, tif, bmp, gif or heic) in this folder or below: {ignored}"
        )
    metadata = [name for name in listing.tables if PurePosixPath(name).name in METADATA_NAMES]
    if (
        labels is False
        or (labels is None and not metadata)
        or (isinstance(labels, str) and labels == "folders")
    ):
        _refuse_columns(options)
    if labels is False:
        return build(root, listing.names, {}, "a folder without labels", listing.notes, options)
    if labels is None and metadata:
        return _read_hugging_face(root, listing, metadata, options)
    if labels is None or (isinstance(labels, str) and labels == "folders"):
        return _read_image_folder(root, listing, options)
    return _read_folder_and_table(root, listing, _label_table(labels), options)


def _refuse_columns(options: ReadOptions) -> None:
    """Refuse to be told of a column where no table is read."""
    given = options.path_column or options.label_column
    if given is not None:
        raise UsageError(
            f"column {given!r}: no table is read here; give the one that has it as the labels, or leave it out"
        )


def _read_folder_and_table(
    root: PurePath, listing: Listing, table: Table, options: ReadOptions
) -> Collection:
    paths = require_column(table, PATH_COLUMNS, options.path_column, "path", listing.names)
    labels = require_column(table, LABEL_COLUMNS, options.label_column, "label")
    rows = _label_rows(table, listing, root, paths, labels, options)
    if not rows.labels:  # its paths start somewhere else
        raise DataError(
            f"{table.where}: none of its {len(table):,} paths is an image under {root}; the first is "
            f"{table.columns[paths][0]!r}, an image there is {listing.names[0]!r}; give paths relative to that folder"
        )
    layout = f"a folder and the labels of {table.where} (columns {paths!r} and {labels!r})"
    return build(root, listing.names, rows.labels, layout, listing.notes + rows.notes, options)


def _label_rows(
    table: Table, listing: Listing, root: PurePath, paths: str, labels: str, options: ReadOptions
) -> RowLabels:
    unlabeled = options.unlabeled
    allow_missing = options.allow_missing
    return labels_of_rows(
        table, listing.names, root, paths, labels, unlabeled, allow_missing=allow_missing
    )


def _read_image_folder(root: PurePath, listing: Listing, options: ReadOptions) -> Collection:
    labels_of = {name: _folder_label(name) for name in listing.names}
    n_folders = len({label for label in labels_of.values() if label is not None})
    notes = list(listing.notes)
    if (
        n_folders
        and {label.casefold() for label in labels_of.values() if label is not None} <= SPLIT_FOLDERS
    ):
        notes.append(
            f"the folders in {root.name} look like splits, not categories; if so, give one of them instead"
        )
    notes += [
        f"{name} is not read: name it as the labels to use it"
        for name in listing.tables
        if name.startswith("labels.")
    ]
    layout = (
        f"{count(n_folders, 'folder')}, each a category, the rest unlabeled"
        if n_folders
        else "a folder without labels"
    )
    return build(root, listing.names, labels_of, layout, tuple(notes), options)


def _read_hugging_face(
    root: PurePath, listing: Listing, metadata: list[str], options: ReadOptions
) -> Collection:
    _refuse_siblings(root, metadata)
    notes = list(listing.notes)
    parts = []
    for name in metadata:
        table = read_table(f"{root}/{name}")
        paths = find_column(table, PATH_COLUMNS, options.path_column, "path", listing.names)
        labels = find_column(table, LABEL_COLUMNS, options.label_column, "label")
        rows = None
        if paths is not None and labels is not None:
            rows = _label_rows(table, listing, root, paths, labels, options)
        if rows is not None and rows.labels:
            parts.append(rows)
        else:
            notes.append(f"{name} is ignored: {_why_ignored(paths, labels)}")
    if not parts:
        return _read_image_folder(root, Listing(listing.names, (), tuple(notes)), options)
    return _build_hugging_face(root, listing, merge(parts), notes, options)


def _build_hugging_face(
    root: PurePath, listing: Listing, rows: RowLabels, notes: list[str], options: ReadOptions
) -> Collection:
    folders = {_folder_label(name) for name in listing.names} - {None}
    if len(folders) > 1 and not {str(folder).casefold() for folder in folders} <= SPLIT_FOLDERS:
        notes.append(
            f"{len(folders):,} folder names are not read as categories, because metadata has labels"
        )
    n_without = len(listing.names) - len(rows.labels)
    if n_without:
        notes.append(
            f"{count(n_without, 'image')} without a row of metadata {plural(n_without, 'is')} unlabeled"
        )
    layout = "a Hugging Face image folder, labels from its metadata"
    return build(root, listing.names, rows.labels, layout, (*notes, *rows.notes), options)


def _why_ignored(paths: str | None, labels: str | None) -> str:
    if paths is None:
        return f"no path column (one of {', '.join(PATH_COLUMNS)})"
    if labels is None:
        return f"no label column (one of {', '.join(LABEL_COLUMNS)}); folder names are the labels"
    return "none of its paths is an image beside or below it; it may be in the wrong folder"


def _refuse_siblings(root: PurePath, metadata: list[str]) -> None:
    folders = [PurePosixPath(name).parent for name in metadata]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        beside = ", ".join(name for name in metadata if PurePosixPath(name).parent == twice)
        raise DataError(
            f"{root}: found {beside} side by side; keep one of them, or name the one to read as the labels"
        )


def read_two_folders(labeled: Path, unlabeled: Path, options: ReadOptions) -> Collection:
    """Read a folder with a folder per category, and one without labels."""
    _refuse_columns(options)
    root = Path(os.path.commonpath([labeled, unlabeled]))
    labels_of: dict[str, str | None] = {}
    notes: list[str] = []
    left_out: dict[str, str] = {}
    for folder, has_labels in (
        (unlabeled, False),
        (labeled, True),
    ):  # where one holds the other, labels win
        listing = list_folder(folder, follow_symlinks=options.follow_symlinks)
        if not listing.names:
            raise DataError(
                f"{folder}: no images (jpg, png, webp, tif, bmp, gif or heic) in this folder or below"
            )
        prefix = folder.relative_to(root).as_posix()
        start = "" if prefix == "." else f"{prefix}/"
        for name in listing.names:
            labels_of[f"{start}{name}"] = _folder_label(name) if has_labels else None
        left_out |= {f"{start}{name}": reason for name, reason in listing.left_out}
        notes += [f"{folder.name}: {note}" for note in listing.notes]
    layout = (
        f"two folders: {labeled.name} with a folder per category, {unlabeled.name} without labels"
    )
    folders = tuple(folder.relative_to(root).as_posix() for folder in (labeled, unlabeled))
    collection = build(root, sorted(labels_of), labels_of, layout, tuple(notes), options, folders)
    return replace(collection, left_out=tuple(sorted(left_out.items())))


def build(
    root: PurePath,
    names: Sequence[str],
    labels: Mapping[str, str | None],
    layout: str,
    notes: tuple[str, ...],
    options: ReadOptions,
    folders: tuple[str, ...] = (".",),
) -> Collection:
    """A collection of named images below `root`, whose labels become numbers."""
    encoded, classes = encode([labels.get(name) for name in names], options.classes)
    about: dict[str, Any] = {"root": root, "folders": folders, "layout": layout}
    return Collection(
        tuple(names), encoded, classes, **about, notes=notes + similar_classes(classes)
    )


def _label_table(labels: Any) -> Table:
    if is_frame(labels):
        return as_table(labels)
    if isinstance(labels, Mapping):
        columns = {"path": list(labels), "label": list(labels.values())}
        return Table("labels", None, columns, range(len(labels)), unit="entry")
    if isinstance(labels, str | os.PathLike):
        return read_table(labels)
    raise UsageError(
        f"labels: found {type(labels).__name__}, expected a table, a data frame or a mapping of paths to labels"
    )


def _folder_label(name: str) -> str | None:
    folder, slash, _ = name.partition("/")
    return None if not slash or folder.casefold() in UNLABELED_FOLDERS else folder
