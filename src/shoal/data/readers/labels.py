"""Turn cells of a table into class names, and paths in a table into images."""

import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass
class RowLabels:
    """Labels of images, collected from the rows of one or more tables."""

    labels: dict[str, str | None] = field(default_factory=dict)
    """Class of each image, None for unlabeled."""
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
        if self.absent:
            some = first_few(self.absent, separator="; ")
            notes.append(f"{count(len(self.absent), 'row')} without an image ({some})")
        if self.repeated:
            some = first_few(self.repeated, separator="; ")
            notes.append(f"{count(len(self.repeated), 'repeated row')} ({some})")
        return notes


def label_rows(
    cells: Sequence[object],
    labels: Sequence[str | None],
    find: Callable[[object, str], str | None],
    location_of: Callable[[int], str],
    *,
    allow_missing: bool,
    rows: RowLabels | None = None,
) -> RowLabels:
    """Return the labels of images by the rows of a table, added to those in `rows`.

    `find` returns the image that a cell at a location names, or None. An image with two different
    labels is an error, and so are many rows that name no image, unless `allow_missing`.
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


def why_no_label(cell: object) -> str | None:
    """Return why a cell cannot be the label of an image, or None if it can."""
    if isinstance(cell, list | tuple | dict | bytes):
        return "expected a number or a text"
    if not isinstance(cell, str) or not cell.strip():
        return None
    if LINE_END.search(cell):
        return "more than one line"
    if not is_utf8(cell):
        return "not UTF-8"
    return None


def class_names(cells: Iterable[object], location: Callable[[int], str]) -> list[str | None]:
    """Return the class that each cell names as text, or None for unlabeled (see `as_class`).

    `location` returns the place of a row, for messages.
    """
    names: list[str | None] = []
    for row, cell in enumerate(cells):
        reason = why_no_label(cell)
        if reason is not None:
            raise DataError(
                f"{location(row)}: found the label {repr(cell)[:40]}, {reason}; give each image "
                "one label"
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
    position: dict[str | None, int] = {name: i for i, name in enumerate(classes)}
    position[None] = UNLABELED
    return np.array([position[name] for name in names], dtype=np.int64), classes


def similar_classes(classes: Sequence[str]) -> list[str]:
    """Return a note about class names that differ only in case, spaces or Unicode form, if any."""
    first: dict[str, str] = {}
    pairs = []
    for name in classes:
        folded = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        twin = first.setdefault(folded, name)
        if twin != name:
            pairs.append(f"{twin!r} and {name!r}")
    if not pairs:
        return []
    some = first_few(pairs, separator="; ")
    return [f"categories that differ only in case, spaces or Unicode form: {some}"]


def name_finder(names: Iterable[str]) -> Callable[[Sequence[str]], str | None]:
    """Return a function that finds the first of some spellings among the names, or None.

    An exact match comes first, then one in another Unicode form: macOS writes 'é' as two code
    points, tables as one.
    """
    exact = frozenset(names)
    composed = {unicodedata.normalize("NFC", name): name for name in exact}

    def find(spellings: Sequence[str]) -> str | None:
        for name in spellings:
            if name in exact:
                return name
        for name in spellings:
            found = composed.get(unicodedata.normalize("NFC", name))
            if found is not None:
                return found
        return None

    return find


def image_finder(
    names: Iterable[str], root: PurePath, folder: PurePath | None
) -> Callable[[object, str], str | None]:
    """Return a function that finds the image below `root` that a cell of a table names.

    A path is relative to the table's `folder`, then to `root`, then to the working directory; one
    that leads out of `root` is refused.
    """
    find_name = name_finder(names)
    roots = {root}
    if isinstance(root, Path):
        roots.add(root.resolve())
    # `normpath` writes an address with one slash; roots are compared in that form.
    prefixes = [f"{posixpath.normpath(path.as_posix()).rstrip('/')}/" for path in roots]
    bases = [
        posixpath.normpath(path.as_posix())
        for path in (folder, root, Path.cwd())
        if path is not None
    ]

    def find(cell: object, location: str) -> str | None:
        path = as_path(cell, location)
        is_address = ADDRESS.match(path) is not None
        inside = []
        for spelling in dict.fromkeys((path, path.replace("\\", "/"))):
            # Strings: a Path per row would take longer than everything else.
            for base in [""] if is_address else bases:
                absolute = posixpath.normpath(posixpath.join(base, spelling))
                for prefix in prefixes:
                    if absolute.startswith(prefix):
                        inside.append(absolute.removeprefix(prefix))
        if not inside:
            problem = "leads out of"
            if is_address and isinstance(root, Path):
                problem = "is an address, but the images are in"
            raise DataError(f"{location}: {path!r} {problem} {root}; give paths inside that folder")
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
