"""What lies under a folder or an address: image files and label tables, in an order that does not
depend on the file system."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath

from shoal.data.storage.addresses import Address, as_address, is_utf8, why_unfit
from shoal.data.storage.remote import FileState, asking, list_remote
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError
from shoal.files import absolute_path
from shoal.words import count, first_few

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"),
    *(".heic", ".heif"),
)
METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
LABEL_TABLE_NAMES = ("labels.csv", "labels.tsv", "labels.jsonl", "labels.parquet")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
SHARD_SUFFIXES = (".tar", ".parquet")


@dataclass
class Listing:
    """The images that a reader has found, and what it left out on the way."""

    root: PurePath
    """The folder or address of the images, or the pattern of their shards."""
    names: list[str] = field(default_factory=list)
    """Images, as sorted paths below `root` with forward slashes."""
    labels: dict[str, str | None] | None = None
    """The class of each image, where the images came with labels; None for unlabeled."""
    tables: list[str] = field(default_factory=list)
    """Tables that may hold labels: metadata.* anywhere, labels.* in the folder itself."""
    shards: set[str] = field(default_factory=set)
    """The suffixes of files that may be shards."""
    notes: list[str] = field(default_factory=list)
    """What was left out and why, with counts."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Files that are named like images and cannot be read, and why."""
    stored: StoredFiles | None = None
    """Where the images lie, in their order, when that is on a network or in shards."""
    folders: tuple[str, ...] = (".",)
    """The folders below `root` in which every image is one of these."""
    ignored: dict[str, list[str]] = field(default_factory=dict)
    """What was met and not read, in words -> names."""

    def ignore(self, what: str, name: str) -> None:
        """Count something that is not read."""
        self.ignored.setdefault(what, []).append(name)

    def sort(self) -> None:
        """Sort what was found, and note what was not read."""
        self.names.sort()
        self.tables.sort()
        for what, names in self.ignored.items():
            self.notes.append(f"{len(names):,} {what}: {first_few(sorted(names))}")
        if self.left_out:
            some = first_few(sorted(self.left_out))
            self.notes.append(f"{count(len(self.left_out), 'file')} cannot be read: {some}")

    def is_image(self, name: str) -> bool:
        """Whether a file is one by its name; if not, what it is instead is noted."""
        file = PurePosixPath(name)
        suffix = file.suffix.lower()
        if suffix in SHARD_SUFFIXES:
            self.shards.add(suffix)
        if file.name in METADATA_NAMES or name in LABEL_TABLE_NAMES:
            self.tables.append(name)
        elif suffix not in IMAGE_SUFFIXES and suffix not in TABLE_SUFFIXES:
            self.ignore("with other suffixes ignored", name)
        return suffix in IMAGE_SUFFIXES


def check_folder(folder: str | os.PathLike[str], what: str = "images") -> Path:
    """The absolute path of a folder that exists."""
    refuse_address(folder)
    path = absolute_path(folder)
    if not path.is_dir():
        problem = "found a file; unpack it if it is an archive, and"
        if not path.exists():
            problem = "no such folder;"
        raise DataError(f"{path}: {problem} give the folder that holds the {what}")
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


def list_folder(root: Path) -> Listing:
    """List every image under `root`, at any depth; hidden files and folders (a leading dot) are
    left out.

    Each real folder is read once, so links that loop or meet end; a link to a folder that was read
    already, or that holds `root`, is not followed.
    """
    listing = Listing(root)
    home = root.resolve()
    read = set[Path]()
    folders = [""]
    links: list[str] = []
    while folders or links:
        # Where a folder is reached both directly and through a link, its own name wins.
        folder = folders.pop() if folders else links.pop(0)
        target = (root / folder).resolve()
        if target in read or (folder and home.is_relative_to(target)):
            listing.ignore("links to folders that are read already, not followed", folder)
            continue
        if (root / folder).is_symlink() and not target.is_relative_to(home):
            listing.ignore("links to folders outside this one, followed", folder)
        read.add(target)
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}".removeprefix("/")
                    if not _is_folder(entry):
                        _add_file(entry, name, listing)
                    elif is_hidden(entry.name):
                        listing.ignore("with a leading dot ignored", name)
                    elif entry.is_symlink():
                        links.append(name)
                    else:
                        folders.append(name)
        except OSError:
            listing.ignore("that may not be opened, check the permissions", folder or ".")
        links.sort()
    listing.sort()
    return listing


def list_remote_folder(address: Address) -> Listing:
    """List every image below an address, at any depth."""
    if address.scheme in ("http", "https"):
        raise DataError(
            f"{address}: a web server lists no folders; give a table of addresses (csv, tsv, "
            "jsonl, parquet), a .tar or a .parquet shard that lies there"
        )
    listing = Listing(address)
    states = dict[str, FileState]()
    with asking(address):
        for name, state in list_remote(address):
            if is_hidden(name):
                listing.ignore("with a leading dot ignored", name)
            elif listing.is_image(name):
                reason = why_unfit(name)
                if reason is None:
                    states[name] = state
                else:
                    listing.left_out[ascii(name)[1:-1]] = reason
    listing.names = list(states)
    listing.sort()
    listing.stored = StoredFiles.of_states(str(address), [states[name] for name in listing.names])
    return listing


def is_hidden(name: str) -> bool:
    """Whether a name, or a folder in it, has a leading dot, or is what macOS leaves in archives."""
    return any(
        part == "__MACOSX" or (part.startswith(".") and part not in (".", ".."))
        for part in name.split("/")
    )


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False


def _add_file(entry: "os.DirEntry[str]", name: str, listing: Listing) -> None:
    if is_hidden(entry.name):
        if name.lower().endswith(IMAGE_SUFFIXES):
            listing.ignore("with a leading dot ignored", name)
        return
    if not listing.is_image(name):
        return
    is_file = False
    with suppress(OSError):
        is_file = entry.is_file()
    if not is_utf8(name):
        listing.left_out[ascii(name)[1:-1]] = "the name is not UTF-8"
    elif is_file:
        listing.names.append(name)
    elif entry.is_symlink() and not os.path.exists(entry):  # noqa: PTH110
        listing.left_out[name] = "a link to nothing"
    else:
        listing.left_out[name] = "no plain file (a pipe, a socket or a device)"
