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
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import quote

import numpy as np

from shoal.data.collection import StoredFiles
from shoal.data.pixels.loading import file_state, folder_name
from shoal.data.readers.folders import IMAGE_SUFFIXES, SHARD_SUFFIXES, Listing, is_hidden
from shoal.data.readers.tables import LABEL_COLUMNS, class_names, pick_column
from shoal.data.storage import (
    N_REQUESTS,
    Address,
    Location,
    Lost,
    Place,
    absolute,
    as_address,
    list_remote,
    open_file,
    open_parquet,
    reading,
    remote_state,
    why_unfit,
)
from shoal.errors import DataError, ShoalError, one_line
from shoal.files import cache_folder, make_folder, write_text

if TYPE_CHECKING:
    from pyarrow import DataType, Schema

# Version of the cached indexes; a new one invalidates them
VERSION = 11

BRACES = re.compile(r"\{([^{}]*)\}")
SPECIAL = re.compile(r"[{*]")
MAX_SHARDS = 1_000_000

# Accepted names of the image column, in order of preference; a column of plain bytes must have one
# of them
IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "picture", "photo")

CAPTION = ".txt"

# Suffixes of members that may hold a label, in order of preference. A .txt member of several lines
# is a caption, not a label, and so is a member of more than `MAX_LABEL_BYTES`.
LABEL_SUFFIXES = (".cls", ".json", CAPTION)

MAX_LABEL_BYTES = 1 << 20


class ShardImage(NamedTuple):
    """One image of a shard."""

    name: str
    # Where its bytes are, in the form that `read_stored` expects
    location: str
    # A key that changes whenever the shard does, with the place of the image in it
    state: str
    # Its class; None for unlabeled
    label: str | None


# The images of a shard in order; those that cannot be used, and why
Index = tuple[list[ShardImage], dict[str, str]]


def is_shards(location: Location, image_column: str | None = None) -> bool:
    """Return whether a location means shards: a tar file, a parquet file with images, or several of
    them by braces or a star."""
    where = absolute(location)
    suffix = where.suffix.lower()
    if suffix not in SHARD_SUFFIXES or Path(where).is_dir():
        return False
    if suffix == ".parquet" and SPECIAL.search(_split_pattern(where)[1]) is None:
        return _has_images(str(where), image_column)
    return True


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

    def index(file: str) -> Index:
        try:
            return _index(file, image_column, label_column)
        except DataError as error:
            if isinstance(error.__cause__, Lost):  # only the connection failed
                raise
            if not allow_missing:
                raise DataError(f"{error}, or leave the shard out with --allow-missing") from error
            return [], {PurePath(file).name: f"none of its images is read: {error}"}

    with ThreadPoolExecutor(N_REQUESTS) as threads:
        indexes = list(threads.map(index, files))
    names = [image.name for found, _ in indexes for image in found]
    # If shards share names, as with numbered rows, images are named by their shard too.
    is_prefixed = len(set(names)) < len(names)
    folder = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    images: list[ShardImage] = []
    for file, (found, left_out) in zip(files, indexes, strict=True):
        prefix = ""
        if is_prefixed and found:
            prefix = f"{os.path.splitext(os.path.relpath(file, folder))[0]}/"  # noqa: PTH122
        listing.left_out |= {prefix + name: reason for name, reason in left_out.items()}
        images += [image._replace(name=prefix + image.name) for image in found]
    if not images:
        reason = "no images (jpg, png, webp, tif, bmp, gif or heic)"
        reason = next(iter(listing.left_out.values()), reason)
        raise DataError(f"{where}: {reason}; give other shards")
    listing.finish()
    # Images are sorted by name, and read in the order of the shards.
    order = sorted(range(len(images)), key=lambda i: images[i].name)
    images = [images[i] for i in order]
    listing.names = [image.name for image in images]
    # With prefixes, folders are shards, not categories: labels are set even if all are None, so
    # that folder names are not read as labels.
    if is_prefixed or any(image.label for image in images):
        listing.labels = {image.name: image.label for image in images}
    listing.stored = StoredFiles(
        where=str(where),
        locations=tuple(image.location for image in images),
        states=tuple(image.state for image in images),
        order=np.array(order, dtype=np.int64),
    )
    return listing


