"""Shards: tar and parquet files that hold images, on this machine or on a network, as one
collection."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath

import numpy as np

from shoal.data.pixels.store import file_state
from shoal.data.readers.folders import Listing
from shoal.data.readers.parquet_shards import index_parquet
from shoal.data.readers.shard_index import AGAIN, Reasons, ShardImage, ShardIndex
from shoal.data.readers.shard_patterns import COMPRESSED, bare_name, find_shards
from shoal.data.readers.tables import LABEL_COLUMNS
from shoal.data.readers.tar_shards import index_tar
from shoal.data.storage.addresses import Address, absolute, as_address
from shoal.data.storage.opening import open_file
from shoal.data.storage.remote import N_AT_ONCE, asking, state_or_none
from shoal.data.storage.retries import Lost
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError, ShoalError
from shoal.files import cache_folder, make_folder, write_text
from shoal.words import count, first_few

VERSION = 6
"""Raised whenever an index is made in another way."""

UNPACK = "is compressed, so images cannot be read one by one; unpack it to a plain .tar file"


@dataclass(frozen=True, eq=False)
class ShardedImages:
    """The images of some shards."""

    where: str
    """The shards as they were given."""
    n_shards: int
    listing: Listing
    labels: dict[str, object] | None
    """Image name -> the label in the shards; None where they say nothing of labels."""
    is_prefixed: bool
    """Whether the name of its shard stands before that of an image."""


def read_shards(
    pattern: str | os.PathLike[str],
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
    needs_labels: bool = True,
) -> ShardedImages:
    """Find the images that lie in shards; where something of them is lost, that is an error unless
    it is allowed to be.

    What is lost is then left out: a shard that cannot be read, what follows a damaged header, or a
    label where those of the shards are needed.
    """
    where = absolute(pattern)
    if str(where).lower().endswith(COMPRESSED):
        raise DataError(f"{where}: {UNPACK}")
    files, compressed = find_shards(where)
    states = _states(where, files)

    def index(i: int) -> ShardIndex | str:
        try:
            return _index(files[i], states[i], image_column, label_column)
        except DataError as error:
            if isinstance(error.__cause__, Lost):  # all of it may be there again soon
                raise
            return str(error)

    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        results = list(threads.map(index, range(len(files))))
    indexes = {i: result for i, result in enumerate(results) if isinstance(result, ShardIndex)}
    if not indexes:
        more = f" (and so are the {len(files) - 1} other shards)" if len(files) > 1 else ""
        raise DataError(f"{results[0]}{more}")
    lost: dict[str, Reasons] = {}
    for file, result in zip(files, results, strict=True):
        reasons = _lost(file, result, needs_labels)
        if reasons:
            lost[file] = reasons
    if lost and not allow_missing:
        first, reasons = next(iter(lost.items()))
        more = f", and {len(reasons) - 1:,} more" if len(reasons) > 1 else ""
        others = f"; {count(len(lost) - 1, 'other shard')} too" if len(lost) > 1 else ""
        raise DataError(
            f"{first}: {reasons[0][1]}{more}{others}{AGAIN}, or go on without what is lost: "
            "--allow-missing "
            "(allow_missing=True in Python)"
        )
    return _joined(str(where), files, states, indexes, lost, compressed)


def _lost(file: str, result: ShardIndex | str, needs_labels: bool) -> Reasons:
    """What is lost of a shard: under its own name the part of it in words, and each label that
    cannot be read."""
    shard = PurePath(file).name
    if isinstance(result, str):
        reason = result.removeprefix(f"{file}: ").removesuffix(AGAIN)
        return [(shard, f"{reason}, so none of its images is read")]
    lost = [(shard, reason) for reason in result.damage]
    if needs_labels:
        lost += result.bad_labels
    return lost


def _joined(
    where: str,
    files: Sequence[str],
    states: Sequence[str],
    indexes: Mapping[int, ShardIndex],
    lost: Mapping[str, Reasons],
    compressed: Sequence[str],
) -> ShardedImages:
    """The images of all shards by name; where two shards use the same, or rows have none, the
    shard's is put before."""
    have_names = all(index.has_names for index in indexes.values())
    often = Counter(image.name for index in indexes.values() for image in index.images)
    is_prefixed = not have_names or any(n > 1 for n in often.values())
    columns = {index.column for index in indexes.values()}
    if len(columns) > 1:
        raise DataError(
            f"{where}: shards have their images in different columns; give shards of one kind"
        )
    folder = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    images: list[tuple[str, int, ShardImage]] = []
    members: Reasons = []
    for i, index in indexes.items():
        prefix = ""
        if is_prefixed:
            prefix = f"{os.path.splitext(os.path.relpath(files[i], folder))[0]}/"  # noqa: PTH122
        images += [(prefix + image.name, i, image) for image in index.images]
        members += [(prefix + name, reason) for name, reason in index.left_out]
    if not images:
        raise DataError(
            f"{where}: no images (jpg, png, webp, tif, bmp, gif or heic) in "
            f"{count(len(files), 'shard')}; give others"
        )
    images.sort(key=lambda row: row[0])
    unpack = [(PurePath(file).name, UNPACK) for file in compressed]
    damaged = [PurePath(file).name for file in lost]
    notes = []
    for names, noun, what in (
        (damaged, "shard", "damaged, in part or whole left out"),
        ([name for name, _ in members], "member", "of shards left out"),
        ([name for name, _ in unpack], "compressed shard", "left out, unpack to plain .tar files"),
    ):
        if names:
            notes.append(f"{count(len(names), noun)} {what}: {first_few(names)}")
    n_doubled = sum(index.n_doubled for index in indexes.values())
    if n_doubled:
        notes.append(
            f"{count(n_doubled, 'member')} with a name that its shard has already, the first is "
            "taken"
        )
    if is_prefixed and have_names:
        notes.append("shards share names of images, so the name of the shard is put before each")
    stored = StoredFiles(
        where=where,
        states=tuple(f"{states[i]}-{image.start}" for _, i, image in images),
        n_bytes=np.array([image.n_bytes for _, _, image in images], dtype=np.int64),
        shards=tuple(files),
        shard=np.array([i for _, i, _ in images], dtype=np.int64),
        starts=np.array([image.start for _, _, image in images], dtype=np.int64),
        column=columns.pop(),
    )
    left_out = sorted([*members, *unpack, *(one for reasons in lost.values() for one in reasons)])
    names_of_all = tuple(name for name, _, _ in images)
    labels = None
    if any(index.has_labels for index in indexes.values()):
        labels = {name: image.label for name, _, image in images}
    listing = Listing(names_of_all, (), tuple(notes), tuple(left_out), stored)
    return ShardedImages(where, len(files), listing, labels, is_prefixed)


