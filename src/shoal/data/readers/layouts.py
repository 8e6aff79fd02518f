"""Layouts: recognise how a user keeps images and labels, and read them as one collection."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED_NAMES, fold_unlabeled
from shoal.data.collection import Collection
from shoal.data.readers.folders import METADATA_NAMES, TABLE_SUFFIXES, Listing, check_folder, list_folder
from shoal.data.readers.labels import (
    RowLabels,
    check_some_found,
    class_names,
    encode,
    labels_of_rows,
    merge,
    similar_classes,
)
from shoal.data.readers.memory import read_images, read_paths
from shoal.data.readers.remote_folders import are_addresses, list_remote_folder, read_addresses
from shoal.data.readers.shard_patterns import is_shards, shards_below, unread_shards
from shoal.data.readers.shards import read_shards
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
from shoal.data.storage.addresses import Address, as_address
from shoal.errors import DataError, UsageError
from shoal.words import count

UNLABELED_FOLDERS = ("unlabeled", "unlabelled", "_unlabeled", "unknown", "unsorted")
"""First-level folders whose images have no label, whatever their case."""

SPLIT_FOLDERS = frozenset({"train", "test", "val", "valid", "validation", "dev", "eval"})
"""Folder names that are splits far more often than categories."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    path_column: str | None
    label_column: str | None
    classes: Sequence[str] | None
    unlabeled: frozenset[str]
    follow_symlinks: bool
    allow_missing: bool


def read_collection(
    source: Any = None,
    labels: Any = None,
    *,
    labeled: str | os.PathLike[str] | None = None,
    unlabeled: str | os.PathLike[str] | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    classes: Sequence[str] | None = None,
    unlabeled_names: Iterable[str] = UNLABELED_NAMES,
    follow_symlinks: bool = True,
    allow_missing: bool = False,
) -> Collection:
    """Read images and labels in any supported layout; `Collection.describe` says what was recognised.

    Args:
        source: A folder, or its address (s3://, gs://, hf://); tar or parquet shards that hold images
            (`shards-{000..012}.tar`), or their address; a table (csv, tsv, jsonl, parquet) or data frame of paths or
            addresses and labels, or its address; a list of paths or addresses, of PIL images or of arrays; a uint8
            array (N, H, W) or (N, H, W, C).
        labels: With a folder: a table, data frame or mapping of paths to labels; "folders" to read folder names even
            where a metadata file has labels; False for no labels. Otherwise one label per image, or None.
            A label that is None, NaN, NA, -1 or one of `unlabeled_names` means unlabeled.
        labeled: With `unlabeled`, instead of `source`: a folder with a folder per class.
        unlabeled: A folder of images without labels, at any depth.
        path_column: The column of paths, if it is none of `PATH_COLUMNS`.
        label_column: The column of labels, if it is none of `LABEL_COLUMNS`.
        classes: The known classes in the order that their ids shall have; sorted by name if not given.
        unlabeled_names: Cells that mean 'no label', whatever their case.
        follow_symlinks: Whether links to folders are followed (links to files always are).
        allow_missing: Whether to go on where more than a few per cent of a table's rows name images that are not there,
            or shards are damaged.
    """
    options = _Options(
        path_column=path_column,
        label_column=label_column,
        classes=classes,
        unlabeled=fold_unlabeled(unlabeled_names),
        follow_symlinks=follow_symlinks,
        allow_missing=allow_missing,
    )
    if labeled is not None or unlabeled is not None:
        if source is not None or labels is not None or labeled is None or unlabeled is None:
            raise UsageError("give `labeled` and `unlabeled` together, and neither images nor `labels` beside them")
        return _read_two_roots(check_folder(labeled), check_folder(unlabeled), options)
    if isinstance(source, str | os.PathLike):
        try:
            return _read_location(source, labels, options)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise DataError(
                f"{str(error.filename)[:60]}…: too long for the name of a file; give one that is there"
            ) from error
    if is_frame(source):
        return _read_rows(as_table(source), labels, options)
    return _read_memory(source, labels, options)


