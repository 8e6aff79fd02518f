"""Recognize how images and labels are stored, and read them as one collection.

Every source becomes a `Listing` of images, with labels if the source has them. Otherwise labels
come from a table, from metadata next to the images, or from the names of their folders.
"""

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import cast

import numpy as np

from shoal.boxes import split_name
from shoal.data.collection import Collection, StoredFiles
from shoal.data.pixels.decoding import HEIC_SUFFIXES
from shoal.data.readers.boxes import NO_BOXES, BoxOptions, add_boxes, refuse_boxes
from shoal.data.readers.folders import (
    METADATA_NAMES,
    TABLE_SUFFIXES,
    Listing,
    check_folder,
    list_folder,
    list_remote_folder,
)
from shoal.data.readers.shards import is_shards, read_shards
from shoal.data.readers.tables import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    ClassOf,
    Row,
    Table,
    as_path,
    class_names,
    encode,
    image_finder,
    is_frame,
    label_images,
    pick_column,
    read_table,
    require_column,
    table_rows,
)
from shoal.data.storage import (
    N_REQUESTS,
    Address,
    Location,
    absolute,
    as_address,
    remote_state,
    why_unfit,
)
from shoal.errors import DataError, UsageError, count, first_few, folded, listed, plural

# First-level folders whose images are unlabeled, in upper or lower case
UNLABELED_FOLDERS = ("unlabeled", "unlabelled", "_unlabeled", "unknown", "unsorted")