def find_shards(where: Place) -> list[str]:
    """Return the files that a pattern matches; a star matches no hidden ones."""
    fixed, rest = _split_pattern(where)
    names = expand_braces(rest)
    files = [fixed + name for name in names]
    if "*" in rest:
        folder = absolute(fixed + SPECIAL.split(rest)[0].rpartition("/")[0] or "/")
        if isinstance(folder, Address):
            with reading(folder):
                below = [name for name, _ in list_remote(folder)]
        else:
            below = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
        patterns = [name.lower() for name in names]
        files = []
        for file in sorted(str(folder / name) for name in below if not is_hidden(name)):
            name = file.removeprefix(fixed).lower()
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                files.append(file)
    if not files:
        raise DataError(f"{where}: no such shards; give a pattern like 'shards-{{000..012}}.tar'")
    return files


def expand_braces(pattern: str) -> list[str]:
    """Return the names that a pattern like `shards-{000..012}.tar` or `{train,test}.tar` means."""
    parts = BRACES.split(pattern)
    choices = [[part] for part in parts]
    choices[1::2] = [_choices(part) for part in parts[1::2]]  # those in braces
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(part: str) -> list[str]:
    """Return the expansion of a pair of braces: a range of numbers, or a list."""
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", part)
    if numbers is None:
        return part.split(",")
    first, last = map(int, numbers.groups())
    if last - first > MAX_SHARDS:
        return []
    return [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]


def _split_pattern(where: Place) -> tuple[str, str]:
    """Return the existing folder or file that a pattern starts with, and the rest.

    The names of existing folders may contain braces.
    """
    if isinstance(where, Address):
        return "", str(where)
    existing = next(str(path) for path in (where, *where.parents) if path.exists())
    return existing, str(where).removeprefix(existing)


def _index(file: str, image_column: str | None, label_column: str | None) -> Index:
    """Return the index of a shard, from the cache if the shard has not changed."""
    address = as_address(file)
    state = remote_state(address) if address else file_state(file)
    if state is None:
        raise DataError(f"{file}: no such shard; give existing ones")
    identity = f"{VERSION}\n{file}\n{state}\n{image_column}\n{label_column}"
    cached = cache_folder() / "shards" / folder_name(PurePath(file).name, identity) / "index.json"
    with suppress(OSError, ValueError, TypeError):  # missing or damaged
        images, left_out = json.loads(cached.read_text(encoding="utf-8"))
        return [ShardImage(*image) for image in images], left_out
    with reading(absolute(file), "shard"):
        if absolute(file).suffix.lower() == ".parquet":
            index = _index_parquet(file, state, image_column, label_column)
        else:
            index = _index_tar(file, state, label_column)
    with suppress(ShoalError):  # a cache that cannot be written only costs time
        make_folder(cached.parent)
        write_text(cached, json.dumps(index))
    return index


def is_stored_source(where: str) -> bool:
    """Return whether the images of a run whose root is `where` are on a network or in shards."""
    return bool(where) and (as_address(where) is not None or is_shards(where))


def location_finder(where: str) -> Callable[[str], str]:
    """Return a function from the name of an image to its location, in the form that `read_stored`
    expects.

    Shards are listed once, at the first call.
    """

    if not is_shards(where):

        def find_below(name: str) -> str:
            inside = posixpath.normpath(name)
            if why_unfit(inside) is not None:
                raise DataError("the path leads out of the collection")
            return f"{where.removesuffix('/')}/{inside}"

        return find_below

    @cache
    def locations() -> dict[str, str]:
        listing = read_shards(where, allow_missing=True)
        assert listing.stored is not None
        return dict(zip(listing.names, listing.stored.locations, strict=True))

    def find_in_shards(name: str) -> str:
        if name not in locations():
            raise DataError(f"the image is no longer in {where}")
        return locations()[name]

    return find_in_shards