def _read_location(source: str | os.PathLike[str], labels: Any, options: _Options) -> Collection:
    path, address = Path(source), as_address(source)
    if is_shards(source, None if _is_table(labels) else options.path_column):
        return _read_shards(source, labels, options)
    if address is not None:
        return _read_remote(address, labels, options)
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        return _read_rows(read_table(path), labels, options)
    if path.is_file() and path.suffix.lower() in (".npy", ".npz"):
        raise UsageError(f"{path}: found an array file; read embeddings with read_embeddings, images from a folder")
    root = check_folder(path)
    listing = list_folder(root, follow_symlinks=options.follow_symlinks)
    if not listing.names and (shards := shards_below(root)) is not None:
        collection = _read_shards(shards, labels, options)
        return replace(collection, notes=(*collection.notes, *unread_shards(root, shards)))
    return replace(_read_listed(root, listing, labels, options), left_out=listing.left_out)


def _read_remote(address: Address, labels: Any, options: _Options) -> Collection:
    """Read what lies at an address: a table of images, or a folder of images or shards."""
    if address.suffix in TABLE_SUFFIXES:
        return _read_rows(read_table(address), labels, options)
    found = list_remote_folder(address)
    if found.files is None and found.shards:
        return _read_shards(address / f"*{found.shards[-1]}", labels, options)
    collection = _read_listed(address, found.listing, labels, options)
    return replace(collection, root=None, stored=found.files, left_out=found.listing.left_out)


def _read_shards(pattern: str | os.PathLike[str], labels: Any, options: _Options) -> Collection:
    """Read tar or parquet shards: their own labels, or others that are given."""
    columns = {} if _is_table(labels) else {"image_column": options.path_column, "label_column": options.label_column}
    found = read_shards(pattern, **columns, allow_missing=options.allow_missing, needs_labels=labels is None)
    root, listing = PurePath(found.files.where), found.listing
    if not listing.names:
        shards = count(len(found.files.shards), "shard")
        raise DataError(f"{root}: no images (jpg, png, webp, tif, bmp, gif or heic) in {shards}; give others")
    if labels is None and found.labels is not None:
        names = [*found.labels]
        cells = class_names([*found.labels.values()], options.unlabeled, lambda i: f"{root}, label of {names[i]}")
        given = dict(zip(names, cells, strict=True))
        shards = f"{count(len(found.files.shards), 'shard')} and the labels in them"
        collection = _build(root, listing.names, given, shards, listing.notes, options)
    else:
        # A shard's name that was put before the names of its images is no category.
        labels = False if labels is None and found.is_prefixed else labels
        collection = _read_listed(root, listing, labels, options)
    return replace(collection, root=None, stored=found.files, left_out=listing.left_out)


def _is_table(labels: Any) -> bool:
    """Whether labels come as a table, whose columns are named."""
    return labels is not None and labels is not False and not (isinstance(labels, str) and labels == "folders")


def _read_listed(root: PurePath, listing: Listing, labels: Any, options: _Options) -> Collection:
    if not listing.names:
        ignored = "; ".join(listing.notes) or (
            "no files at all" if isinstance(root, Path) and not any(root.iterdir()) else "only tables or empty folders"
        )
        raise DataError(f"{root}: no images (jpg, png, webp, tif, bmp, gif or heic) in this folder or below: {ignored}")
    metadata = [name for name in listing.tables if PurePosixPath(name).name in METADATA_NAMES]
    if labels is False or (labels is None and not metadata) or (isinstance(labels, str) and labels == "folders"):
        _refuse_columns(options)
    if labels is False:
        return _build(root, listing.names, {}, "a folder without labels", listing.notes, options)
    if labels is None and metadata:
        return _read_hugging_face(root, listing, metadata, options)
    if labels is None or (isinstance(labels, str) and labels == "folders"):
        return _read_image_folder(root, listing, options)
    return _read_folder_and_table(root, listing, _label_table(labels), options)


