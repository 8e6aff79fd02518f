"""Read shards as one collection: tar files as WebDataset names their members, parquet files as
Hugging Face writes them, local or on a network.

In a tar shard KEY.jpg is an image and KEY.cls, KEY.json or KEY.txt its label; a parquet shard has a
column of images (bytes and path) and one of labels. Only headers, labels and paths are read here;
an image's bytes are read when it is decoded.
"""

import hashlib
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

from shoal.data.pixels.store import file_state
from shoal.data.readers.folders import IMAGE_SUFFIXES, SHARD_SUFFIXES, Listing, is_hidden
from shoal.data.readers.labels import class_names, why_no_label
from shoal.data.readers.tables import LABEL_COLUMNS, pick_column
from shoal.data.storage.addresses import Address, absolute, as_address, why_unfit
from shoal.data.storage.opening import open_file, open_parquet, row_of
from shoal.data.storage.remote import (
    N_REQUESTS,
    Lost,
    explain_store,
    list_remote,
    remote_state,
)
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError, MissingError, ShoalError
from shoal.files import cache_folder, make_folder, write_text
from shoal.text import one_line
from shoal.words import count, first_few

if TYPE_CHECKING:
    from pyarrow import DataType, Schema

VERSION = 9
"""Version of the cached indexes; a new one invalidates them."""

COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
BRACES = re.compile(r"\{([^{}]*)\}")
MAX_SHARDS = 1_000_000

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "picture", "photo")
"""Accepted names of the column of images, if several are possible."""

CAPTION = ".txt"
LABEL_SUFFIXES = (".cls", ".json", CAPTION)
"""Suffixes of members that may hold a label, in order of preference. A .txt member of several lines
or of more than `MAX_LABEL_BYTES` is a caption, not a label."""

MAX_LABEL_BYTES = 1 << 20

BROKEN_TAR = (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError)
"""Errors of reading a damaged tar file."""

REMEDY = "; copy or create it again"
"""What to do about a damaged shard."""


class ShardImage(NamedTuple):
    """One image of a shard."""

    name: str
    start: int
    """Its first byte in a tar shard, its row in a parquet shard."""
    n_bytes: int
    """-1 if unknown."""
    label: object
    """A text or a number as in the shard; None for unlabeled."""


