"""Read shards as one collection: tar files as WebDataset names their members, parquet files as
Hugging Face writes them, local or on a network.

In a tar shard KEY.jpg is an image and KEY.cls, KEY.json or KEY.txt its label; a parquet shard has a
column of images (bytes and path) and one of labels. Only headers, labels and paths are read here;
an image's bytes are read when it is decoded.
"""

import itertools
import json
import os
import posixpath
import re
import tarfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from shoal.data.pixels.store import file_state, folder_name
from shoal.data.readers.folders import IMAGE_SUFFIXES, SHARD_SUFFIXES, Listing, is_hidden
from shoal.data.readers.labels import class_names
from shoal.data.readers.tables import LABEL_COLUMNS, pick_column
from shoal.data.storage.addresses import (
    Address,
    Location,
    Place,
    absolute,
    as_address,
    why_unfit,
)
from shoal.data.storage.opening import open_file, open_parquet, row_of
from shoal.data.storage.remote import (
    N_REQUESTS,
    Lost,
    list_remote,
    reading,
    remote_state,
)
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError, ShoalError
from shoal.files import cache_folder, make_folder, write_text
from shoal.text import one_line

if TYPE_CHECKING:
    from pyarrow import DataType, Schema

VERSION = 10
"""Version of the cached indexes; a new one invalidates them."""

COMPRESSED = re.compile(r"\.(tgz|gz|bz2|xz|zst)$")
BRACES = re.compile(r"\{([^{}]*)\}")
MAX_SHARDS = 1_000_000

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "picture", "photo")
"""Accepted names of the column of images, if several are possible."""

CAPTION = ".txt"
LABEL_SUFFIXES = (".cls", ".json", CAPTION)
"""Suffixes of members that may hold a label, in order of preference. A .txt member of several lines
or of more than `MAX_LABEL_BYTES` is a caption, not a label."""

MAX_LABEL_BYTES = 1 << 20


class ShardImage(NamedTuple):
    """One image of a shard."""

    name: str
    start: int
    """Its first byte in a tar shard, its row in a parquet shard."""
    n_bytes: int
    """-1 if unknown."""
    label: str | None
    """Its class; None for unlabeled."""