def _refuse_columns(options: _Options) -> None:
    """Refuse to be told of a column where no table is read."""
    given = options.path_column or options.label_column
    if given is not None:
        raise UsageError(
            f"column {given!r}: no table is read here; give the one that has it as the labels, or leave it out"
        )


def _read_folder_and_table(root: PurePath, listing: Listing, table: Table, options: _Options) -> Collection:
    paths = require_column(table, PATH_COLUMNS, options.path_column, "path", listing.names)
    labels = require_column(table, LABEL_COLUMNS, options.label_column, "label")
    rows = _label_rows(table, listing, root, paths, labels, options)
    check_some_found(table, rows, listing.names, root, paths)
    layout = f"a folder and the labels of {table.where} (columns {paths!r} and {labels!r})"
    return _build(root, listing.names, rows.labels, layout, listing.notes + rows.notes, options)


def _label_rows(
    table: Table, listing: Listing, root: PurePath, paths: str, labels: str, options: _Options
) -> RowLabels:
    unlabeled, allow_missing = options.unlabeled, options.allow_missing
    return labels_of_rows(table, listing.names, root, paths, labels, unlabeled, allow_missing=allow_missing)


def _read_image_folder(root: PurePath, listing: Listing, options: _Options) -> Collection:
    found = {name: _folder_label(name) for name in listing.names}
    n_folders = len({label for label in found.values() if label is not None})
    notes = list(listing.notes)
    if n_folders and {label.casefold() for label in found.values() if label is not None} <= SPLIT_FOLDERS:
        notes.append(f"the folders in {root.name} look like splits, not categories; if so, give one of them instead")
    notes += [
        f"{name} is not read: name it as the labels to use it" for name in listing.tables if name.startswith("labels.")
    ]
    layout = f"{n_folders:,} folder(s), each a category, the rest unlabeled" if n_folders else "a folder without labels"
    return _build(root, listing.names, found, layout, tuple(notes), options)


def _read_hugging_face(root: PurePath, listing: Listing, metadata: list[str], options: _Options) -> Collection:
    _refuse_siblings(root, metadata)
    notes, parts = list(listing.notes), []
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
    root: PurePath, listing: Listing, rows: RowLabels, notes: list[str], options: _Options
) -> Collection:
    folders = {_folder_label(name) for name in listing.names} - {None}
    if len(folders) > 1 and not {str(folder).casefold() for folder in folders} <= SPLIT_FOLDERS:
        notes.append(f"{len(folders):,} folder names are not read as categories, because metadata has labels")
    n_without = len(listing.names) - len(rows.labels)
    if n_without:
        notes.append(f"{n_without:,} image(s) without a row of metadata are unlabeled")
    layout = "a Hugging Face image folder, labels from its metadata"
    return _build(root, listing.names, rows.labels, layout, (*notes, *rows.notes), options)


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
        raise DataError(f"{root}: found {beside} side by side; keep one of them, or name the one to read as the labels")


def _read_two_roots(labeled: Path, unlabeled: Path, options: _Options) -> Collection:
    _refuse_columns(options)
    root = Path(os.path.commonpath([labeled, unlabeled]))
    found: dict[str, str | None] = {}
    notes: list[str] = []
    left_out: dict[str, str] = {}
    for folder, has_labels in ((unlabeled, False), (labeled, True)):  # where one holds the other, labels win
        listing = list_folder(folder, follow_symlinks=options.follow_symlinks)
        if not listing.names:
            raise DataError(f"{folder}: no images (jpg, png, webp, tif, bmp, gif or heic) in this folder or below")
        prefix = folder.relative_to(root).as_posix()
        start = "" if prefix == "." else f"{prefix}/"
        for name in listing.names:
            found[f"{start}{name}"] = _folder_label(name) if has_labels else None
        left_out |= {f"{start}{name}": reason for name, reason in listing.left_out}
        notes += [f"{folder.name}: {note}" for note in listing.notes]
    layout = f"two folders: {labeled.name} with a folder per category, {unlabeled.name} without labels"
    folders = tuple(folder.relative_to(root).as_posix() for folder in (labeled, unlabeled))
    collection = _build(root, sorted(found), found, layout, tuple(notes), options, folders)
    return replace(collection, left_out=tuple(sorted(left_out.items())))


