"""Layouts: recognize how a user keeps images and labels, and read them as one collection.

Every reader lists images (`Listing`), with labels where they came with some. Otherwise labels come
from a table, from metadata beside the images, or from the names of their folders.
"""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shoal.data.collection import Collection, Images
from shoal.data.readers.folders import (
    METADATA_NAMES,
    TABLE_SUFFIXES,
    Listing,
    check_folder,
    list_folder,
    list_remote_folder,
)
from shoal.data.readers.labels import (
    RowLabels,
    class_names,
    encode,
    finder,
    label_rows,
    similar_classes,
)
from shoal.data.readers.listed_files import list_files
from shoal.data.readers.shard_patterns import is_shards
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
from shoal.data.storage.addresses import Address, absolute
from shoal.errors import DataError, UsageError
from shoal.words import count

UNLABELED_FOLDERS = ("unlabeled", "unlabelled", "_unlabeled", "unknown", "unsorted")
"""First-level folders whose images have no label, whatever their case."""

SPLIT_FOLDERS = frozenset({"train", "test", "val", "valid", "validation", "dev", "eval"})
"""Folder names that are splits far more often than categories."""

Source = object
"""Images as callers give them: `read_collection` says what they may be."""

Labels = object
"""Labels as callers give them: a table, a data frame, a mapping, "folders", False or None."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How `read_collection` was asked to read; its arguments say more."""

    path_column: str | None
    label_column: str | None
    allow_missing: bool


def read_collection(
    source: Source = None,
    labels: Labels = None,
    *,
    labeled: str | os.PathLike[str] | None = None,
    unlabeled: str | os.PathLike[str] | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
) -> Collection:
    """Read images and labels in any supported layout; `Collection.describe` says what was
    recognized.

    Args:
        source: A folder, or its address (s3://, gs://, hf://); tar or parquet shards that hold
            images (`shards-{000..012}.tar`), or their address; a table (csv, tsv, jsonl, parquet)
            or data frame of paths or addresses and labels, or its address; a list of paths or
            addresses, of PIL images or of arrays; a uint8 array (N, H, W) or (N, H, W, C).
        labels: With a folder: a table, data frame or mapping of paths to labels; "folders" to read
            folder names even where a metadata file has labels; False for no labels. Otherwise one
            label per image, or None. A label that is None, NaN, NA, -1, 'unlabeled' or 'unknown'
            means unlabeled.
        labeled: With `unlabeled`, instead of `source`: a folder with a folder per class.
        unlabeled: A folder of images without labels, at any depth.
        path_column: The column of paths, if it is none of `PATH_COLUMNS`.
        label_column: The column of labels, if it is none of `LABEL_COLUMNS`.
        allow_missing: Whether to go on where more than a few per cent of a table's rows name images
            that are not there, or shards are damaged.
    """
    options = ReadOptions(
        path_column=path_column, label_column=label_column, allow_missing=allow_missing
    )
    if labeled is not None or unlabeled is not None:
        if source is not None or labels is not None or labeled is None or unlabeled is None:
            raise UsageError(
                "give `labeled` and `unlabeled` together, and neither images nor `labels` beside "
                "them"
            )
        return _read_two_folders(check_folder(labeled), check_folder(unlabeled), options)
    if is_frame(source):
        return _read_table(as_table(source), labels, options)
    if not isinstance(source, str | os.PathLike):
        return _read_memory(source, labels, options)
    try:
        return _read_location(source, labels, options)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise DataError(
            f"{str(error.filename)[:60]}…: too long for the name of a file; give one that is there"
        ) from error


def _read_location(
    source: str | os.PathLike[str], labels: Labels, options: ReadOptions
) -> Collection:
    """Read a folder, a table or shards, on this machine or at an address."""
    where = absolute(source)
    image_column = options.path_column
    if _is_table(labels):  # whose column it is
        image_column = None
    if is_shards(source, image_column):
        return _read_shards(source, labels, options)
    suffix = where.suffix.lower()
    if isinstance(where, Address) or where.is_file():
        if suffix in TABLE_SUFFIXES:
            return _read_table(read_table(where), labels, options)
        if suffix in (".npy", ".npz"):
            raise UsageError(
                f"{where}: found an array file; read embeddings with read_embeddings, images from "
                "a folder"
            )
    if isinstance(where, Address):
        listing = list_remote_folder(where)
    else:
        listing = list_folder(check_folder(where))
    if not listing.names and listing.shards:
        return _read_shards(where / f"*{max(listing.shards)}", labels, options)
    return _read_listed(listing, labels, options)


def _read_shards(
    pattern: str | os.PathLike[str], labels: Labels, options: ReadOptions
) -> Collection:
    """Read tar or parquet shards: their own labels, or others that are given."""
    if _is_table(labels):  # whose columns the options name
        listing = read_shards(pattern, allow_missing=options.allow_missing, needs_labels=False)
    else:
        listing = read_shards(
            pattern,
            image_column=options.path_column,
            label_column=options.label_column,
            allow_missing=options.allow_missing,
            needs_labels=labels is None,
        )
        options = replace(options, path_column=None, label_column=None)
    if labels is None and listing.labels is not None:
        return _build(listing, listing.labels, "shards and the labels in them")
    return _read_listed(listing, labels, options)


