"""Labels: from cells of a table to class names, from paths in a table to images, each doubt
counted or refused."""

import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import numpy as np

from shoal.arrays import UNLABELED, Ints, as_class, fold_unlabeled, sort_classes
from shoal.data.readers.tables import LINE_END, Table
from shoal.data.storage.addresses import ADDRESS, is_utf8
from shoal.errors import DataError
from shoal.words import count, first_few, plural

MAX_ABSENT_SHARE = 0.05
"""Share of a table's rows, or a single one, that may name images that are not there; more are
likely wrong paths."""

UNLABELED_CELLS = fold_unlabeled()
"""Texts that mean 'no label'."""


@dataclass
class RowLabels:
    """What the rows of a table say about the images of a collection."""

    labels: dict[str, str | None] = field(default_factory=dict)
    """Image name -> class name, None where the row says 'unlabeled'."""
    locations: dict[str, str] = field(default_factory=dict)
    """Image name -> the row that said so, for messages."""
    absent: list[str] = field(default_factory=list)
    """Rows that name no image: where they stand, and the path."""
    doubled: list[str] = field(default_factory=list)
    """Rows that name an image again."""

    def add(self, name: str | None, label: str | None, location: str, raw: object) -> None:
        """Take the row at `location`, whose path `raw` means the image `name`, or none; two
        labels are an error."""
        if name is None:
            self.absent.append(f"{location}: {raw}")
            return
        if name in self.labels:
            self.doubled.append(f"{location}: {raw}")
        first = self.labels.get(name)
        if first is None:
            self.labels[name] = label
            self.locations[name] = location
        elif label not in (None, first):
            raise DataError(
                f"{location}: {name!r} is labeled {label!r}, but {first!r} in "
                f"{self.locations[name]}; an image has one category, so remove one of the two rows"
            )

    @property
    def notes(self) -> list[str]:
        """Count rows that name nothing, or the same again."""
        notes = []
        for rows, verb, what in (
            (self.absent, "names", "images that are not there"),
            (self.doubled, "repeats", "an image with the same label or none"),
        ):
            if rows:
                n_rows = f"{count(len(rows), 'row')} {plural(len(rows), verb)}"
                notes.append(f"{n_rows} {what} ({first_few(rows, separator='; ')})")
        return notes


def label_rows(
    table: Table,
    path_column: str,
    labels: Sequence[str | None],
    find: Callable[[object, str], str | None],
    *,
    allow_missing: bool,
) -> RowLabels:
    """Find the image that each row names by `find`, which is given the cell and where it stands.

    An image with two different labels is an error, and so are many rows that name none, where some
    do, unless `allow_missing`.
    """
    rows = RowLabels()
    for row, (raw, label) in enumerate(zip(table.columns[path_column], labels, strict=True)):
        location = table.location(row)
        rows.add(find(raw, location), label, location, raw)
    n_absent = len(rows.absent)
    is_many = n_absent > max(1, MAX_ABSENT_SHARE * len(table))
    if rows.labels and is_many and not allow_missing:
        raise DataError(
            f"{table.where}: {n_absent:,} of {len(table):,} rows name images that are not "
            f"there ({first_few(rows.absent, separator='; ')}); correct their paths, or go on "
            "without these rows with --allow-missing (allow_missing=True in Python)"
        )
    return rows


def why_no_label(cell: object) -> str | None:
    """Why a cell cannot be the label of an image, wherever it was read; None where it can."""
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
    """The class that each cell names, as text, or None (see `as_class`); the number 3.0 and the
    text '3.0' are '3'.

    `location` says of a row where it stands, for messages.
    """
    names: list[str | None] = []
    for row, cell in enumerate(cells):
        reason = why_no_label(cell)
        if reason is not None:
            raise DataError(
                f"{location(row)}: labels: found {repr(cell)[:40]}, {reason}; give each image one "
                "label"
            )
        try:
            one = as_class(cell, UNLABELED_CELLS)
        except DataError as error:
            raise DataError(f"{location(row)}: {error}") from error
        if one is not None:
            one = str(one)
        names.append(one)
    return names


def encode(names: Sequence[str | None]) -> tuple[Ints, tuple[str, ...]]:
    """Number class names: (N,) positions, -1 for None, and the classes, as `sort_classes` has
    them."""
    classes = tuple(sort_classes({name for name in names if name is not None}))
    position: dict[str | None, int] = {name: i for i, name in enumerate(classes)}
    position[None] = UNLABELED
    return np.array([position[name] for name in names], dtype=np.int64), classes


def similar_classes(classes: Sequence[str]) -> list[str]:
    """Note class names that differ only in case, spaces or Unicode form; both are kept, as they
    were written."""
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


class Spellings:
    """Finds a name however its accents are spelled: file systems of macOS write 'é' as two code
    points, tables as one.

    A name as it stands comes before one in another Unicode form.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.composed = {unicodedata.normalize("NFC", name): name for name in self.names}

    def find(self, spellings: Sequence[str]) -> str | None:
        """The name that one of the spellings means, the first of them that means any."""
        for name in spellings:
            if name in self.names:
                return name
        composed = [unicodedata.normalize("NFC", name) for name in spellings]
        return next((self.composed[name] for name in composed if name in self.composed), None)


def finder(
    names: Iterable[str], root: PurePath, folder: PurePath | None
) -> Callable[[object, str], str | None]:
    """What finds the image below `root` that a cell of a table means.

    A path is relative to the table's `folder`, then to `root`; one that leads out of `root` is
    refused.
    """
    spellings = Spellings(names)
    real = root
    if isinstance(root, Path):
        real = root.resolve()
    # As `normpath` writes them, which takes one of the two slashes of an address away.
    roots = [f"{posixpath.normpath(path.as_posix()).rstrip('/')}/" for path in {root, real}]
    bases = [posixpath.normpath(path.as_posix()) for path in (folder, root) if path is not None]

    def find(cell: object, location: str) -> str | None:
        raw = as_path(cell, location)
        is_address = ADDRESS.match(raw) is not None
        inside = [
            path.removeprefix(start)
            for spelled in dict.fromkeys((raw, raw.replace("\\", "/")))
            # A Path per row would cost more than all the rest.
            for base in ([""] if is_address else bases)
            for path in [posixpath.normpath(posixpath.join(base, spelled))]
            for start in roots
            if path.startswith(start)
        ]
        if not inside:
            problem = "leads out of"
            if is_address and isinstance(root, Path):
                problem = "is an address, but the images are those in"
            raise DataError(f"{location}: {raw!r} {problem} {root}; give paths inside that folder")
        return spellings.find(inside)

    return find


def as_path(cell: object, location: str) -> str:
    """The path that a cell of a table holds."""
    if isinstance(cell, os.PathLike):
        cell = os.fspath(cell)
    if isinstance(cell, Mapping):  # Hugging Face's image struct: {"bytes": …, "path": …}
        cell = cell.get("path")
    if not isinstance(cell, str) or not cell.strip():
        raise DataError(
            f"{location}: found {str(cell)[:40]!r} as the path of an image; every row needs one"
        )
    return cell