# Parquet


def _has_images(file: str, chosen: str | None) -> bool:
    """Return whether a parquet file has a column of images, by its schema."""
    # Reading it as a table will report an error.
    with suppress(DataError), reading(absolute(file)), open_parquet(file) as parquet:
        return _image_column(parquet.schema_arrow, chosen) is not None
    return False


def _index_parquet(
    file: str, state: str, image_column: str | None, label_column: str | None
) -> Index:
    """Index a parquet shard.

    A label that is a number has the name that the file's metadata gives it. Images are named by
    their path if every row has a different one, else by their row.
    """
    with open_parquet(file) as parquet:
        schema = parquet.schema_arrow
        column = _image_column(schema, image_column)
        if column is None:
            raise DataError(
                f"{file}: no column of images (a struct of bytes and path, or bytes in a "
                f"column named {', '.join(IMAGE_COLUMNS)}); found {', '.join(schema.names)}; name "
                "it with --path-column"
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
    images = []
    for row, (name, label) in enumerate(zip(names, found, strict=True)):
        location = f"row:{row}:{quote(column, safe='')}:{file}"
        images.append(ShardImage(name, location, f"{state}-{row}", label))
    return images, {}


def _image_column(schema: "Schema", chosen: str | None) -> str | None:
    """Return the column of images: the chosen one, an accepted name, or the only struct."""
    structs = [column.name for column in schema if _is_image_struct(column.type)]
    usable = set(structs)
    for column in schema:
        if column.name in IMAGE_COLUMNS and str(column.type) in ("binary", "large_binary"):
            usable.add(column.name)
    if chosen is not None:
        return chosen if chosen in usable else None
    found = [name for name in IMAGE_COLUMNS if name in usable]
    if not found and len(structs) == 1:
        found = structs
    return next(iter(found), None)


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


def _index_tar(file: str, state: str, label_column: str | None) -> Index:
    """Index a tar shard; JSON members hold the label under the chosen or an accepted name."""
    keys: tuple[str, ...] = LABEL_COLUMNS
    if label_column is not None:
        keys = (label_column.casefold(),)
    left_out: dict[str, str] = {}
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
                    left_out[ascii(name)[1:-1]] = reason
            elif suffix in LABEL_SUFFIXES:
                key = name[: -len(suffix)] + suffix
                try:
                    label = _read_label(shard, member, suffix, keys)
                    if label is not None and labels.setdefault(key, label) != label:
                        raise ValueError(f"the shard holds two, {label!r} and another")
                except (ValueError, KeyError, RecursionError) as error:
                    labels[key] = error
        _check_end(content, shard.offset)
    names = list(images)
    of_images: list[object] = []
    for name in names:
        label = next((labels[key] for key in _label_members(name) if key in labels), None)
        if isinstance(label, Exception):
            raise DataError(
                f"{file}: the label of {name} cannot be read ({one_line(label)}); create the shard "
                "again"
            )
        of_images.append(label)
    found = []
    classes = class_names(of_images, lambda i: f"{file}: the label of {names[i]}")
    for (name, member), label in zip(images.items(), classes, strict=True):
        start = member.offset_data
        location = f"range:{start}:{member.size}:{file}"
        found.append(ShardImage(name, location, f"{state}-{start}", label))
    return found, left_out


def _read_label(
    shard: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, keys: Sequence[str]
) -> object:
    """Return the text or number that a member holds as a label, or None if it holds none.

    Raise ValueError if it cannot be read.
    """
    file = shard.extractfile(member)  # follows links inside the shard
    if file is None or member.size > MAX_LABEL_BYTES:  # a device, or a caption
        return None
    text = file.read().decode("utf-8-sig").strip()
    if not text or (suffix == CAPTION and len(text.splitlines()) > 1):
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

    Their key is the image's name without its last suffix or, as in WebDataset, without all of its
    suffixes.
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