@dataclass
class ShardIndex:
    """The images of one shard in order."""

    state: str = ""
    """What changes with the shard."""
    column: str | None = None
    """The column of images in a parquet shard."""
    images: list[ShardImage] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Images that cannot be used, and why."""


def is_shards(location: Location, image_column: str | None = None) -> bool:
    """Return whether a location means shards: a tar file, a parquet file with images, or several of
    them by braces or a star."""
    if Path(location).is_dir():
        return False
    where = absolute(location)
    suffix = where.suffix.lower()
    if suffix == ".tar" or COMPRESSED.search(suffix):
        return True
    if suffix not in SHARD_SUFFIXES:
        return False
    is_pattern = re.search(r"[{*]", _split_pattern(where)[1]) is not None
    return is_pattern or _has_images(str(where), image_column)


def read_shards(
    pattern: Location,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
) -> Listing:
    """List the images of shards, with their labels.

    A shard that is missing or damaged, or has a label that cannot be read, is an error unless
    `allow_missing`; then it is left out.
    """
    where = absolute(pattern)
    files = find_shards(where)
    listing = Listing(where)

    def index(file: str) -> ShardIndex:
        try:
            return _index(file, image_column, label_column)
        except DataError as error:
            if isinstance(error.__cause__, Lost):  # only the connection failed
                raise
            if not allow_missing:
                raise DataError(f"{error}, or leave the shard out with --allow-missing") from error
            listing.left_out[PurePath(file).name] = f"none of its images is read: {error}"
            return ShardIndex()

    with ThreadPoolExecutor(N_REQUESTS) as threads:
        indexes = list(threads.map(index, files))
    names = [image.name for shard in indexes for image in shard.images]
    if not names:
        reason = "no images (jpg, png, webp, tif, bmp, gif or heic)"
        reason = next(iter(listing.left_out.values()), reason)
        raise DataError(f"{where}: {reason}; give other shards")
    # If shards share names, as with numbered rows, images are named by their shard too.
    is_prefixed = len(set(names)) < len(names)
    folder = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    images: list[tuple[str, str, ShardIndex, ShardImage]] = []
    for file, shard in zip(files, indexes, strict=True):
        prefix = ""
        if is_prefixed:
            prefix = f"{os.path.splitext(os.path.relpath(file, folder))[0]}/"  # noqa: PTH122
        listing.left_out |= {prefix + name: reason for name, reason in shard.left_out.items()}
        images += [(prefix + image.name, file, shard, image) for image in shard.images]
    listing.finish()
    if is_prefixed:
        listing.notes.append("shards share names of images, so names start with that of the shard")
    # Images are sorted by name, and read in the order of the shards.
    order = sorted(range(len(images)), key=lambda i: images[i][0])
    images = [images[i] for i in order]
    listing.names = [name for name, *_ in images]
    # With prefixes, names of folders are those of shards and not categories.
    if is_prefixed or any(image.label for *_, image in images):
        listing.labels = {name: image.label for name, *_, image in images}
    listing.stored = StoredFiles(
        where=str(where),
        locations=tuple(_location(file, shard, image) for _, file, shard, image in images),
        states=tuple(f"{shard.state}-{image.start}" for *_, shard, image in images),
        order=np.array(order, dtype=np.int64),
    )
    return listing


def _location(file: str, shard: ShardIndex, image: ShardImage) -> str:
    """Return the location of an image, as `read_stored` takes it."""
    if shard.column is not None:
        return row_of(file, image.start, shard.column)
    return f"range:{image.start}:{image.n_bytes}:{file}"


def find_shards(where: Place) -> list[str]:
    """Return the files that a pattern matches, including compressed ones, which are refused."""
    fixed, rest = _split_pattern(where)
    names = expand_braces(rest)
    if "*" not in rest:
        return [fixed + name for name in names]
    files = set[str]()
    for name in names:
        for file in _files_below(fixed + name.partition("*")[0].rpartition("/")[0]):
            plain = COMPRESSED.sub("", file.removeprefix(fixed).lower())
            if fnmatchcase(plain, name.lower()):
                files.add(file)
    if not files:
        raise DataError(f"{where}: no such shards; give a pattern like 'shards-{{000..012}}.tar'")
    return sorted(files)


def expand_braces(pattern: str) -> list[str]:
    """Return the names that a pattern like `shards-{000..012}.tar` or `{train,test}.tar` means."""
    parts = BRACES.split(pattern)
    choices = [[part] for part in parts]
    choices[1::2] = [_choices(part, pattern) for part in parts[1::2]]  # those in braces
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(part: str, pattern: str) -> list[str]:
    """Return the expansion of a pair of braces: a range of numbers, or a list."""
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", part)
    if numbers is None:
        return part.split(",")
    first, last = map(int, numbers.groups())
    if not 0 <= last - first < MAX_SHARDS:
        raise DataError(
            f"{pattern}: found the range {part}, expected the smaller number first, as in "
            "{000..012}"
        )
    return [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]


def _split_pattern(where: Place) -> tuple[str, str]:
    """Return the existing folder or file that a pattern starts with, and the rest.

    The names of existing folders may contain braces.
    """
    if isinstance(where, Address):
        return "", str(where)
    existing = next(str(path) for path in (where, *where.parents) if path.exists())
    return existing, str(where).removeprefix(existing)


def _files_below(start: str) -> list[str]:
    """Return every file below a folder or an address, without hidden ones."""
    folder = absolute(start or "/")
    if isinstance(folder, Address):
        with reading(folder):
            below = [name for name, _ in list_remote(folder)]
    else:
        below = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    return [str(folder / name) for name in below if not is_hidden(name)]


def _index(file: str, image_column: str | None, label_column: str | None) -> ShardIndex:
    """Return the index of a shard, from the cache if the shard has not changed."""
    address = as_address(file)
    state = remote_state(address) if address else file_state(file)
    if state is None:
        raise DataError(f"{file}: no such shard; give existing ones")
    identity = f"{VERSION}\n{file}\n{image_column}\n{label_column}"
    cached = cache_folder() / "shards" / folder_name(PurePath(file).name, identity) / "index.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged
        index = ShardIndex(**json.loads(cached.read_text(encoding="utf-8")))
        if index.state == state:
            index.images = [ShardImage(*image) for image in index.images]
            return index
    if COMPRESSED.search(file.lower()):
        raise DataError(
            f"{file}: is compressed, so images cannot be read one by one; unpack it to a .tar file"
        )
    with reading(absolute(file), "shard"):
        if absolute(file).suffix.lower() == ".parquet":
            index = _index_parquet(file, image_column, label_column)
        else:
            index = _index_tar(file, label_column)
    index.state = state
    with suppress(ShoalError):  # a cache that cannot be written only costs time
        make_folder(cached.parent)
        write_text(cached, json.dumps(asdict(index)))
    return index


def is_stored_source(where: str) -> bool:
    """Return whether a run's images are on a network or in shards, by its `root`."""
    return bool(where) and (as_address(where) is not None or is_shards(where))


