"""What lies under a folder: image files and label tables, in an order that does not depend on
the file system."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from shoal.data.storage.addresses import as_address, is_utf8
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError
from shoal.files import absolute_path
from shoal.words import count, first_few

IMAGE_SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".webp",
    ".tif",
    ".tiff",
    ".bmp",
    ".gif",
    ".heic",
    ".heif",
)
METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
LABEL_TABLE_NAMES = ("labels.csv", "labels.tsv", "labels.jsonl", "labels.parquet")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


@dataclass
class FolderContents:
    """What was met on the way through a folder."""

    names: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    other: Counter[str] = field(default_factory=Counter)
    hidden: int = 0
    hidden_folders: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Files that are named like images and cannot be read, and why."""
    doubled_links: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def listing(self) -> "Listing":
        """The same, sorted."""
        return Listing(
            tuple(sorted(self.names)),
            tuple(sorted(self.tables)),
            _notes(self),
            tuple(sorted(self.left_out.items())),
        )


@dataclass(frozen=True)
class Listing:
    """The files under a folder, as sorted paths relative to it with forward slashes."""

    names: tuple[str, ...]
    """Images, by their file suffix; whether they can be read is seen when they are decoded."""
    tables: tuple[str, ...]
    """Tables that may hold labels: metadata.* anywhere, labels.* in the folder itself."""
    notes: tuple[str, ...]
    """What was left out and why, with counts."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Files that are named like images and cannot be read, each with the reason."""
    stored: StoredFiles | None = None
    """Where the images lie, in their order, when that is on a network or in shards."""


def check_folder(folder: str | os.PathLike[str], what: str = "images") -> Path:
    """The absolute path of a folder that exists."""
    refuse_address(folder)
    path = absolute_path(folder)
    if not path.exists():
        raise DataError(f"{path}: no such folder; give the folder that holds the {what}")
    if not path.is_dir():
        raise DataError(
            f"{path}: found a file, expected the folder that holds the {what}; unpack it if it is "
            "an archive"
        )
    return path


def refuse_address(location: str | os.PathLike[str]) -> None:
    """Refuse the address of something on a network, where only what lies on this machine is
    read."""
    address = as_address(location)
    if address is not None:
        raise DataError(
            f"{address}: is an address, expected a folder or file on this machine; "
            "download what is there, and give the path of that"
        )


def list_folder(root: Path, *, follow_symlinks: bool = True) -> Listing:
    """List every image under `root`, at any depth; hidden files and folders (a leading dot) are
    left out.

    Each real folder is read once, so links that loop or meet end; a link to a folder that was read
    already, or that holds `root`, is counted and not followed. Folders outside `root` that a link
    leads to are read and counted.
    """
    contents = FolderContents()
    home = root.resolve()
    read: set[tuple[int, int]] = set()
    folders: list[str] = [""]
    links: list[str] = []
    while folders or links:
        # Real folders first: where a folder is reached both directly and through a link, its own
        # name wins.
        folder = folders.pop() if folders else links.pop(0)
        path = root / folder
        try:
            status = path.stat()
        except OSError:
            contents.closed.append(folder)
            continue
        identity = (status.st_dev, status.st_ino)
        target = path.resolve()
        if identity in read or (folder and home.is_relative_to(target)):
            contents.doubled_links.append(folder)
            continue
        if path.is_symlink() and not target.is_relative_to(home):
            contents.outside.append(folder)
        read.add(identity)
        for entry, name in _entries(path, folder, contents):
            if not _is_folder(entry):
                _sort_file(entry, name, contents)
            elif not entry.is_symlink():
                folders.append(name)
            elif follow_symlinks:
                links.append(name)
        links.sort()
    return contents.listing()


def _entries(
    path: Path, folder: str, contents: FolderContents
) -> Iterator[tuple["os.DirEntry[str]", str]]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name.startswith(".") and _is_folder(entry):
                    contents.hidden_folders.append(name)
                elif is_hidden(entry.name):
                    contents.hidden += entry.name.lower().endswith(IMAGE_SUFFIXES)
                else:
                    yield entry, name
    except PermissionError:
        contents.closed.append(folder or ".")


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False


def _is_file(entry: "os.DirEntry[str]") -> bool:
    with suppress(OSError):
        return entry.is_file()
    return False


def is_hidden(name: str) -> bool:
    """Whether a name, or a folder in it, has a leading dot, or is what macOS leaves in archives."""
    return any(
        part == "__MACOSX" or (part.startswith(".") and part not in (".", ".."))
        for part in name.split("/")
    )


def is_image(name: str, contents: FolderContents) -> bool:
    """Whether a file is one by its name; if not, what it is instead is noted: a table, or
    something else."""
    suffix = PurePosixPath(name).suffix.lower()
    if PurePosixPath(name).name in METADATA_NAMES or name in LABEL_TABLE_NAMES:
        contents.tables.append(name)
    elif suffix not in IMAGE_SUFFIXES and suffix not in TABLE_SUFFIXES:
        contents.other[suffix or "no suffix"] += 1
    return suffix in IMAGE_SUFFIXES


def _sort_file(entry: "os.DirEntry[str]", name: str, contents: FolderContents) -> None:
    if not is_image(name, contents):
        return
    if not is_utf8(name):
        contents.left_out[ascii(name)[1:-1]] = "the name is not UTF-8"
    elif _is_file(entry):
        contents.names.append(name)
    elif entry.is_symlink() and not os.path.exists(entry):  # noqa: PTH110
        contents.left_out[name] = "a link to nothing"
    else:
        contents.left_out[name] = "no plain file (a pipe, a socket or a device)"


def _notes(contents: FolderContents) -> tuple[str, ...]:
    """What was left out on the way, a sentence each, with counts."""
    notes = []
    if contents.other.total():
        kinds = ", ".join(f"{suffix} {n:,}" for suffix, n in contents.other.most_common(4))
        notes.append(
            f"{count(contents.other.total(), 'file')} with other suffixes ignored ({kinds})"
        )
    if contents.hidden:
        notes.append(f"{count(contents.hidden, 'file')} with a leading dot ignored")
    for names, noun, what in (
        (contents.hidden_folders, "folder", "with a leading dot ignored"),
        (contents.left_out, "file", "left out, of an unfit name, a dead link or no plain file"),
        (contents.doubled_links, "link", "to a folder that is read already, not followed"),
        (contents.outside, "link", "to folders outside this one followed"),
        (contents.closed, "folder", "that may not be opened, check the permissions"),
    ):
        if names:
            notes.append(f"{count(len(names), noun)} {what}: {first_few(sorted(names))}")
    return tuple(notes)