@dataclass
class ShardIndex:
    """The images of one shard in order."""

    images: list[ShardImage] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Images that cannot be used, and why."""
    column: str | None = None
    """The column of images in a parquet shard."""
    damage: str = ""
    """Why the shard cannot be read, or empty."""


def is_shards(location: str | os.PathLike[str], image_column: str | None = None) -> bool:
    """Return whether a location means shards: a tar file, a parquet file with images, or several of
    them by braces or a star."""
    if Path(location).is_dir():
        return False
    where = absolute(location)
    name = _lower_name(location)
    if name.endswith((".tar", *COMPRESSED)):
        return True
    is_pattern = re.search(r"[{*]", _split_pattern(where)[1]) is not None
    return name.endswith(SHARD_SUFFIXES) and (is_pattern or _has_images(str(where), image_column))


def read_shards(
    pattern: str | os.PathLike[str],
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
) -> Listing:
    """List the images of shards, with their labels.

    A shard that is damaged, or has a label that cannot be read, is an error unless `allow_missing`;
    then it is left out.
    """
    where = absolute(pattern)
    files = find_shards(where)

    def index(file: str, state: str | None) -> ShardIndex:
        try:
            return _index(file, str(state), image_column, label_column)
        except DataError as error:
            if isinstance(error.__cause__, Lost):  # only the connection failed
                raise
            if not allow_missing:
                raise DataError(f"{error}, or leave the shard out with --allow-missing") from error
            return ShardIndex(damage=str(error).removeprefix(f"{file}: ").removesuffix(REMEDY))

    with ThreadPoolExecutor(N_REQUESTS) as threads:
        states = list(threads.map(_shard_state, files))
        absent = [
            PurePath(file).name for file, state in zip(files, states, strict=True) if not state
        ]
        if absent:
            raise DataError(
                f"{where}: {len(absent):,} of {count(len(files), 'shard')} missing "
                f"({first_few(absent)}); give existing ones"
            )
        indexes = list(threads.map(index, files, states))
    listing = Listing(where)
    for file, shard in zip(files, indexes, strict=True):
        if shard.damage:
            listing.left_out[PurePath(file).name] = f"{shard.damage}, so none of its images is read"
    columns = {shard.column for shard in indexes if shard.images}
    if len(columns) != 1:
        reason = "no images (jpg, png, webp, tif, bmp, gif or heic), or in different columns"
        reason = next(iter(listing.left_out.values()), reason)
        raise DataError(f"{where}: {reason}; give other shards")
    images = [(i, image) for i, shard in enumerate(indexes) for image in shard.images]
    # If shards share names, as with numbered rows, images are named by their shard too.
    is_prefixed = len({image.name for _, image in images}) < len(images)
    prefixes = [""] * len(files)
    if is_prefixed:
        folder = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
        prefixes = [
            f"{os.path.splitext(os.path.relpath(file, folder))[0]}/"  # noqa: PTH122
            for file in files
        ]
    for prefix, shard in zip(prefixes, indexes, strict=True):
        listing.left_out |= {prefix + name: reason for name, reason in shard.left_out.items()}
    listing.finish()
    if is_prefixed:
        listing.notes.append("shards share names of images, so names start with that of the shard")
    # Images are sorted by name, and read in the order of the shards.
    order = sorted(range(len(images)), key=lambda n: prefixes[images[n][0]] + images[n][1].name)
    images = [images[n] for n in order]
    listing.names = [prefixes[i] + image.name for i, image in images]
    # With prefixes, names of folders are those of shards and not categories.
    if is_prefixed or any(image.label is not None for _, image in images):
        labels = class_names(
            [image.label for _, image in images],
            lambda i: f"{where}, label of {listing.names[i]}",
        )
        listing.labels = dict(zip(listing.names, labels, strict=True))
    column = columns.pop()
    listing.stored = StoredFiles(
        where=str(where),
        locations=tuple(_location(files[i], image, column) for i, image in images),
        states=tuple(f"{states[i]}-{image.start}" for i, image in images),
        order=np.array(order, dtype=np.int64),
    )
    return listing


def _location(file: str, image: ShardImage, column: str | None) -> str:
    """Return the location of an image, as `read_stored` takes it."""
    if column is not None:
        return row_of(file, image.start, column)
    return f"range:{image.start}:{image.n_bytes}:{file}"


def find_shards(where: Path | Address) -> list[str]:
    """Return the files that match a pattern, including compressed ones."""
    fixed, rest = _split_pattern(where)
    names = expand_braces(rest)
    if "*" not in rest:
        return [fixed + name for name in names]
    files = set[str]()
    for name in names:
        patterns = [name.lower()]
        if name.lower().endswith(".tar"):  # compressed shards are found to be refused
            patterns += [patterns[0].removesuffix(".tar") + suffix for suffix in COMPRESSED]
        for file in _files_below(fixed + name.partition("*")[0].rpartition("/")[0]):
            rest_of_file = file.removeprefix(fixed).lower()
            if any(fnmatchcase(rest_of_file, pattern) for pattern in patterns):
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
    first, last = numbers.groups()
    if not 0 <= int(last) - int(first) < MAX_SHARDS:
        raise DataError(
            f"{pattern}: found the range {part}, expected the smaller number first, as in "
            "{000..012}"
        )
    width = 0
    if first.startswith("0"):
        width = max(len(first), len(last))
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]


def _split_pattern(where: Path | Address) -> tuple[str, str]:
    """Return the existing folder or file that a pattern starts with, and the rest.

    The names of existing folders may contain braces.
    """
    if isinstance(where, Address):
        return "", str(where)
    existing = next(str(path) for path in (where, *where.parents) if path.exists())
    return existing, str(where).removeprefix(existing)


def _files_below(start: str) -> list[str]:
    """Return every file below a folder or an address, without hidden ones."""
    address = as_address(start)
    if address is None:
        folder = start or "/"
        below = [str(file) for file in Path(folder).rglob("*") if file.is_file()]
    else:
        folder = str(address)
        with explain_store(address):
            below = [f"{address}/{name}" for name, _ in list_remote(address)]
    return [file for file in below if not is_hidden(file.removeprefix(folder))]


def _lower_name(location: str | os.PathLike[str]) -> str:
    """Return a location in lower case, an address without its query."""
    text = os.fspath(location).lower()
    if as_address(location) is not None:
        text = text.partition("?")[0]
    return text


def _shard_state(file: str) -> str | None:
    """Return what changes with a shard; None if it does not exist."""
    address = as_address(file)
    if address is None:
        return file_state(file)
    return remote_state(address)


def _index(file: str, state: str, image_column: str | None, label_column: str | None) -> ShardIndex:
    """Return the index of a shard, from the cache if the shard has not changed."""
    identity = f"{VERSION}\n{file}\n{image_column}\n{label_column}"
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", PurePath(file).name)[:80]
    folder = cache_folder() / "shards" / f"{name}-{digest}"
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged
        cached = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        if cached["state"] == state:
            index = ShardIndex(**cached["index"])
            index.images = [ShardImage(*image) for image in index.images]
            return index
    index = _make_index(file, image_column, label_column)
    with suppress(ShoalError):  # a cache that cannot be written only costs time
        make_folder(folder)
        content = {"state": state, "index": asdict(index)}
        write_text(folder / "index.json", json.dumps(content, default=str))
    return index


def _make_index(file: str, image_column: str | None, label_column: str | None) -> ShardIndex:
    if _lower_name(file).endswith(COMPRESSED):
        raise DataError(
            f"{file}: is compressed, so images cannot be read one by one; unpack it to a .tar file"
        )
    try:
        with explain_store(as_address(file)):
            if _lower_name(file).endswith(".parquet"):
                return _index_parquet(file, image_column, label_column)
            keys: tuple[str, ...] = LABEL_COLUMNS
            if label_column is not None:
                keys = (label_column.casefold(),)
            with open_file(file) as shard:
                return _index_tar(shard, file, keys)
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read ({error.strerror or error}); check the permissions"
        ) from error


def is_stored_source(where: str) -> bool:
    """Return whether a run's images are on a network or in shards, by its `root`."""
    return bool(where) and (as_address(where) is not None or is_shards(where))


