"""List the images and label tables under a folder or an address, in sorted order."""

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath

from shoal.data.collection import StoredFiles
from shoal.data.storage import (
    Address,
    Location,
    absolute,
    is_utf8,
    list_remote,
    reading,
    why_unfit,
)
from shoal.errors import DataError, count, first_few

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif"),
    *(".heic", ".heif"),
)
METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")
LABEL_TABLE_NAMES = tuple(f"labels{suffix}" for suffix in TABLE_SUFFIXES)
SHARD_SUFFIXES = (".tar", ".parquet")


@dataclass
class Listing:
    """The images that a reader has found, and the files that it left out."""

    # The folder or address of the images, or the pattern of their shards
    root: PurePath
    # Images, as sorted paths below `root` with forward slashes; or boxes in images
    names: list[str] = field(default_factory=list)
    # If `names` are boxes: the images, by which tables may label all of their boxes
    images: list[str] = field(default_factory=list)
    # The class of each image (None for unlabeled), if the source has labels
    labels: dict[str, str | None] | None = None
    # Tables that may hold labels: metadata.* anywhere, labels.* in the folder itself
    tables: list[str] = field(default_factory=list)
    # Suffixes of files that may be shards
    shards: set[str] = field(default_factory=set)
    # Counts of what was left out, and why
    notes: list[str] = field(default_factory=list)
    # Files that are named like images but cannot be read, and why
    left_out: dict[str, str] = field(default_factory=dict)
    # Locations of the images, in their order, if these are on a network or in shards
    stored: StoredFiles | None = None
    # The folders below `root` whose images are all in the listing
    folders: tuple[str, ...] = (".",)
    # Names of files that were not read, by reason
    ignored: dict[str, list[str]] = field(default_factory=dict)

    def ignore(self, reason: str, name: str) -> None:
        self.ignored.setdefault(reason, []).append(name)

    def finish(self) -> None:
        """Sort the names, and note what was not read."""
        self.names.sort()
        self.tables.sort()
        for reason, names in self.ignored.items():
            self.notes.append(f"{reason} ({len(names):,}): {first_few(sorted(names))}")
        if self.left_out:
            some = first_few(sorted(self.left_out))
            self.notes.append(f"{count(len(self.left_out), 'file')} cannot be read: {some}")

    def is_image(self, name: str) -> bool:
        """Return whether a file is an image by its name; note tables, shards and other files."""
        file = PurePosixPath(name)
        suffix = file.suffix.lower()
        if suffix in SHARD_SUFFIXES:
            self.shards.add(suffix)
        if file.name in METADATA_NAMES or name in LABEL_TABLE_NAMES:
            self.tables.append(name)
        elif suffix not in IMAGE_SUFFIXES and suffix not in TABLE_SUFFIXES:
            self.ignore("ignored because of the suffix", name)
        return suffix in IMAGE_SUFFIXES


def check_folder(folder: Location) -> Path:
    """Return the absolute path of a folder that exists."""
    path = local_path(folder)
    if not path.is_dir():
        problem = "no such folder"
        if path.exists():
            problem = "found a file (unpack an archive; for embeddings, use `shoal cluster`)"
        raise DataError(f"{path}: {problem}; give the folder of the images")
    return path


def local_path(location: Location) -> Path:
    """Return the absolute path of a local folder or file; refuse a network address."""
    place = absolute(location)
    if isinstance(place, Address):
        raise DataError(
            f"{place}: is an address, expected a local folder or file; download it and give its "
            "path"
        )
    return place


def list_folder(root: Path) -> Listing:
    """List every image under `root` at any depth, without hidden files and folders.

    Each real folder is read once, so links that loop end; a link to a folder that was read already,
    or that contains `root`, is not followed.
    """
    listing = Listing(root)
    home = root.resolve()
    read = set[Path]()
    folders = [""]
    links: list[str] = []
    while folders or links:
        # A folder that is reached both directly and through a link has its own name.
        folder = folders.pop() if folders else links.pop(0)
        target = (root / folder).resolve()
        if target in read or (folder and home.is_relative_to(target)):
            listing.ignore("links to folders that are read already, not followed", folder)
            continue
        read.add(target)
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    if is_hidden(entry.name):
                        continue
                    name = f"{folder}/{entry.name}".removeprefix("/")
                    is_file = entry.is_file(follow_symlinks=False)
                    is_file = is_file or not os.path.isdir(entry)  # noqa: PTH112
                    if is_file:
                        _add_file(entry, name, listing)
                    elif entry.is_symlink():
                        links.append(name)
                    else:
                        folders.append(name)
        except OSError:
            listing.ignore("cannot be opened; check the permissions", folder or ".")
        links.sort()
    listing.finish()
    return listing


def list_remote_folder(address: Address) -> Listing:
    """List every image below an address at any depth."""
    if address.scheme in ("http", "https"):
        raise DataError(
            f"{address}: web servers do not list folders; give a table of addresses (csv, tsv, "
            "jsonl, parquet), or a .tar or .parquet shard"
        )
    listing = Listing(address)
    states: dict[str, str] = {}
    with reading(address):
        for name, state in list_remote(address):
            if not is_hidden(name) and listing.is_image(name):
                reason = why_unfit(name)
                if reason is None:
                    states[name] = state
                else:
                    listing.left_out[ascii(name)[1:-1]] = reason
    listing.names = list(states)
    listing.finish()
    ordered = {name: states[name] for name in listing.names}
    listing.stored = StoredFiles.of_states(str(address), ordered)
    return listing


def is_hidden(name: str) -> bool:
    """Return whether a part of a path has a leading dot, or is macOS's folder in archives."""
    return any(
        part == "__MACOSX" or (part.startswith(".") and part not in (".", ".."))
        for part in name.split("/")
    )


def _add_file(entry: "os.DirEntry[str]", name: str, listing: Listing) -> None:
    if not listing.is_image(name):
        return
    if not is_utf8(name):
        listing.left_out[ascii(name)[1:-1]] = "the name is not UTF-8"
    elif entry.is_file(follow_symlinks=False) or os.path.isfile(entry):  # noqa: PTH113
        listing.names.append(name)
    else:
        listing.left_out[name] = "not a regular file or a broken link"
