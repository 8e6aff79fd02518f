"""Turn cells of a table into class names, and paths in a table into images."""

import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePath

import numpy as np

from shoal.arrays import UNLABELED, Ints, as_class, sort_classes
from shoal.data.readers.tables import LINE_END, Table
from shoal.data.storage.addresses import ADDRESS, is_utf8
from shoal.errors import DataError
from shoal.words import count, first_few

MAX_ABSENT_SHARE = 0.05
"""Share of a table's rows that may name missing images; more are likely wrong paths. One row always
may."""


ClassOf = dict[str, str | None]
"""The class of each image by its name, None for unlabeled."""

Finder = Callable[[object, str], str | None]
"""Returns the image that a cell of a table at a location names, or None."""


Row = tuple[str, str | None, str | None]
"""The location and path of a row, the image that it names (None if there is none), its class."""


def label_images(rows: Sequence[Row], *, allow_missing: bool) -> tuple[ClassOf, list[str]]:
    """Return the class of each image that rows name, and notes on absent and repeated images.

    An image with two different labels is an error, and so are many rows that name no image, unless
    `allow_missing`.
    """
    labels: ClassOf = {}
    labeled_by: dict[str, str] = {}
    absent = []
    repeated = []
    for row, name, label in rows:
        if name is None:
            absent.append(row)
            continue
        if name in labels:
            repeated.append(row)
        first = labels.get(name)
        if first is None:
            labels[name] = label
            labeled_by[name] = row
        elif label not in (None, first):
            raise DataError(
                f"{row} is labeled {label!r}, but {first!r} in {labeled_by[name]}; remove one of "
                "the two rows"
            )
    is_many = len(absent) > max(1, MAX_ABSENT_SHARE * len(rows))
    if labels and is_many and not allow_missing:
        raise DataError(
            f"labels: {len(absent):,} of {len(rows):,} rows name missing images "
            f"({first_few(absent, separator='; ')}); correct their paths, or ignore these rows "
            "with --allow-missing"
        )
    notes = []
    for some, problem in ((absent, "without an image"), (repeated, "repeated")):
        if some:
            listed = first_few(some, separator="; ")
            notes.append(f"{count(len(some), 'row')} {problem} ({listed})")
    return labels, notes


def table_rows(table: Table, paths: str, labels: str, find: Finder) -> list[Row]:
    """Return the rows of a table by its columns of paths and labels."""
    names = class_names(table.columns[labels], table.location)
    rows: list[Row] = []
    for i, (cell, name) in enumerate(zip(table.columns[paths], names, strict=True)):
        location = table.location(i)
        rows.append((f"{location}: {cell}", find(cell, location), name))
    return rows


def class_names(cells: Iterable[object], location: Callable[[int], str]) -> list[str | None]:
    """Return the class that each cell names as text, or None for unlabeled (see `as_class`).

    `location` returns the place of a row, for messages.
    """
    names: list[str | None] = []
    for row, cell in enumerate(cells):
        is_text = isinstance(cell, str) and cell.strip() != ""
        is_broken = is_text and (LINE_END.search(str(cell)) or not is_utf8(str(cell)))
        if is_broken or isinstance(cell, list | tuple | dict | bytes):
            raise DataError(
                f"{location(row)}: found the label {cell!r:.40}, expected a number or one line of "
                "UTF-8 text"
            )
        try:
            name = as_class(cell)
        except DataError as error:
            raise DataError(f"{location(row)}: {error}") from error
        names.append(None if name is None else str(name))
    return names


def encode(names: Sequence[str | None]) -> tuple[Ints, tuple[str, ...]]:
    """Return (N,) positions of class names among the sorted classes, -1 for None, and the
    classes."""
    classes = tuple(sort_classes({name for name in names if name is not None}))
    position = {None: UNLABELED} | {name: i for i, name in enumerate(classes)}
    return np.array([position[name] for name in names], dtype=np.int64), classes


def name_finder(names: Sequence[str]) -> Callable[[Sequence[str]], str | None]:
    """Return a function that finds the first of some spellings among the names, or None.

    An exact match comes first, then one in another Unicode form: macOS writes 'é' as two code
    points, tables as one.
    """
    known = {unicodedata.normalize("NFC", name): name for name in names}
    known |= {name: name for name in names}

    def find(spellings: Sequence[str]) -> str | None:
        composed = (unicodedata.normalize("NFC", name) for name in spellings)
        return next((known[name] for name in chain(spellings, composed) if name in known), None)

    return find


def image_finder(names: Sequence[str], root: PurePath, folder: PurePath | None) -> Finder:
    """Return a function that finds the image below `root` that a cell of a table names.

    A path is relative to the table's `folder`, then to `root`, then to the working directory; one
    that leads out of `root` is refused.
    """
    find_name = name_finder(names)
    # `normpath` writes an address with one slash; roots are compared in that form.
    prefixes = {
        f"{posixpath.normpath(path.as_posix()).rstrip('/')}/"
        for path in (root, Path(root).resolve())
    }
    bases = [path.as_posix() for path in (folder, root, Path.cwd()) if path is not None]

    @lru_cache(maxsize=1)  # the boxes of an image follow each other
    def spellings(path: str) -> list[str]:
        inside = []
        for spelling in dict.fromkeys((path, path.replace("\\", "/"))):
            # Strings: a Path per row would take longer than everything else.
            for base in [""] if ADDRESS.match(path) else bases:
                file = posixpath.normpath(posixpath.join(base, spelling))
                inside += [
                    file.removeprefix(prefix) for prefix in prefixes if file.startswith(prefix)
                ]
        return inside

    def find(cell: object, location: str) -> str | None:
        path = as_path(cell, location)
        inside = spellings(path)
        if not inside:
            raise DataError(f"{location}: {path!r} leads out of {root}; give paths inside it")
        return find_name(inside)

    return find


def as_path(cell: object, location: str) -> str:
    if isinstance(cell, os.PathLike):
        cell = os.fspath(cell)
    if isinstance(cell, Mapping):  # Hugging Face's image struct: {"bytes": …, "path": …}
        cell = cell.get("path")
    if not isinstance(cell, str) or not cell.strip():
        raise DataError(f"{location}: found {str(cell)[:40]!r}, expected the path of an image")
    return cell
