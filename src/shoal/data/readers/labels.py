"""Labels: from cells of a table to class names, from paths in a table to images, each doubt counted or refused."""

import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED, Ints, as_class, sort_classes
from shoal.data.readers.csv_rows import LINE_END
from shoal.data.readers.tables import Table
from shoal.data.storage.addresses import ADDRESS
from shoal.errors import DataError
from shoal.words import count, first_few, plural

MAX_ABSENT_SHARE = 0.05
"""Share of a table's rows, or a single one, that may name images that are not there; more are likely wrong paths."""


@dataclass(frozen=True)
class RowLabels:
    """What the rows of a table say about images of a collection."""

    labels: dict[str, str | None]
    """Image name -> class name, None where the row says 'unlabeled'."""
    locations: dict[str, str]
    """Image name -> the row that said so, for messages."""
    notes: tuple[str, ...]


def why_no_label(cell: Any) -> str | None:
    """Why a cell cannot be the label of an image, wherever it was read; None where it can."""
    if isinstance(cell, list | tuple | dict | bytes):
        return "expected a number or a text"
    if not isinstance(cell, str) or not cell.strip():
        return None
    if LINE_END.search(cell):
        return "more than one line"
    is_broken = not cell.isascii() and any(0xD800 <= ord(letter) <= 0xDFFF for letter in cell)
    return "not UTF-8" if is_broken else None


def class_names(
    cells: Sequence[Any], unlabeled: frozenset[str], location: Callable[[int], str]
) -> list[str | None]:
    """The class that each cell names, as text, or None (see `as_class`); the number 3.0 and the text '3.0' are '3'.

    `location` says of a row where it stands, for messages.
    """
    names: list[str | None] = []
    for row, cell in enumerate(cells):
        reason = why_no_label(cell)
        if reason is not None:
            raise DataError(
                f"{location(row)}: labels: found {repr(cell)[:40]}, {reason}; give each image one label"
            )
        try:
            one = as_class(cell, unlabeled)
        except DataError as error:
            raise DataError(f"{location(row)}: {error}") from error
        names.append(None if one is None else str(one))
    return names


def encode(
    names: Sequence[str | None], order: Sequence[str] | None = None
) -> tuple[Ints, tuple[str, ...]]:
    """Number class names: (N,) positions, -1 for None, and the classes, as `sort_classes` has them or as given."""
    present = {name for name in names if name is not None}
    classes = tuple(sort_classes(present)) if order is None else tuple(order)
    unlisted = sorted(present - set(classes))
    if unlisted:
        raise DataError(
            f"classes: {unlisted[0]!r} and {count(len(unlisted) - 1, 'other label')} are not in the given order"
        )
    position = {name: i for i, name in enumerate(classes)}
    labels = [UNLABELED if name is None else position[name] for name in names]
    return np.array(labels, dtype=np.int64), classes


def similar_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Note class names that differ only in case, spaces or Unicode form; both are kept, as they were written."""
    first: dict[str, str] = {}
    pairs = []
    for name in classes:
        twin = first.setdefault(
            " ".join(unicodedata.normalize("NFKC", name).casefold().split()), name
        )
        if twin != name:
            pairs.append(f"{twin!r} and {name!r}")
    if not pairs:
        return ()
    n_pairs = f"{count(len(pairs), 'pair')} of categories {plural(len(pairs), 'differs')}"
    return (f"{n_pairs} only in case, spaces or Unicode form: {_some(pairs)}",)


def labels_of_rows(
    table: Table,
    names: Sequence[str],
    root: PurePath,
    path_column: str,
    label_column: str,
    unlabeled: frozenset[str],
    *,
    allow_missing: bool = False,
) -> RowLabels:
    """Find the image that each row names, first relative to the table's folder, then to `root`.

    A path that leads out of `root`, and an image with two different labels, are errors; a path to nothing is counted,
    and where some are found but too many lead to nothing, that is an error unless `allow_missing`.
    """
    finder = _Finder(names, root, table.folder)
    labels: dict[str, str | None] = {}
    locations: dict[str, str] = {}
    absent = []
    doubled = []
    given = class_names(table.columns[label_column], unlabeled, table.location)
    for row, (raw, label) in enumerate(zip(table.columns[path_column], given, strict=True)):
        name = finder.find(_as_path(raw, table.location(row)), table.location(row))
        if name is None:
            absent.append(f"{table.location(row)}: {raw}")
            continue
        if name in locations:
            doubled.append(f"{table.location(row)}: {raw}")
            refuse_second_label(name, labels[name], locations[name], label, table.location(row))
        if labels.get(name) is None:
            labels[name] = label
            locations[name] = table.location(row)
    if labels and not allow_missing:
        refuse_many_absent(table.where, absent, len(table))
    return RowLabels(labels, locations, row_notes(absent, doubled))


def refuse_many_absent(where: str, absent: Sequence[str], n_rows: int) -> None:
    """Refuse a table of which many rows name images that are not there; `absent` are their locations and paths."""
    if len(absent) > max(1, MAX_ABSENT_SHARE * n_rows):
        raise DataError(
            f"{where}: {len(absent):,} of {n_rows:,} rows name images that are not there ({_some(absent)}); correct "
            "their paths, or go on without these rows with --allow-missing (allow_missing=True in Python)"
        )


def merge(parts: Sequence[RowLabels]) -> RowLabels:
    """Join what several tables say; an image with two different labels is an error."""
    labels: dict[str, str | None] = {}
    locations: dict[str, str] = {}
    for part in parts:
        for name, label in part.labels.items():
            if name in labels:
                refuse_second_label(
                    name, labels[name], locations[name], label, part.locations[name]
                )
            if labels.get(name) is None:
                labels[name], locations[name] = label, part.locations[name]
    return RowLabels(labels, locations, tuple(note for part in parts for note in part.notes))


class Spellings:
    """Finds a name however its accents are spelled: file systems of macOS write 'é' as two code points, tables as one.

    A name as it stands comes before one in another Unicode form.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.composed = {_nfc(name): name for name in self.names}

    def find(self, spellings: Sequence[str]) -> str | None:
        """The name that one of the spellings means, the first of them that means any."""
        for name in spellings:
            if name in self.names:
                return name
        return next(
            (self.composed[name] for name in map(_nfc, spellings) if name in self.composed), None
        )


