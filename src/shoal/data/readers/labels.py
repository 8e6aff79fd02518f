"""Turn cells of a table into class names, and paths in a table into images."""

import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePath

import numpy as np

from shoal.arrays import UNLABELED, Ints, as_class, sort_classes
from shoal.data.readers.tables import LINE_END
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


@dataclass
class RowLabels:
    """Labels of images, collected from the rows of one or more tables."""

    labels: ClassOf = field(default_factory=ClassOf)
    locations: dict[str, str] = field(default_factory=dict)
    """The row that labeled each image, for messages."""
    absent: list[str] = field(default_factory=list)
    """Rows that name no image: location and path."""
    repeated: list[str] = field(default_factory=list)
    """Rows that name an image again: location and path."""

    @property
    def notes(self) -> list[str]:
        """Counts of rows without an image, and of repeated rows."""
        notes = []
        for rows, problem in ((self.absent, "without an image"), (self.repeated, "repeated")):
            if rows:
                some = first_few(rows, separator="; ")
                notes.append(f"{count(len(rows), 'row')} {problem} ({some})")
        return notes


def label_rows(
    cells: Sequence[object],
    labels: Sequence[str | None],
    find: Finder,
    location_of: Callable[[int], str],
    *,
    allow_missing: bool,
    rows: RowLabels | None = None,
) -> RowLabels:
    """Return the labels of images by the rows of a table, added to those in `rows`.

    An image with two different labels is an error, and so are many rows that name no image, unless
    `allow_missing`.
    """
    rows = rows or RowLabels()
    n_absent_before = len(rows.absent)
    n_found = 0
    for i, (cell, label) in enumerate(zip(cells, labels, strict=True)):
        location = location_of(i)
        name = find(cell, location)
        if name is None:
            rows.absent.append(f"{location}: {cell}")
            continue
        n_found += 1
        if name in rows.labels:
            rows.repeated.append(f"{location}: {cell}")
        first = rows.labels.get(name)
        if first is None:
            rows.labels[name] = label
            rows.locations[name] = location
        elif label not in (None, first):
            raise DataError(
                f"{location}: {name!r} is labeled {label!r}, but {first!r} in "
                f"{rows.locations[name]}; remove one of the two rows"
            )
    absent = rows.absent[n_absent_before:]
    is_many = len(absent) > max(1, MAX_ABSENT_SHARE * len(cells))
    if n_found and is_many and not allow_missing:
        raise DataError(
            f"labels: {len(absent):,} of {len(cells):,} rows name missing images "
            f"({first_few(absent, separator='; ')}); correct their paths, or ignore these rows "
            "with --allow-missing"
        )
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

    def find(cell: object, location: str) -> str | None:
        path = as_path(cell, location)
        inside = []
        for spelling in dict.fromkeys((path, path.replace("\\", "/"))):
            # Strings: a Path per row would take longer than everything else.
            for base in [""] if ADDRESS.match(path) else bases:
                file = posixpath.normpath(posixpath.join(base, spelling))
                inside += [
                    file.removeprefix(prefix) for prefix in prefixes if file.startswith(prefix)
                ]
        if not inside:
            raise DataError(f"{location}: {path!r} leads out of {root}; give paths inside it")
        return find_name(inside)

    return find


def as_path(cell: object, location: str) -> str:
    """Return the path that a cell of a table holds."""
    if isinstance(cell, os.PathLike):
        cell = os.fspath(cell)
    if isinstance(cell, Mapping):  # Hugging Face's image struct: {"bytes": …, "path": …}
        cell = cell.get("path")
    if not isinstance(cell, str) or not cell.strip():
        raise DataError(f"{location}: found {str(cell)[:40]!r}, expected the path of an image")
    return cell