def _states(where: Path | Address, files: Sequence[str]) -> list[str]:
    """The state of each shard; one that is not there is an error."""
    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        found = dict(zip(files, threads.map(_state, files), strict=True))
    absent = [PurePath(file).name for file, state in found.items() if state is None]
    if absent:
        raise DataError(
            f"{where}: {len(absent):,} of {count(len(files), 'shard')} not there "
            f"({first_few(absent)}); "
            "give those that are"
        )
    return [state for state in found.values() if state is not None]


def _state(file: str) -> str | None:
    address = as_address(file)
    if address is None:
        return file_state(file)
    state = state_or_none(address)
    return None if state is None else state.mark


def _index(file: str, state: str, image_column: str | None, label_column: str | None) -> ShardIndex:
    """The index of a shard, made now or kept from the last time, when the shard was as it is."""
    identity = f"{VERSION}\n{file}\n{image_column}\n{label_column}"
    digest = hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", PurePath(file).name)[:80]
    folder = cache_folder() / "shards" / f"{name}-{digest}"
    with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged one is made again
        kept = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        if kept["state"] == state:
            index = ShardIndex(**kept["index"])
            index.images = [ShardImage(*image) for image in index.images]
            index.left_out = [(name, reason) for name, reason in index.left_out]
            index.bad_labels = [(name, reason) for name, reason in index.bad_labels]
            return index
    index = _make_index(file, image_column, label_column)
    with suppress(ShoalError):  # a cache that cannot be written costs time, not the answer
        make_folder(folder)
        content = {"state": state, "index": asdict(index)}
        write_text(folder / "index.json", json.dumps(content, default=str))
    return index


def _make_index(file: str, image_column: str | None, label_column: str | None) -> ShardIndex:
    address = as_address(file)
    columns: tuple[str, ...] = LABEL_COLUMNS
    if label_column:
        columns = (label_column,)
    accepted = tuple(name.casefold() for name in columns)
    try:
        with asking(address):
            if bare_name(file).endswith(".parquet"):
                return index_parquet(file, accepted, image_column, label_column)
            with open_file(file) as shard:
                return index_tar(shard, file, accepted)
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read ({error.strerror or error}); check the permissions"
        ) from error