def location_finder(where: str) -> Callable[[str], str]:
    """Return a function from the name of an image to its location, as `read_stored` takes it.

    Shards are listed once, at the first call.
    """
    in_shards = is_shards(where)

    @cache
    def locations() -> dict[str, str]:
        listing = read_shards(where, allow_missing=True)
        assert listing.stored is not None
        return dict(zip(listing.names, listing.stored.locations, strict=True))

    def find(name: str) -> str:
        if in_shards:
            if name not in locations():
                raise DataError(f"the image is no longer in {where}")
            return locations()[name]
        inside = posixpath.normpath(name)
        if why_unfit(inside) is not None:
            raise DataError("the path leads out of the collection")
        return f"{where.removesuffix('/')}/{inside}"

    return find


# Parquet


def _has_images(file: str, chosen: str | None) -> bool:
    """Return whether a parquet file has a column of images, by its schema."""
    try:
        with explain_store(as_address(file)), open_parquet(file) as parquet:
            return _image_column(parquet.schema_arrow, chosen) is not None
    except (DataError, MissingError):
        raise
    except (OSError, ValueError):  # also pyarrow's errors; reading the table will report them
        return False


def _index_parquet(file: str, image_column: str | None, label_column: str | None) -> ShardIndex:
    """Index a parquet shard.

    A label that is a number has the name that the file's metadata gives it. Images are named by
    their path if every row has a different one, else by their row.
    """
    import pyarrow

    try:
        with open_parquet(file) as parquet:
            schema = parquet.schema_arrow
            column = _image_column(schema, image_column)
            if column is None:
                raise DataError(
                    f"{file}: no column of images {image_column or ''} (a struct of bytes and "
                    f"path, or bytes: {', '.join(IMAGE_COLUMNS)}); found "
                    f"{', '.join(schema.names)}; name it with --path-column"
                )
            labels = _label_column(file, schema, label_column)
            cells: list[object] = [None] * parquet.metadata.num_rows
            if labels is not None:
                cells = parquet.read([labels]).column(0).to_pylist()
            paths: list[str | None] = []
            if _is_image_struct(schema.field(column).type):
                structs = parquet.read([f"{column}.path"]).column(0).to_pylist()
                paths = [struct and struct["path"] for struct in structs]
                column = f"{column}.bytes"
    except Lost:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: cannot be read as a parquet shard ({error}){REMEDY}") from error
    fit = {path for path in paths if path and not why_unfit(path)}
    index = ShardIndex(column=column)
    has_names = len(fit) == len(cells)
    classes = _features(schema).get(labels or "", {}).get("names") or []
    for row, label in enumerate(cells):
        name = str(paths[row]) if has_names else f"{row:08d}"
        if isinstance(label, int) and 0 <= label < len(classes):
            label = str(classes[label])
        reason = why_no_label(label)
        if reason is not None:
            raise DataError(
                f"{file}, row {row}: the label of {name} cannot be read ({reason}){REMEDY}"
            )
        index.images.append(ShardImage(name, row, -1, label))
    return index


