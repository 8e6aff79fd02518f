"""Labels: from cells of a table to class names, from paths in a table to images, each doubt
counted or refused."""

import os
import posixpath
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import numpy as np

from shoal.arrays import UNLABELED, Ints, as_class, sort_classes
from shoal.data.readers.csv_rows import LINE_END
from shoal.data.readers.tables import Table
from shoal.data.storage.addresses import ADDRESS, is_utf8
from shoal.errors import DataError
from shoal.words import count, first_few, plural

MAX_ABSENT_SHARE = 0.05
"""Share of a table's rows, or a single one, that may name images that are not there; more are
likely wrong paths."""


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
    n_rows: int = 0

    def add(self, name: str | None, label: str | None, location: str, raw: object) -> None:
        """Take the row at `location`, whose path `raw` means the image `name`, or none; two
        labels are an error."""
        self.n_rows += 1
        if name is None:
            self.absent.append(f"{location}: {raw}")
            return
        if name in self.labels:
            self.doubled.append(f"{location}: {raw}")
        first = self.labels.get(name)
        if first is not None and label is not None and first != label:
            raise DataError(
                f"{location}: {name!r} is labeled {label!r}, but {first!r} in "
                f"{self.locations[name]}; an image has "
                "one category, so remove one of the two rows"
            )
        if first is None:
            self.labels[name] = label
            self.locations[name] = location

    def refuse_many_absent(self, where: str) -> None:
        """Refuse a table of which many rows name images that are not there."""
        if len(self.absent) > max(1, MAX_ABSENT_SHARE * self.n_rows):
            raise DataError(
                f"{where}: {len(self.absent):,} of {self.n_rows:,} rows name images that are not "
                "there "
                f"({_some(self.absent)}); correct their paths, or go on without these rows with "
                "--allow-missing "
                "(allow_missing=True in Python)"
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """Count rows that name nothing, or the same again."""
        notes = []
        if self.absent:
            n_rows = f"{count(len(self.absent), 'row')} {plural(len(self.absent), 'names')}"
            notes.append(f"{n_rows} images that are not there ({_some(self.absent)})")
        if self.doubled:
            n_rows = f"{count(len(self.doubled), 'row')} {plural(len(self.doubled), 'repeats')}"
            notes.append(f"{n_rows} an image with the same label or none ({_some(self.doubled)})")
        return tuple(notes)


def why_no_label(cell: object) -> str | None:
    """Why a cell cannot be the label of an image, wherever it was read; None where it can."""
    if isinstance(cell, list | tuple | dict | bytes):
        return "expected a number or a text"
    if not isinstance(cell, str) or not cell.strip():
        return None
    if LINE_END.search(cell):
        return "more than one line"
    if not cell.isascii() and not is_utf8(cell):
        return "not UTF-8"
    return None


def class_names(
    cells: Sequence[object], unlabeled: frozenset[str], location: Callable[[int], str]
) -> list[str | None]:
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
            one = as_class(cell, unlabeled)
        except DataError as error:
            raise DataError(f"{location(row)}: {error}") from error
        if one is not None:
            one = str(one)
        names.append(one)
    return names


def encode(
    names: Sequence[str | None], order: Sequence[str] | None = None
) -> tuple[Ints, tuple[str, ...]]:
    """Number class names: (N,) positions, -1 for None, and the classes, as `sort_classes` has
    them or as given."""
    present = {name for name in names if name is not None}
    if order is None:
        order = sort_classes(present)
    classes = tuple(order)
    unlisted = sorted(present - set(classes))
    if unlisted:
        raise DataError(
            f"classes: {unlisted[0]!r} and {count(len(unlisted) - 1, 'other label')} are not in "
            "the given order"
        )
    position = {name: i for i, name in enumerate(classes)}
    labels = [UNLABELED if name is None else position[name] for name in names]
    return np.array(labels, dtype=np.int64), classes


def similar_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Note class names that differ only in case, spaces or Unicode form; both are kept, as they
    were written."""
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

    A path that leads out of `root`, and an image with two different labels, are errors; a path to
    nothing is counted, and where some are found but too many lead to nothing, that is an error
    unless `allow_missing`.
    """
    finder = _Finder(names, root, table.folder)
    rows = RowLabels()
    given = class_names(table.columns[label_column], unlabeled, table.location)
    for row, (raw, label) in enumerate(zip(table.columns[path_column], given, strict=True)):
        location = table.location(row)
        rows.add(finder.find(_as_path(raw, location), location), label, location, raw)
    if rows.labels and not allow_missing:
        rows.refuse_many_absent(table.where)
    return rows


class Spellings:
    """Finds a name however its accents are spelled: file systems of macOS write 'é' as two code
    points, tables as one.

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
        for name in spellings:
            if _nfc(name) in self.composed:
                return self.composed[_nfc(name)]
        return None


class _Finder:
    """Looks up the image that a path in a table means."""

    def __init__(self, names: Sequence[str], root: PurePath, folder: PurePath | None) -> None:
        self.root = root
        real = root.resolve() if isinstance(root, Path) else root
        self.roots = [f"{_plain(path).rstrip('/')}/" for path in dict.fromkeys((root, real))]
        self.folders = self.roots[:1]
        if folder is not None:
            self.folders = [f"{_plain(folder)}/", self.roots[0]]
        self.names = Spellings(names)

    def find(self, raw: str, location: str) -> str | None:
        """The name of the image, or None where there is none; a path out of the root is refused."""
        spellings = dict.fromkeys((raw, raw.replace("\\", "/")))
        inside = [name for path in spellings for name in self._inside(path)]
        if not inside and isinstance(self.root, Path) and ADDRESS.match(raw):
            raise DataError(
                f"{location}: {raw!r} is an address, but the images are those in {self.root}; "
                "give paths inside that "
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
        paths = [folder + path for folder in self.folders]
        if is_absolute:
            paths = [path]
        return [
            plain.removeprefix(root)
            for plain in map(posixpath.normpath, paths)
            for root in self.roots
            if plain.startswith(root)
        ]


def _plain(path: PurePath) -> str:
    """A path or an address as `normpath` writes it, which takes one of two slashes away."""
    return posixpath.normpath(path.as_posix())


def _as_path(raw: object, location: str) -> str:
    if isinstance(raw, os.PathLike):
        raw = os.fspath(raw)
    if isinstance(raw, Mapping):  # Hugging Face's image struct: {"bytes": …, "path": …}
        raw = raw.get("path")
    if not isinstance(raw, str) or not raw.strip():
        raise DataError(
            f"{location}: found {str(raw)[:40]!r} as the path of an image; every row needs one"
        )
    return raw


def _some(items: Sequence[str]) -> str:
    return first_few(items, separator="; ")


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)