def location_finder(where: str) -> Callable[[str], str]:
    """Return a function from the name of an image to its location, as `read_stored` takes it.

    Shards are listed once, at the first call.
    """

    @cache
    def locations() -> dict[str, str]:
        listing = read_shards(where, allow_missing=True)
        assert listing.stored is not None
        return dict(zip(listing.names, listing.stored.locations, strict=True))

    def find_in_shards(name: str) -> str:
        if name not in locations():
            raise DataError(f"the image is no longer in {where}")
        return locations()[name]

    def find_below(name: str) -> str:
        inside = posixpath.normpath(name)
        if why_unfit(inside) is not None:
            raise DataError("the path leads out of the collection")
        return f"{where.removesuffix('/')}/{inside}"

    return find_in_shards if is_shards(where) else find_below


# Parquet


def _has_images(file: str, chosen: str | None) -> bool:
    """Return whether a parquet file has a column of images, by its schema."""
    try:
        with reading(absolute(file)), open_parquet(file) as parquet:
            return _image_column(parquet.schema_arrow, chosen) is not None
    except DataError:  # reading it as a table will report it
        return False


def _index_parquet(file: str, image_column: str | None, label_column: str | None) -> ShardIndex:
    """Index a parquet shard.

    A label that is a number has the name that the file's metadata gives it. Images are named by
    their path if every row has a different one, else by their row.
    """
    with open_parquet(file) as parquet:
        schema = parquet.schema_arrow
        column = _image_column(schema, image_column)
        if column is None:
            raise DataError(
                f"{file}: no column of images {image_column or ''} (a struct of bytes and path, or "
                f"bytes: {', '.join(IMAGE_COLUMNS)}); found {', '.join(schema.names)}; name it "
                "with --path-column"
            )
        features = _features(schema)
        labels = pick_column(schema.names, LABEL_COLUMNS, label_column, file)
        numbered = [name for name in features if features[name].get("_type") == "ClassLabel"]
        if labels is None and len(numbered) == 1:
            labels = numbered[0]
        cells: list[object] = [None] * parquet.metadata.num_rows
        if labels is not None:
            cells = parquet.read([labels]).column(0).to_pylist()
        paths: list[str | None] = []
        if _is_image_struct(schema.field(column).type):
            paths = parquet.read([f"{column}.path"]).flatten().column(0).to_pylist()
            column = f"{column}.bytes"
    names = [str(path) for path in paths if path and not why_unfit(path)]
    if len(set(names)) < len(cells):
        names = [f"{row:08d}" for row in range(len(cells))]
    classes = features.get(labels or "", {}).get("names") or []
    for row, label in enumerate(cells):
        if isinstance(label, int) and 0 <= label < len(classes):
            cells[row] = str(classes[label])
    found = class_names(cells, lambda row: f"{file}, row {row}")
    images = [
        ShardImage(name, row, -1, label)
        for row, (name, label) in enumerate(zip(names, found, strict=True))
    ]
    return ShardIndex(column=column, images=images)


def _image_column(schema: "Schema", chosen: str | None) -> str | None:
    """Return the column of images: the chosen one, an accepted name, or the only struct."""
    structs: list[str] = [column.name for column in schema if _is_image_struct(column.type)]
    binary = [column.name for column in schema if str(column.type) in ("binary", "large_binary")]
    usable = structs + [name for name in binary if name in IMAGE_COLUMNS]
    names: tuple[str, ...] = IMAGE_COLUMNS
    if chosen is not None:
        names = (chosen,)
    elif len(structs) == 1:
        names = (*IMAGE_COLUMNS, structs[0])
    return next((name for name in names if name in usable), None)