def _read_table(table: Table, labels: Labels, options: ReadOptions) -> Collection:
    """Read a table that lists the images itself; those it does not list are not in the
    collection."""
    if labels not in (None, False):
        raise UsageError(
            f"{table.where}: already a table of labels; give the folder of images as the source "
            "instead"
        )
    paths = require_column(table, PATH_COLUMNS, options.path_column, "path")
    cells: Sequence[object] = [None] * len(table)
    if labels is None:
        cells = table.columns[require_column(table, LABEL_COLUMNS, options.label_column, "label")]
    given = class_names(cells, table.location)
    listing = list_files(table, paths, given, allow_missing=options.allow_missing)
    return _build(listing, listing.labels, f"the images listed in {table.where}")


def _read_memory(source: Source, labels: Labels, options: ReadOptions) -> Collection:
    """Read a list of paths, or images in memory."""
    is_list = isinstance(source, Sized) and not isinstance(source, Mapping | bytes)
    if not is_list or not isinstance(source, Iterable):
        raise UsageError(
            f"images: found {type(source).__name__}, expected a folder, a table, or a list of "
            "images or paths; or give --labeled and --unlabeled"
        )
    items = list(source)
    cells: Sequence[object] = [None] * len(items)
    if labels is not None and labels is not False:
        cells = np.asarray(labels, dtype=object).tolist()
    if len(cells) != len(items):
        raise DataError(f"labels: found {len(cells):,}, expected {len(items):,}, one per image")
    if not items:
        raise DataError("images: found none; give at least one")
    given = class_names(cells, lambda i: f"label {i}")
    if isinstance(items[0], str | os.PathLike):
        table = Table("list", None, {"path": items}, range(len(items)), unit="path")
        listing = list_files(table, "path", given, allow_missing=options.allow_missing)
        return _build(listing, listing.labels, "a list of paths")
    images: Images = items
    if isinstance(source, np.ndarray) and source.dtype != object:
        _check_array(source, source.shape[1:], "images")
        images = source
    for i, image in enumerate(items):
        if isinstance(image, np.ndarray):
            _check_array(image, image.shape, f"image {i}")
        elif not isinstance(image, Image.Image):
            raise DataError(
                f"image {i}: found {type(image).__name__}, expected a PIL image or a uint8 array "
                "like the rest"
            )
    encoded, classes = encode(given)
    return Collection(
        tuple(f"image-{i:06d}" for i in range(len(given))),
        encoded,
        classes,
        images=images,
        layout="images in memory",
        notes=tuple(similar_classes(classes)),
    )


def _check_array(array: NDArray[np.generic], shape: tuple[int, ...], where: str) -> None:
    """Check pixels (H, W[, C]), or as many images of them as one array holds."""
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    if array.dtype != np.uint8 or not is_image or 0 in shape:
        raise DataError(
            f"{where}: found {array.dtype} of shape {array.shape}, expected uint8 pixels from 0 to "
            "255, of height, width and 1, 3 or 4 channels; convert or transpose them"
        )


def _read_two_folders(labeled: Path, unlabeled: Path, options: ReadOptions) -> Collection:
    """Read a folder with a folder per category, and one without labels."""
    _refuse_columns(options)
    root = Path(os.path.commonpath([labeled, unlabeled]))
    folders = tuple(folder.relative_to(root).as_posix() for folder in (labeled, unlabeled))
    both = Listing(root, folders=folders)
    labels: dict[str, str | None] = {}
    for folder in (unlabeled, labeled):  # where one holds the other, labels win
        listing = list_folder(folder)
        _refuse_none(listing)
        below = folder.relative_to(root)
        for name in listing.names:
            labels[(below / name).as_posix()] = None
            if folder == labeled:
                labels[(below / name).as_posix()] = _folder_label(name)
        for name, reason in listing.left_out.items():
            both.left_out[(below / name).as_posix()] = reason
        both.notes += [f"{folder.name}: {note}" for note in listing.notes]
    both.names = sorted(labels)
    layout = f"two folders: {labeled.name}, a folder per category, and {unlabeled.name}, unlabeled"
    return _build(both, labels, layout)


def _read_listed(listing: Listing, labels: Labels, options: ReadOptions) -> Collection:
    """Read listed images with the labels that are given, or that lie beside them."""
    _refuse_none(listing)
    if _is_table(labels):
        return _read_labels(listing, _label_table(labels), options)
    metadata = [name for name in listing.tables if PurePosixPath(name).name in METADATA_NAMES]
    if labels is None and metadata:
        return _read_metadata(listing, metadata, options)
    _refuse_columns(options)
    if labels is False:
        return _build(listing, {}, "a folder without labels")
    return _read_folder_names(listing)