def _read_rows(table: Table, labels: Any, options: _Options) -> Collection:
    """Read a table that lists the images itself; those it does not list are not in the collection."""
    if labels not in (None, False):
        raise UsageError(f"{table.where}: already a table of labels; give the folder of images as the source instead")
    paths = require_column(table, PATH_COLUMNS, options.path_column, "path")
    cells: Sequence[Any] = [None] * len(table)
    if labels is None:
        cells = table.columns[require_column(table, LABEL_COLUMNS, options.label_column, "label")]
    how: dict[str, Any] = {"where": table.where, "allow_missing": options.allow_missing}
    given = class_names(cells, options.unlabeled, table.location)
    layout = f"the images listed in {table.where}"
    return _read_places(table.columns[paths], given, table.folder, table.location, layout, options, **how)


def _read_places(
    paths: Sequence[Any],
    given: Sequence[str | None],
    folder: Path | Address | None,
    location: Callable[[int], str],
    layout: str,
    options: _Options,
    **how: Any,
) -> Collection:
    """Read images that are listed one by one, on this machine or on a network."""
    if isinstance(folder, Address) or are_addresses(paths):
        found, stored = read_addresses(paths, given, folder, location, **how)
        collection = _build(found.root, sorted(found.labels), found.labels, layout, found.notes, options, ())
        return replace(collection, root=None, stored=stored)
    found = read_paths(paths, given, folder, location, **how)
    return _build(found.root, sorted(found.labels), found.labels, layout, found.notes, options, ())


def _read_memory(source: Any, labels: Any, options: _Options) -> Collection:
    if source is None or not hasattr(source, "__len__") or isinstance(source, Mapping | bytes):
        kind = "nothing" if source is None else type(source).__name__
        raise UsageError(
            f"images: found {kind}, expected a folder, a table, or a list of images or paths; or give --labeled and "
            "--unlabeled"
        )
    cells = [None] * len(source) if labels is None or labels is False else _as_list(labels)
    if len(cells) != len(source):
        raise DataError(f"labels: found {len(cells):,}, expected {len(source):,}, one per image")
    given = class_names(cells, options.unlabeled, lambda i: f"label {i}")
    if not isinstance(source, np.ndarray) and len(source) and isinstance(source[0], str | os.PathLike):
        how: dict[str, Any] = {"where": "list of paths", "allow_missing": options.allow_missing}
        return _read_places(source, given, None, lambda i: f"path {i}", "a list of paths", options, **how)
    images, layout = read_images(source)
    encoded, classes = encode(given, options.classes)
    names = tuple(f"image-{i:06d}" for i in range(len(given)))
    return Collection(names, encoded, classes, images=images, layout=layout, notes=similar_classes(classes))


def _build(
    root: PurePath,
    names: Sequence[str],
    labels: Mapping[str, str | None],
    layout: str,
    notes: tuple[str, ...],
    options: _Options,
    folders: tuple[str, ...] = (".",),
) -> Collection:
    encoded, classes = encode([labels.get(name) for name in names], options.classes)
    about: dict[str, Any] = {"root": root, "folders": folders, "layout": layout}
    return Collection(tuple(names), encoded, classes, **about, notes=notes + similar_classes(classes))


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


def _as_list(labels: Any) -> list[Any]:
    return list(labels.tolist() if hasattr(labels, "tolist") else labels)