def _is_image_struct(kind: "DataType") -> bool:
    import pyarrow

    return pyarrow.types.is_struct(kind) and {"bytes", "path"} <= {part.name for part in kind}


def _features(schema: "Schema") -> dict[str, dict[str, Any]]:
    """Return the metadata of Hugging Face's `datasets` about the columns."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


# Tar


def _index_tar(file: str, label_column: str | None) -> ShardIndex:
    """Index a tar shard; JSON members hold the label under the chosen or an accepted name."""
    keys: tuple[str, ...] = LABEL_COLUMNS
    if label_column is not None:
        keys = (label_column.casefold(),)
    index = ShardIndex()
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, object] = {}  # by member; an exception if it cannot be read
    with (
        open_file(file) as content,
        tarfile.open(fileobj=content, mode="r:", errorlevel=2) as shard,
    ):
        for member in shard:
            if member.size < 0:  # tarfile would seek backward forever
                raise tarfile.ReadError("a member of negative size")
            name = "/".join(part for part in member.name.split("/") if part != ".")
            suffix = PurePosixPath(name).suffix.lower()
            if member.isdir() or is_hidden(name):
                continue
            if suffix in IMAGE_SUFFIXES:
                reason = why_unfit(name)
                if member.issparse() or not member.isreg():
                    reason = "not a regular file"
                elif name in images:
                    reason = "the shard holds this name twice; the first is used"
                if reason is None:
                    images[name] = member
                else:
                    index.left_out[ascii(name)[1:-1]] = reason
            elif suffix in LABEL_SUFFIXES:
                key = name[: -len(suffix)] + suffix
                try:
                    label = _read_label(shard, member, suffix, keys)
                    if label is not None and labels.get(key, label) != label:
                        raise ValueError(f"the shard holds two, {label!r} and another")
                except (ValueError, KeyError, RecursionError) as error:
                    label = error
                if label is not None:
                    labels[key] = label
        _check_end(content, shard.offset)
    names = list(images)
    of_images = [
        next((labels[key] for key in _label_members(name) if key in labels), None) for name in names
    ]
    for name, label in zip(names, of_images, strict=True):
        if isinstance(label, Exception):
            raise DataError(
                f"{file}: the label of {name} cannot be read ({one_line(label)}); create the shard "
                "again"
            )
    classes = class_names(of_images, lambda i: f"{file}: the label of {names[i]}")
    index.images = [
        ShardImage(name, images[name].offset_data, images[name].size, label)
        for name, label in zip(names, classes, strict=True)
    ]
    return index


def _read_label(
    shard: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, keys: Sequence[str]
) -> object:
    """Return the text or number that a member holds as a label, or None if it holds none.

    Raise ValueError if it cannot be read.
    """
    is_caption = suffix == CAPTION
    if member.size > MAX_LABEL_BYTES:
        if is_caption:
            return None
        raise ValueError(f"more than {MAX_LABEL_BYTES:,} bytes")
    file = shard.extractfile(member)  # follows links inside the shard
    if file is None:  # a device
        return None
    text = file.read().decode("utf-8-sig").strip()
    if not text or (is_caption and len(text.splitlines()) > 1):
        return None
    if suffix != ".json":
        return text
    label: object = json.loads(text)
    if not isinstance(label, dict):
        return label
    by_name = {str(key).strip().casefold(): value for key, value in label.items()}
    return next((by_name[key] for key in keys if key in by_name), None)


def _label_members(name: str) -> list[str]:
    """Return the members that may hold the label of an image, in order of preference.

    Their key is the image's name without its last suffix or, as in WebDataset, without all.
    """
    folder, slash, base = name.rpartition("/")
    stems = (name.removesuffix(PurePosixPath(name).suffix), folder + slash + base.split(".")[0])
    return [stem + suffix for stem in stems for suffix in LABEL_SUFFIXES]


def _check_end(file: BinaryIO, offset: int) -> None:
    """Raise an error if anything but zeros follows the last member: `tarfile` stops there."""
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
    if not block:
        raise tarfile.ReadError(f"truncated at byte {offset:,}")
    while block:
        if block.strip(b"\0"):
            raise tarfile.ReadError(f"a damaged header at byte {offset:,}")
        block = file.read(1 << 20)
