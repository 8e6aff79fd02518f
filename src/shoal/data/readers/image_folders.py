"""Folders of images, and where their labels come from: folder names, a table, metadata, or a
second folder."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from shoal.data.collection import Collection
from shoal.data.readers.folders import METADATA_NAMES, Listing, list_folder
from shoal.data.readers.labels import RowLabels, encode, labels_of_rows, similar_classes
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


Labels = Any
"""Labels as callers give them: a table, a data frame, a mapping, "folders", False or None."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How `read_collection` was asked to read; its arguments say more."""

    path_column: str | None
    label_column: str | None
    classes: Sequence[str] | None
    unlabeled: frozenset[str]
    follow_symlinks: bool
    allow_missing: bool


def read_listed(
    root: PurePath, listing: Listing, labels: Labels, options: ReadOptions
) -> Collection:
    """Read the images of a folder with the labels that are given, or that it holds itself."""
    if not listing.names:
        ignored = "; ".join(listing.notes) or "no files, or only tables"
        raise DataError(
            f"{root}: no images (jpg, png, webp, tif, bmp, gif or heic) in this folder or below: "
            f"{ignored}"
        )
    if is_label_table(labels):
        return _read_folder_and_table(root, listing, _label_table(labels), options)
    metadata = [name for name in listing.tables if PurePosixPath(name).name in METADATA_NAMES]
    if labels is None and metadata:
        return _read_hugging_face(root, listing, metadata, options)
    refuse_columns(options)
    if labels is False:
        return build(root, listing, {}, "a folder without labels", options)
    return _read_image_folder(root, listing, options)


def is_label_table(labels: Labels) -> bool:
    """Whether labels come as a table, whose columns are named."""
    if labels is None or labels is False:
        return False
    return not (isinstance(labels, str) and labels == "folders")


def refuse_columns(options: ReadOptions) -> None:
    """Refuse to be told of a column where no table is read."""
    column = options.path_column or options.label_column
    if column is not None:
        raise UsageError(
            f"column {column!r}: no table is read here; give the one that has it as the labels, "
            "or leave it out"
        )


def _read_folder_and_table(
    root: PurePath, listing: Listing, table: Table, options: ReadOptions
) -> Collection:
    paths = require_column(table, PATH_COLUMNS, options.path_column, "path", listing.names)
    labels = require_column(table, LABEL_COLUMNS, options.label_column, "label")
    rows = _label_rows(table, listing, root, paths, labels, options)
    if not rows.labels:  # its paths start somewhere else
        raise DataError(
            f"{table.where}: none of its {len(table):,} paths is an image under {root}; the first "
            "is "
            f"{table.columns[paths][0]!r}, an image there is {listing.names[0]!r}; give paths "
            "relative to that folder"
        )
    layout = f"a folder and the labels of {table.where} (columns {paths!r} and {labels!r})"
    return build(root, listing, rows.labels, layout, options, rows.notes)


def _label_rows(
    table: Table, listing: Listing, root: PurePath, paths: str, labels: str, options: ReadOptions
) -> RowLabels:
    return labels_of_rows(
        table,
        listing.names,
        root,
        paths,
        labels,
        options.unlabeled,
        allow_missing=options.allow_missing,
    )


def _read_image_folder(root: PurePath, listing: Listing, options: ReadOptions) -> Collection:
    labels_of = {name: _folder_label(name) for name in listing.names}
    folders = _class_folders(listing)
    notes = []
    if _are_splits(folders):
        notes.append(
            f"the folders in {root.name} look like splits, not categories; if so, give one of "
            "them instead"
        )
    for name in listing.tables:
        if name.startswith("labels."):
            notes.append(f"{name} is not read: name it as the labels to use it")
    layout = "a folder without labels"
    if folders:
        layout = f"{count(len(folders), 'folder')}, each a category, the rest unlabeled"
    return build(root, listing, labels_of, layout, options, tuple(notes))


