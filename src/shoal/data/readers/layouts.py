"""Layouts: recognize how a user keeps images and labels, and read them as one collection."""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED_NAMES, fold_unlabeled
from shoal.data.collection import Collection
from shoal.data.readers.folders import TABLE_SUFFIXES, check_folder, list_folder
from shoal.data.readers.image_folders import (
    Labels,
    ReadOptions,
    build,
    is_label_table,
    read_listed,
    read_two_folders,
)
from shoal.data.readers.labels import class_names, encode, similar_classes
from shoal.data.readers.listed_files import read_listed_files
from shoal.data.readers.memory import read_images
from shoal.data.readers.remote_folders import list_remote_folder
from shoal.data.readers.shard_patterns import is_shards, shards_below
from shoal.data.readers.shards import read_shards
from shoal.data.readers.tables import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    Table,
    as_table,
    is_frame,
    read_table,
    require_column,
)
from shoal.data.storage.addresses import Address, as_address
from shoal.errors import DataError, UsageError
from shoal.words import count


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
    """Read images and labels in any supported layout; `Collection.describe` says what was
    recognized.

    Args:
        source: A folder, or its address (s3://, gs://, hf://); tar or parquet shards that hold
            images
            (`shards-{000..012}.tar`), or their address; a table (csv, tsv, jsonl, parquet) or data
                frame of paths or
            addresses and labels, or its address; a list of paths or addresses, of PIL images or of
                arrays; a uint8
            array (N, H, W) or (N, H, W, C).
        labels: With a folder: a table, data frame or mapping of paths to labels; "folders" to read
            folder names even
            where a metadata file has labels; False for no labels. Otherwise one label per image, or
                None.
            A label that is None, NaN, NA, -1 or one of `unlabeled_names` means unlabeled.
        labeled: With `unlabeled`, instead of `source`: a folder with a folder per class.
        unlabeled: A folder of images without labels, at any depth.
        path_column: The column of paths, if it is none of `PATH_COLUMNS`.
        label_column: The column of labels, if it is none of `LABEL_COLUMNS`.
        classes: The known classes in the order that their ids shall have; sorted by name if not
            given.
        unlabeled_names: Cells that mean 'no label', whatever their case.
        follow_symlinks: Whether links to folders are followed (links to files always are).
        allow_missing: Whether to go on where more than a few per cent of a table's rows name images
            that are not there,
            or shards are damaged.
    """
    options = ReadOptions(
        path_column=path_column,
        label_column=label_column,
        classes=classes,
        unlabeled=fold_unlabeled(unlabeled_names),
        follow_symlinks=follow_symlinks,
        allow_missing=allow_missing,
    )
    if labeled is not None or unlabeled is not None:
        if source is not None or labels is not None or labeled is None or unlabeled is None:
            raise UsageError(
                "give `labeled` and `unlabeled` together, and neither images nor `labels` beside "
                "them"
            )
        return read_two_folders(check_folder(labeled), check_folder(unlabeled), options)
    if isinstance(source, str | os.PathLike):
        with _long_names_refused():
            return _read_location(source, labels, options)
    if is_frame(source):
        return _read_table(as_table(source), labels, options)
    return _read_memory(source, labels, options)


@contextmanager
def _long_names_refused() -> Iterator[None]:
    """Say of a text that no file can be named that it is none."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise DataError(
            f"{str(error.filename)[:60]}…: too long for the name of a file; give one that is there"
        ) from error


def _read_location(
    source: str | os.PathLike[str], labels: Labels, options: ReadOptions
) -> Collection:
    path = Path(source)
    address = as_address(source)
    if is_shards(source, None if is_label_table(labels) else options.path_column):
        return _read_shards(source, labels, options)
    if address is not None:
        return _read_remote(address, labels, options)
    if path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        return _read_table(read_table(path), labels, options)
    if path.is_file() and path.suffix.lower() in (".npy", ".npz"):
        raise UsageError(
            f"{path}: found an array file; read embeddings with read_embeddings, images from a "
            "folder"
        )
    root = check_folder(path)
    listing = list_folder(root, follow_symlinks=options.follow_symlinks)
    shards = None if listing.names else shards_below(root)
    if shards is not None:
        return _read_shards(shards, labels, options)
    return read_listed(root, listing, labels, options)


def _read_remote(address: Address, labels: Labels, options: ReadOptions) -> Collection:
    """Read what lies at an address: a table of images, or a folder of images or shards."""
    if address.suffix in TABLE_SUFFIXES:
        return _read_table(read_table(address), labels, options)
    remote = list_remote_folder(address)
    if not remote.listing.names and remote.shards:
        return _read_shards(address / f"*{remote.shards[-1]}", labels, options)
    return read_listed(address, remote.listing, labels, options)


def _read_shards(
    pattern: str | os.PathLike[str], labels: Labels, options: ReadOptions
) -> Collection:
    """Read tar or parquet shards: their own labels, or others that are given."""
    if is_label_table(labels):  # whose columns the options name
        shards = read_shards(pattern, allow_missing=options.allow_missing, needs_labels=False)
    else:
        shards = read_shards(
            pattern,
            image_column=options.path_column,
            label_column=options.label_column,
            allow_missing=options.allow_missing,
            needs_labels=labels is None,
        )
    root = PurePath(shards.where)
    if labels is None and shards.labels is not None:
        names = [*shards.labels]
        cells = class_names(
            [*shards.labels.values()], options.unlabeled, lambda i: f"{root}, label of {names[i]}"
        )
        layout = f"{count(shards.n_shards, 'shard')} and the labels in them"
        given = dict(zip(names, cells, strict=True))
        return build(root, shards.listing, given, layout, options)
    # A shard's name that was put before the names of its images is no category.
    if labels is None and shards.is_prefixed:
        labels = False
    return read_listed(root, shards.listing, labels, options)


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
    given = class_names(cells, options.unlabeled, table.location)
    return _read_listed_files(table, paths, given, f"the images listed in {table.where}", options)


def _read_listed_files(
    table: Table, paths: str, given: Sequence[str | None], layout: str, options: ReadOptions
) -> Collection:
    listed = read_listed_files(table, paths, given, allow_missing=options.allow_missing)
    return build(listed.root, listed.listing, listed.labels, layout, options, folders=())


def _read_memory(source: Any, labels: Any, options: ReadOptions) -> Collection:
    if source is None or not hasattr(source, "__len__") or isinstance(source, Mapping | bytes):
        kind = "nothing" if source is None else type(source).__name__
        raise UsageError(
            f"images: found {kind}, expected a folder, a table, or a list of images or paths; or "
            "give --labeled and "
            "--unlabeled"
        )
    if labels is None or labels is False:
        cells = [None] * len(source)
    else:
        cells = list(labels.tolist() if hasattr(labels, "tolist") else labels)
    if len(cells) != len(source):
        raise DataError(f"labels: found {len(cells):,}, expected {len(source):,}, one per image")
    given = class_names(cells, options.unlabeled, lambda i: f"label {i}")
    is_array = isinstance(source, np.ndarray)
    if not is_array and len(source) and isinstance(source[0], str | os.PathLike):
        table = Table("list", None, {"path": list(source)}, range(len(source)), unit="path")
        return _read_listed_files(table, "path", given, "a list of paths", options)
    images, layout = read_images(source)
    encoded, classes = encode(given, options.classes)
    names = tuple(f"image-{i:06d}" for i in range(len(given)))
    return Collection(
        names, encoded, classes, images=images, layout=layout, notes=similar_classes(classes)
    )