class _Finder:
    """Looks up the image that a path in a table means."""

    def __init__(self, names: Sequence[str], root: PurePath, folder: PurePath | None) -> None:
        self.root = root
        real = root.resolve() if isinstance(root, Path) else root
        self.roots = [f"{_plain(path).rstrip('/')}/" for path in dict.fromkeys((root, real))]
        self.folders = (
            [f"{_plain(folder)}/", self.roots[0]] if folder is not None else self.roots[:1]
        )
        self.names = Spellings(names)

    def find(self, raw: str, location: str) -> str | None:
        """The name of the image, or None where there is none; a path out of the root is refused."""
        spellings = [raw, raw.replace("\\", "/")] if "\\" in raw else [raw]
        inside = [name for path in spellings for name in self._inside(path)]
        if not inside and isinstance(self.root, Path) and ADDRESS.match(raw):
            raise DataError(
                f"{location}: {raw!r} is an address, but the images are those in {self.root}; give paths inside that "
                "folder, or the table alone to read its images from their addresses"
            )
        if not inside:
            raise DataError(
                f"{location}: {raw!r} leads out of {self.root}; give paths inside that folder"
            )
        return self.names.find(inside)

    def _inside(self, path: str) -> list[str]:
        """The names under the root that a path may mean."""
        # A Path per row would cost more than all the rest.
        is_absolute = os.path.isabs(path) or ADDRESS.match(path) is not None  # noqa: PTH117
        paths = [
            posixpath.normpath(path if is_absolute else folder + path) for folder in self.folders
        ]
        return [
            path.removeprefix(root)
            for path in paths
            for root in self.roots
            if path.startswith(root)
        ]


def _plain(path: PurePath) -> str:
    """A path or an address as `normpath` writes it, which takes one of two slashes away."""
    return posixpath.normpath(path.as_posix())


def _as_path(raw: Any, location: str) -> str:
    if isinstance(raw, os.PathLike):
        raw = os.fspath(raw)
    if isinstance(raw, Mapping):  # Hugging Face's image struct: {"bytes": …, "path": …}
        raw = raw.get("path")
    if not isinstance(raw, str) or not raw.strip():
        raise DataError(
            f"{location}: found {str(raw)[:40]!r} as the path of an image; every row needs one"
        )
    return raw


def refuse_second_label(
    name: str, first: str | None, first_location: str, second: str | None, location: str
) -> None:
    """Raise where two rows give one image two different labels."""
    if first is not None and second is not None and first != second:
        raise DataError(
            f"{location}: {name!r} is labeled {second!r}, but {first!r} in {first_location}; an image has one "
            "category, so remove one of the two rows"
        )


def row_notes(absent: Sequence[str], doubled: Sequence[str] = ()) -> tuple[str, ...]:
    """Count rows of a table that name nothing, or the same again; each is its location and path."""
    notes = []
    if absent:
        n_rows = f"{count(len(absent), 'row')} {plural(len(absent), 'names')}"
        notes.append(f"{n_rows} images that are not there ({_some(absent)})")
    if doubled:
        n_rows = f"{count(len(doubled), 'row')} {plural(len(doubled), 'repeats')}"
        notes.append(f"{n_rows} an image with the same label or none ({_some(doubled)})")
    return tuple(notes)


def _some(items: Sequence[str]) -> str:
    return first_few(items, separator="; ")


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)