def _image_column(schema: "Schema", chosen: str | None) -> str | None:
    """Return the column of images: the chosen one, an accepted name, or the only struct."""
    structs: list[str] = [column.name for column in schema if _is_image_struct(column.type)]
    binary = [column.name for column in schema if str(column.type) in ("binary", "large_binary")]
    usable = structs + [name for name in binary if name in IMAGE_COLUMNS]
    if chosen is not None:
        return next((name for name in usable if name == chosen), None)
    for name in IMAGE_COLUMNS:
        if name in usable:
            return name
    if len(structs) == 1:
        return structs[0]
    return None


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


def _label_column(file: str, schema: "Schema", chosen: str | None) -> str | None:
    column = pick_column(schema.names, LABEL_COLUMNS, chosen, file)
    features = _features(schema)
    numbered = [name for name in features if features[name].get("_type") == "ClassLabel"]
    if column is None and len(numbered) == 1:
        return numbered[0]
    return column


# Tar


def _index_tar(file: BinaryIO, where: str, keys: Sequence[str]) -> ShardIndex:
    """Index a tar shard; JSON members hold the label under one of the `keys`."""
    index = ShardIndex()
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, object] = {}  # by member; an exception if it cannot be read
    try:
        with tarfile.open(fileobj=file, mode="r:", errorlevel=2) as shard:
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
            _check_end(file, shard.offset)
    except BROKEN_TAR as error:
        raise DataError(f"{where}: cannot be read as a tar shard ({error}){REMEDY}") from error
    for name, member in images.items():
        label = next((labels[key] for key in _label_members(name) if key in labels), None)
        if isinstance(label, Exception):
            reason = one_line(label)
            raise DataError(f"{where}: the label of {name} cannot be read ({reason}){REMEDY}")
        index.images.append(ShardImage(name, member.offset_data, member.size, label))
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
    label: object = text
    if suffix == ".json":
        label = json.loads(text)
        if isinstance(label, dict):
            by_name = {str(key).strip().casefold(): value for key, value in label.items()}
            label = next((by_name[key] for key in keys if key in by_name), None)
    reason = why_no_label(label)
    if reason is not None:
        raise ValueError(reason)
    return label


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