def _is_table(labels: Labels) -> bool:
    """Whether labels come as a table, whose columns are named."""
    is_word = isinstance(labels, str) and labels == "folders"
    return labels is not None and labels is not False and not is_word


def _label_table(labels: Labels) -> Table:
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


def _refuse_columns(options: ReadOptions) -> None:
    """Refuse to be told of a column where no table is read."""
    column = options.path_column or options.label_column
    if column is not None:
        raise UsageError(
            f"column {column!r}: no table is read here; give the one that has it as the labels, "
            "or leave it out"
        )


def _refuse_none(listing: Listing) -> None:
    if not listing.names:
        ignored = "; ".join(listing.notes) or "no files, or only tables"
        raise DataError(
            f"{listing.root}: no images (jpg, png, webp, tif, bmp, gif or heic) in this folder or "
            f"below: {ignored}"
        )


def _label_rows(
    table: Table, listing: Listing, paths: str, labels: str, options: ReadOptions
) -> RowLabels:
    return label_rows(
        table,
        paths,
        class_names(table.columns[labels], table.location),
        finder(listing.names, listing.root, table.folder),
        allow_missing=options.allow_missing,
    )


def _read_labels(listing: Listing, table: Table, options: ReadOptions) -> Collection:
    """Label listed images by a table."""
    paths = require_column(table, PATH_COLUMNS, options.path_column, "path", listing.names)
    labels = require_column(table, LABEL_COLUMNS, options.label_column, "label")
    rows = _label_rows(table, listing, paths, labels, options)
    if not rows.labels:  # its paths start somewhere else
        raise DataError(
            f"{table.where}: none of its {len(table):,} paths is an image under {listing.root}; "
            f"the first is {table.columns[paths][0]!r}, an image there is {listing.names[0]!r}; "
            "give paths relative to that folder"
        )
    listing.notes += rows.notes
    layout = f"a folder and the labels of {table.where} (columns {paths!r} and {labels!r})"
    return _build(listing, rows.labels, layout)


def _read_folder_names(listing: Listing) -> Collection:
    """Label listed images by the names of their first-level folders."""
    labels = {name: _folder_label(name) for name in listing.names}
    folders = {label for label in labels.values() if label is not None}
    if folders and {folder.casefold() for folder in folders} <= SPLIT_FOLDERS:
        listing.notes.append(
            f"the folders in {listing.root.name} look like splits, not categories; if so, give one "
            "of them instead"
        )
    for name in listing.tables:
        if name.startswith("labels."):
            listing.notes.append(f"{name} is not read: name it as the labels to use it")
    layout = "a folder without labels"
    if folders:
        layout = f"{count(len(folders), 'folder')}, each a category, the rest unlabeled"
    return _build(listing, labels, layout)


def _read_metadata(listing: Listing, metadata: list[str], options: ReadOptions) -> Collection:
    """Label listed images by metadata files, as Hugging Face's image folders have them."""
    folders = [PurePosixPath(name).parent for name in metadata]
    if len(set(folders)) < len(folders):
        raise DataError(
            f"{listing.root}: found {', '.join(metadata)}, some side by side; keep one in each "
            "folder, or name the one to read as the labels"
        )
    merged = RowLabels()
    for name in metadata:
        table = read_table(f"{listing.root}/{name}")
        paths = find_column(table, PATH_COLUMNS, options.path_column, "path", listing.names)
        labels = find_column(table, LABEL_COLUMNS, options.label_column, "label")
        rows = RowLabels()
        if paths is not None and labels is not None:
            rows = _label_rows(table, listing, paths, labels, options)
        if not rows.labels:
            listing.notes.append(
                f"{name} is ignored: no path column ({', '.join(PATH_COLUMNS)}), no label column "
                f"({', '.join(LABEL_COLUMNS)}), or none of its paths is an image beside or below it"
            )
        listing.notes += rows.notes
        for image, label in rows.labels.items():
            merged.add(image, label, rows.locations[image], image)
    if not merged.labels:
        return _read_folder_names(listing)
    n_without = len(listing.names) - len(merged.labels)
    listing.notes.append(
        f"labels are those of metadata, not folder names; {n_without:,} images have no row there"
    )
    layout = "a Hugging Face image folder, labels from its metadata"
    return _build(listing, merged.labels, layout)


def _build(listing: Listing, labels: Mapping[str, str | None] | None, layout: str) -> Collection:
    """A collection of the listed images, whose labels become numbers."""
    given = labels or {}
    encoded, classes = encode([given.get(name) for name in listing.names])
    return Collection(
        tuple(listing.names),
        encoded,
        classes,
        root=listing.root if isinstance(listing.root, Path) and not listing.stored else None,
        stored=listing.stored,
        layout=layout,
        notes=(*listing.notes, *similar_classes(classes)),
        folders=listing.folders,
        left_out=tuple(sorted(listing.left_out.items())),
    )


def _folder_label(name: str) -> str | None:
    folder, slash, _ = name.partition("/")
    if not slash or folder.casefold() in UNLABELED_FOLDERS:
        return None
    return folder
