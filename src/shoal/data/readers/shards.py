"""Shards: tar and parquet files that hold images, on this machine or on a network, as one
collection."""

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import PurePath

import numpy as np

from shoal.data.pixels.store import file_state
from shoal.data.readers.folders import Listing
from shoal.data.readers.labels import class_names
from shoal.data.readers.parquet_shards import AGAIN, ShardImage, ShardIndex, index_parquet
from shoal.data.readers.shard_patterns import COMPRESSED, bare_name, find_shards
from shoal.data.readers.tables import LABEL_COLUMNS
from shoal.data.readers.tar_shards import index_tar
from shoal.data.storage.addresses import absolute, as_address
from shoal.data.storage.opening import open_file
from shoal.data.storage.remote import N_AT_ONCE, Lost, asking, state_or_none
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError, ShoalError
from shoal.files import cache_folder, make_folder, write_text
from shoal.words import count, first_few

VERSION = 7
"""Raised whenever an index is made in another way."""


def read_shards(
    pattern: str | os.PathLike[str],
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    allow_missing: bool = False,
    needs_labels: bool = True,
) -> Listing:
    """Find the images that lie in shards, with the labels that are there.

    Where something is lost, a shard that cannot be read, what follows a damaged header or a label
    that is needed, that is an error unless `allow_missing`; then it is left out.
    """
    where = absolute(pattern)
    files = find_shards(where)

    def index(file: str, state: str | None) -> ShardIndex:
        try:
            return _index(file, str(state), image_column, label_column)
        except DataError as error:
            if isinstance(error.__cause__, Lost):  # all of it may be there again soon
                raise
            reason = str(error).removeprefix(f"{file}: ").removesuffix(AGAIN)
            return ShardIndex(damage=f"{reason}, so none of its images is read")

    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        states = list(threads.map(_state, files))
        absent = [file for file, state in zip(files, states, strict=True) if state is None]
        if absent:
            raise DataError(
                f"{where}: {len(absent):,} of {count(len(files), 'shard')} not there "
                f"({first_few([PurePath(file).name for file in absent])}); give those that are"
            )
        indexes = list(threads.map(index, files, states))
    lost: dict[str, str] = {}
    for file, one in zip(files, indexes, strict=True):
        shard = PurePath(file).name
        if one.damage:
            lost[shard] = one.damage
        if needs_labels:
            lost |= {f"{shard}, {place}": reason for place, reason in one.bad_labels}
        if lost and not allow_missing:
            raise DataError(
                f"{file}: {next(iter(lost.values()))}{AGAIN}, or go on without what is lost of "
                "this shard and others: --allow-missing (allow_missing=True in Python)"
            )
    images = [(i, image) for i, one in enumerate(indexes) for image in one.images]
    if not images:
        reason = (
            f"no images (jpg, png, webp, tif, bmp, gif or heic) in {count(len(files), 'shard')}"
        )
        if lost:
            reason = f"{files[0]}: {next(iter(lost.values()))}"
        raise DataError(f"{where}: {reason}; give others")
    columns = {one.column for one in indexes if one.images}
    if len(columns) > 1:
        raise DataError(
            f"{where}: shards have their images in different columns; give shards of one kind"
        )
    # Where two shards use the same name, or rows have none, the shard's is put before.
    has_names = all(one.has_names for one in indexes)
    is_prefixed = not has_names or len({image.name for _, image in images}) < len(images)
    prefixes = [""] * len(files)
    if is_prefixed:
        folder = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
        prefixes = [
            f"{os.path.splitext(os.path.relpath(file, folder))[0]}/"  # noqa: PTH122
            for file in files
        ]
    listing = Listing(where)
    for prefix, one in zip(prefixes, indexes, strict=True):
        listing.left_out |= {prefix + name: reason for name, reason in one.left_out}
    listing.left_out |= lost
    listing.sort()
    if is_prefixed and has_names:
        listing.notes.append("shards share names of images, so each has that of its shard before")
    images.sort(key=lambda row: prefixes[row[0]] + row[1].name)
    listing.names = [prefixes[i] + image.name for i, image in images]
    if is_prefixed or any(one.has_labels for one in indexes):
        labels = class_names(
            [image.label for _, image in images],
            lambda i: f"{where}, label of {listing.names[i]}",
        )
        listing.labels = dict(zip(listing.names, labels, strict=True))
    listing.stored = StoredFiles(
        where=str(where),
        states=tuple(f"{states[i]}-{image.start}" for i, image in images),
        n_bytes=np.array([image.n_bytes for _, image in images], dtype=np.int64),
        shards=tuple(files),
        shard=np.array([i for i, _ in images], dtype=np.int64),
        starts=np.array([image.start for _, image in images], dtype=np.int64),
        column=columns.pop(),
    )
    return listing


def _state(file: str) -> str | None:
    """What changes with a shard; None where it is not there."""
    address = as_address(file)
    if address is None:
        return file_state(file)
    state = state_or_none(address)
    return state and state.mark


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
            return index
    index = _make_index(file, image_column, label_column)
    with suppress(ShoalError):  # a cache that cannot be written costs time, not the answer
        make_folder(folder)
        content = {"state": state, "index": asdict(index)}
        write_text(folder / "index.json", json.dumps(content, default=str))
    return index


def _make_index(file: str, image_column: str | None, label_column: str | None) -> ShardIndex:
    if bare_name(file).endswith(COMPRESSED):
        raise DataError(
            f"{file}: is compressed, so images cannot be read one by one; unpack it to a plain "
            ".tar file"
        )
    columns: tuple[str, ...] = LABEL_COLUMNS
    if label_column is not None:
        columns = (label_column.casefold(),)
    try:
        with asking(as_address(file)):
            if bare_name(file).endswith(".parquet"):
                return index_parquet(file, columns, image_column, label_column)
            with open_file(file) as shard:
                return index_tar(shard, file, columns)
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read ({error.strerror or error}); check the permissions"
        ) from error