def _read_hugging_face(
    root: PurePath, listing: Listing, metadata: list[str], options: ReadOptions
) -> Collection:
    _refuse_siblings(root, metadata)
    notes: list[str] = []
    merged = RowLabels()
    for name in metadata:
        table = read_table(f"{root}/{name}")
        paths = find_column(table, PATH_COLUMNS, options.path_column, "path", listing.names)
        labels = find_column(table, LABEL_COLUMNS, options.label_column, "label")
        rows = RowLabels()
        if paths is not None and labels is not None:
            rows = _label_rows(table, listing, root, paths, labels, options)
        if not rows.labels:
            notes.append(f"{name} is ignored: {_why_ignored(paths, labels)}")
            continue
        notes += rows.notes
        for image, label in rows.labels.items():
            merged.add(image, label, rows.locations[image], image)
    if not merged.labels:
        folder = replace(listing, tables=(), notes=(*listing.notes, *notes))
        return _read_image_folder(root, folder, options)
    folders = _class_folders(listing)
    if len(folders) > 1 and not _are_splits(folders):
        notes.append(
            f"{len(folders):,} folder names are not read as categories, because metadata has labels"
        )
    n_without = len(listing.names) - len(merged.labels)
    if n_without:
        notes.append(
            f"{count(n_without, 'image')} without a row of metadata {plural(n_without, 'is')} "
            "unlabeled"
        )
    layout = "a Hugging Face image folder, labels from its metadata"
    return build(root, listing, merged.labels, layout, options, tuple(notes))


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
            f"{root}: found {beside} side by side; keep one of them, or name the one to read as "
            "the labels"
        )


def read_two_folders(labeled: Path, unlabeled: Path, options: ReadOptions) -> Collection:
    """Read a folder with a folder per category, and one without labels."""
    refuse_columns(options)
    root = Path(os.path.commonpath([labeled, unlabeled]))
    labels_of: dict[str, str | None] = {}
    notes: list[str] = []
    left_out: dict[str, str] = {}
    for folder in (unlabeled, labeled):  # where one holds the other, labels win
        listing = list_folder(folder, follow_symlinks=options.follow_symlinks)
        if not listing.names:
            raise DataError(
                f"{folder}: no images (jpg, png, webp, tif, bmp, gif or heic) in this folder or "
                "below"
            )
        for name in listing.names:
            label = _folder_label(name) if folder == labeled else None
            labels_of[_below(root, folder, name)] = label
        left_out |= {_below(root, folder, name): reason for name, reason in listing.left_out}
        notes += [f"{folder.name}: {note}" for note in listing.notes]
    layout = (
        f"two folders: {labeled.name} with a folder per category, {unlabeled.name} without labels"
    )
    folders = tuple(folder.relative_to(root).as_posix() for folder in (labeled, unlabeled))
    listing = Listing(tuple(sorted(labels_of)), (), tuple(notes), tuple(sorted(left_out.items())))
    return build(root, listing, labels_of, layout, options, folders=folders)


def build(
    root: PurePath,
    listing: Listing,
    labels: Mapping[str, str | None],
    layout: str,
    options: ReadOptions,
    notes: tuple[str, ...] = (),
    folders: tuple[str, ...] = (".",),
) -> Collection:
    """A collection of the listed images, which lie below `root` or are stored, whose labels
    become numbers."""
    encoded, classes = encode([labels.get(name) for name in listing.names], options.classes)
    return Collection(
        listing.names,
        encoded,
        classes,
        root=root if isinstance(root, Path) else None,
        stored=listing.stored,
        layout=layout,
        notes=listing.notes + notes + similar_classes(classes),
        folders=folders,
        left_out=listing.left_out,
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
        f"labels: found {type(labels).__name__}, expected a table, a data frame or a mapping of "
        "paths to labels"
    )


def _class_folders(listing: Listing) -> set[str]:
    return {label for name in listing.names if (label := _folder_label(name)) is not None}


def _are_splits(folders: set[str]) -> bool:
    return bool(folders) and {folder.casefold() for folder in folders} <= SPLIT_FOLDERS


def _folder_label(name: str) -> str | None:
    folder, slash, _ = name.partition("/")
    if not slash or folder.casefold() in UNLABELED_FOLDERS:
        return None
    return folder


def _below(root: Path, folder: Path, name: str) -> str:
    return (folder.relative_to(root) / name).as_posix()