# Values of `labels` that stand for the names of the folders at a level, by default the first
FOLDERS = re.compile("folders(?::([1-9]))?")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of `read_collection`, which documents them."""

    path_column: str | None
    label_column: str | None
    allow_missing: bool
    boxes: BoxOptions


def read_collection(
    source: object = None,
    labels: object = None,
    *,
    labeled: Location | None = None,
    unlabeled: Location | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
    boxes: BoxOptions = NO_BOXES,
) -> Collection:
    """Read images and labels in any supported layout; `Collection.describe` reports what was found.

    Args:
        source: A folder, or its address (s3://, gs://, hf://); tar or parquet shards that hold
            images (`shards-{000..012}.tar`), or their address; a table (csv, tsv, jsonl, parquet)
            or data frame of paths or addresses and labels, or its address; a list of paths or
            addresses, of PIL images or of arrays; a uint8 array (N, H, W) or (N, H, W, C).
        labels: With a folder: a table, data frame or mapping of paths to labels; "folders" to use
            folder names even if a metadata file has labels, "folders:2" for those of the second
            level; False for no labels. Otherwise one
            label per image, or None. A label that is None, NaN, NA, -1, 'unlabeled' or 'unknown'
            means unlabeled.
        labeled: With `unlabeled`, instead of `source`: a folder with a folder per class.
        unlabeled: A folder of images without labels, at any depth.
        path_column: The column of paths, if it is none of `PATH_COLUMNS`.
        label_column: The column of labels, if it is none of `LABEL_COLUMNS`.
        allow_missing: Whether to continue if more than a few percent of a table's rows name
            missing images, or if shards are damaged.
        boxes: Boxes in the images; each box becomes an item of the collection. Unless `labels` are
            given, boxes have the labels in their file or, if it has none, those of their images.
    """
    options = ReadOptions(
        path_column=path_column,
        label_column=label_column,
        allow_missing=allow_missing,
        boxes=boxes,
    )
    if labeled is not None or unlabeled is not None:
        if source is not None or labels is not None or labeled is None or unlabeled is None:
            raise UsageError("give `labeled` and `unlabeled` together, without images or `labels`")
        _refuse_columns(options)
        return _read_two_folders(check_folder(labeled), check_folder(unlabeled), options)
    if is_frame(source):
        return _read_table(read_table(source), labels, options)
    if not isinstance(source, str | os.PathLike):
        return _read_list(source, labels, options)
    return _read_location(source, labels, options)


def _read_location(source: Location, labels: object, options: ReadOptions) -> Collection:
    """Read a folder, a table or shards, local or at an address."""
    no_columns = replace(options, path_column=None, label_column=None)
    # The columns are those of the table of labels, if there is one, or else of shards.
    has_table = _is_table(labels)
    shard_options = no_columns if has_table else options
    pattern = source
    notes = []
    if not is_shards(source, shard_options.path_column):
        where = absolute(source)
        if where.suffix.lower() in TABLE_SUFFIXES and not Path(where).is_dir():
            return _read_table(read_table(where), labels, options)
        if isinstance(where, Address):
            listing = list_remote_folder(where)
        else:
            listing = list_folder(check_folder(where))
        if listing.names or not listing.shards:
            return _read_listed(listing, labels, options)
        pattern = where / f"*{max(listing.shards)}"
        notes = listing.notes
    shards = read_shards(
        pattern,
        image_column=shard_options.path_column,
        label_column=shard_options.label_column,
        allow_missing=options.allow_missing,
    )
    shards.notes += notes
    return _read_listed(shards, labels, options if has_table else no_columns)


def _read_table(table: Table, labels: object, options: ReadOptions) -> Collection:
    if labels is not None and labels is not False:
        raise UsageError(
            f"{table.where}: the table of images already has labels; to use another table of "
            "labels, give a folder of images"
        )
    paths = require_column(table, PATH_COLUMNS, options.path_column, "path")
    layout = f"the images listed in {table.where} (column {paths!r}"
    cells: Sequence[object] = [None] * len(table)
    if labels is None:
        column = require_column(table, LABEL_COLUMNS, options.label_column, "label")
        cells = table.columns[column]
        layout += f", labels in {column!r}"
    return _read_files(table, table.columns[paths], cells, f"{layout})", options)


def _read_list(source: object, labels: object, options: ReadOptions) -> Collection:
    """Read a list of paths, or images in memory."""
    if not is_list(source):
        raise UsageError(
            f"images: found {type(source).__name__}, expected a folder, a table, or a list of "
            "images or paths; or use --labeled and --unlabeled"
        )
    items = list(cast("Iterable[object]", source))
    cells: Sequence[object] = [None] * len(items)
    if labels is not None and labels is not False:
        cells = np.asarray(labels, dtype=object).tolist()
    if len(cells) != len(items) or not items:
        raise DataError(
            f"images and labels: found {len(items):,} and {len(cells):,}, expected at least one "
            "image, and a label for each"
        )
    table = Table("the list", None, {}, range(len(items)), unit="path")
    if isinstance(items[0], str | os.PathLike):
        return _read_files(table, items, cells, "a list of images", options)
    refuse_boxes(options.boxes, has_files=False)
    encoded, classes = encode(class_names(cells, table.location))
    return Collection(
        tuple(f"image-{i:06d}" for i in range(len(items))),
        encoded,
        classes,
        images=source if isinstance(source, np.ndarray) else items,
        layout="images in memory",
    )


def is_list(source: object) -> bool:
    has_entries = hasattr(source, "__len__") and getattr(source, "shape", None) != ()
    return has_entries and not isinstance(source, Mapping | bytes)


def _read_files(
    table: Table,
    paths: Sequence[object],
    cells: Sequence[object],
    layout: str,
    options: ReadOptions,
) -> Collection:
    """Read listed files; relative paths start at the table's folder, else at the working directory.

    Notes count missing files. Raise for a file with two labels and, unless missing ones are
    allowed, for many missing files.
    """
    locations = [table.location(i) for i in range(len(table))]
    files = [_locate(cell, table, locations[i]) for i, cell in enumerate(paths)]
    is_remote = as_address(files[0]) is not None
    states: dict[str, str | None] = {}
    if is_remote:
        with ThreadPoolExecutor(N_REQUESTS) as threads:
            found = threads.map(lambda file: remote_state(Address(file)), files)
            states = dict(zip(files, found, strict=True))
        existing = {file for file in files if states[file] is not None}
    else:
        # os.path on strings, because creating a Path per row takes longer than the check itself.
        existing = {file for file in files if os.path.isfile(file)}  # noqa: PTH113
    rows: list[Row] = []
    for location, file, name in zip(
        locations, files, class_names(cells, table.location), strict=True
    ):
        rows.append((f"{location}: {file}", file if file in existing else None, name))
    labels, notes = label_images(rows, allow_missing=options.allow_missing)
    if not labels:
        raise DataError(
            f"none of the {len(files):,} listed images exists; the first one is {rows[0][0]}"
        )
    start = os.path.commonpath([os.path.dirname(file) for file in labels])  # noqa: PTH120
    where = os.path.join(start, "")  # noqa: PTH118
    if is_remote:
        if not start:
            raise DataError(f"{table.where}: found addresses of several stores; give one at a time")
        where = f"{start.replace(':', ':/', 1)}/"  # `commonpath` has removed one of two slashes
    file_of = {file.removeprefix(where).replace(os.sep, "/"): file for file in sorted(labels)}
    by_name = {name: labels[file] for name, file in file_of.items()}
    listing = Listing(Path(start), sorted(by_name), notes=notes, folders=())
    listing.labels = by_name
    if is_remote:
        listing.root = Address(where)
        listing.stored = StoredFiles.of_states(
            where, {name: str(states[file]) for name, file in file_of.items()}
        )
    add_boxes(listing, options.boxes, allow_missing=options.allow_missing)
    return _build(listing, listing.labels, layout)


def _locate(cell: object, table: Table, location: str) -> str:
    """Return the absolute path or the address of a listed file; `location` names its row."""
    path = as_path(cell, location)
    address = as_address(path)
    if address is None and isinstance(table.folder, Address):
        address = table.folder / posixpath.normpath(path)
    if address is not None:
        reason = why_unfit(str(address).partition("://")[2])
        if reason is not None:
            raise DataError(f"{location}: {path!r}: {reason}; give the address of an image")
        return str(address)
    if table.folder and os.path.normpath(path).startswith(f"..{os.sep}"):
        raise DataError(f"{location}: {path!r} is outside {table.folder}; use paths inside it")
    here = os.path.abspath(path)  # noqa: PTH100
    file = os.path.normpath(os.path.join(table.folder or "", path))  # noqa: PTH118
    if not table.folder or (not os.path.isfile(file) and os.path.isfile(here)):  # noqa: PTH113
        return here
    return file


def _read_two_folders(labeled: Path, unlabeled: Path, options: ReadOptions) -> Collection:
    """Read a folder with one subfolder per category, and a folder of unlabeled images."""
    root = Path(os.path.commonpath([labeled, unlabeled]))
    both = Listing(root, folders=())
    labels: ClassOf = {}
    # Labeled images last: if one folder contains the other, an image keeps its label.
    for folder in (unlabeled, labeled):
        listing = list_folder(folder)
        _refuse_empty(listing)
        relative = folder.relative_to(root)
        both.folders = (relative.as_posix(), *both.folders)
        for name in listing.names:
            label = _folder_label(name) if folder == labeled else None
            labels[(relative / name).as_posix()] = label
        for name, reason in listing.left_out.items():
            both.left_out[(relative / name).as_posix()] = reason
        both.notes += [f"{folder.name}: {note}" for note in listing.notes]
    both.names = sorted(labels)
    both.labels = labels
    add_boxes(both, options.boxes, allow_missing=options.allow_missing)
    layout = f"two folders: {labeled.name} (a folder per category) and {unlabeled.name} (unlabeled)"
    return _build(both, both.labels, layout)


def _read_listed(listing: Listing, labels: object, options: ReadOptions) -> Collection:
    """Read listed images with the given labels, or with those stored next to them."""
    _refuse_empty(listing)
    add_boxes(listing, options.boxes, allow_missing=options.allow_missing)
    if _is_table(labels):
        table = read_table(labels)
        return _read_labels(listing, [table], f"a folder with the labels of {table.where}", options)
    if labels is None and listing.labels is not None:
        return _build(listing, listing.labels, "images with the labels of their shards or boxes")
    metadata = _metadata_tables(listing, options) if labels is None else []
    if metadata:
        layout = "a Hugging Face image folder with labels from its metadata, not from its folders"
        return _read_labels(listing, metadata, layout, options)
    _refuse_columns(options)
    if labels is False:
        return _build(listing, {}, "a folder without labels")
    level = FOLDERS.fullmatch(str(labels))
    return _read_folder_names(listing, int((level and level[1]) or 1))


def _is_table(labels: object) -> bool:
    """Return whether labels are given as a table, data frame or mapping."""
    if isinstance(labels, str | Path):
        return FOLDERS.fullmatch(str(labels)) is None
    return labels is not None and labels is not False


def _refuse_columns(options: ReadOptions) -> None:
    column = options.path_column or options.label_column
    if column is not None:
        raise UsageError(f"column {column!r}: no table of labels is read; give one as the labels")


def _refuse_empty(listing: Listing) -> None:
    if not listing.names:
        ignored = "; ".join(listing.notes) or "no files, or only tables and hidden files"
        if any(name.endswith(".arrow") for names in listing.ignored.values() for name in names):
            raise DataError(
                f"{listing.root}: written by save_to_disk of Hugging Face's datasets; convert it "
                "in Python: load_from_disk(...).to_parquet('images.parquet'), one split at a time"
            )
        raise DataError(
            f"{listing.root}: found no images (jpg, png, webp, tif, bmp, gif or heic) in this "
            f"folder or its subfolders: {ignored}"
        )


def _read_labels(
    listing: Listing, tables: Sequence[Table], layout: str, options: ReadOptions
) -> Collection:
    rows: list[Row] = []
    columns: list[str] = []
    for table in tables:
        paths = require_column(table, PATH_COLUMNS, options.path_column, "path")
        column = require_column(table, LABEL_COLUMNS, options.label_column, "label")
        columns += [paths, column]
        find = image_finder([*listing.names, *listing.images], listing.root, table.folder)
        rows += table_rows(table, paths, column, find)
    labels, notes = label_images(rows, allow_missing=options.allow_missing)
    if not labels:
        remedy = "use paths relative to that folder, with the suffix of each file"
        if split_name(rows[0][0])[1] and split_name(listing.names[0])[1]:
            remedy = "name boxes by their places after --margin, or whole images"
        raise DataError(
            f"none of the {len(rows):,} rows names an image in {listing.root}; the first one is "
            f"{rows[0][0]}, but images are named like {listing.names[0]!r}; {remedy}"
        )
    listing.notes += notes
    named = listed([repr(column) for column in dict.fromkeys(columns)])
    return _build(listing, labels, f"{layout} (columns {named})")


def _metadata_tables(listing: Listing, options: ReadOptions) -> list[Table]:
    """Return the tables of labels next to images, as in Hugging Face's image folders."""
    tables = []
    for name in listing.tables:
        if PurePosixPath(name).name not in METADATA_NAMES:
            continue
        table = read_table(f"{listing.root}/{name}")
        paths = pick_column(table.columns, PATH_COLUMNS, options.path_column, table.where)
        column = pick_column(table.columns, LABEL_COLUMNS, options.label_column, table.where)
        if paths is None or column is None:
            listing.notes.append(f"{name} is ignored: it has no column of paths, or none of labels")
        else:
            tables.append(table)
    return tables


def _read_folder_names(listing: Listing, level: int) -> Collection:
    """Label listed images by the names of their folders at a level; images above that level are
    unlabeled.

    Where two folders of that level have the same name, categories are named by their paths.
    """
    labels = {name: _folder_label(name, level) for name in listing.names}
    folders = {label for label in labels.values() if label is not None}
    below = {_folder_label(name, level + 1) for name in listing.names} - {None}
    if below:
        listing.notes.append(
            f"the categories are the folders of level {level} ({first_few(sorted(folders))}), not "
            f"the {count(len(below), 'folder')} inside them; to use those, give --labels "
            f"folders:{level + 1}"
        )
    last_names = {folder: PurePosixPath(folder).name for folder in folders}
    if len(set(last_names.values())) == len(folders):
        labels = {name: last_names.get(label or "") for name, label in labels.items()}
    for name in listing.tables:
        if name.startswith("labels."):
            listing.notes.append(f"{name} is ignored; to use it, give it as the labels")
    layout = "a folder without labels"
    if folders:
        layout = f"{count(len(folders), 'folder')}, each a category, the rest unlabeled"
    return _build(listing, labels, layout)


def _build(listing: Listing, labels: ClassOf | None, layout: str) -> Collection:
    """Return the listed images as a collection, with `labels` by name; a box without a label gets
    that of its image."""
    labels = labels or {}
    encoded, classes = encode(
        [labels.get(name, labels.get(split_name(name)[0])) for name in listing.names]
    )
    files = {split_name(name)[0].lower() for name in listing.names}
    n_heic = sum(file.endswith(HEIC_SUFFIXES) for file in files)
    if n_heic and find_spec("pillow_heif") is None:
        listing.notes.append(
            f"{count(n_heic, 'HEIC file')} {plural(n_heic, 'needs')} a package to be read: "
            "pip install pillow-heif"
        )
    spellings: dict[str, list[str]] = {}
    for name in classes:
        spellings.setdefault(folded(name), []).append(repr(name))
    similar = [listed(names) for names in spellings.values() if len(names) > 1]
    if similar:
        listing.notes.append(
            "labels that differ only in case, spaces, hyphens or underscores are different "
            f"categories: {first_few(similar)}"
        )
    return Collection(
        tuple(listing.names),
        encoded,
        classes,
        root=None if listing.stored else Path(listing.root),
        stored=listing.stored,
        layout=layout,
        notes=tuple(listing.notes),
        folders=listing.folders,
        left_out=dict(sorted(listing.left_out.items())),
    )


def _folder_label(name: str, level: int = 1) -> str | None:
    """Return the folder of an image at a level, as a path; None if it is unlabeled."""
    folders = name.split("/")[:-1]
    if len(folders) < level or folders[0].casefold() in UNLABELED_FOLDERS:
        return None
    return "/".join(folders[:level])
