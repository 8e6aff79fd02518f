"""Shards: tar and parquet files that hold images, on this machine or on a network, as one collection."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from shoal.data.pixels.store import file_state
from shoal.data.readers.folders import Listing
from shoal.data.readers.parquet_shards import index_parquet
from shoal.data.readers.shard_patterns import COMPRESSED, bare_name, find_shards
from shoal.data.readers.tables import LABEL_COLUMNS
from shoal.data.readers.tar_shards import AGAIN, ShardIndex, index_tar
from shoal.data.storage.addresses import Address, absolute, as_address
from shoal.data.storage.opening import open_file
from shoal.data.storage.remote import N_AT_ONCE, asking, state_of
from shoal.data.storage.retries import Lost
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError, ShoalError
from shoal.files import cache_folder, make_folder, write_text
from shoal.words import count, first_few

VERSION = 5
"""Raised whenever an index is made in another way."""

UNPACK = "is compressed, so images cannot be read one by one; unpack it to a plain .tar file"


@dataclass(frozen=True, eq=False)
class ShardedImages:
    """The images of some shards; `labels` are those that the shards hold, None where they say nothing of labels."""

    listing: Listing
    files: StoredFiles
    labels: dict[str, Any] | None
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
    """Find the images that lie in shards; where something of them is lost, that is an error unless it is allowed to be.

    What is lost is then left out: a shard that cannot be read, what follows a damaged header, or a label where those of
    the shards are needed.
    """
    where = absolute(pattern)
    if str(where).lower().endswith(COMPRESSED):
        raise DataError(f"{where}: {UNPACK}")
    files, compressed = find_shards(where)
    states = _states(where, files)
    accepted = tuple(
        name.casefold() for name in ((label_column,) if label_column else LABEL_COLUMNS)
    )

    def index(i: int) -> ShardIndex | str:
        try:
            return _index(files[i], states[i], accepted, image_column, label_column)
        except DataError as error:
            if isinstance(
                error.__cause__, Lost
            ):  # nothing has been done yet, and all of it may be there again soon
                raise
            return str(error)

    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        indexes = list(threads.map(index, range(len(files))))
    broken = [one for one in indexes if isinstance(one, str)]
    if len(broken) == len(files):
        more = f" (and so are the {len(files) - 1} other shards)" if len(files) > 1 else ""
        raise DataError(f"{broken[0]}{more}")
    lost = {
        i: rows for i, one in enumerate(indexes) if (rows := _lost(files[i], one, needs_labels))
    }
    if lost and not allow_missing:
        first, rows = next(iter(lost.items()))
        more = f", and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        others = f"; {count(len(lost) - 1, 'other shard')} too" if len(lost) > 1 else ""
        raise DataError(
            f"{files[first]}: {rows[0][1]}{more}{others}{AGAIN}, or go on without what is lost: --allow-missing "
            "(allow_missing=True in Python)"
        )
    beside = [(PurePath(file).name, UNPACK) for file in compressed]
    parts = [(i, one) for i, one in enumerate(indexes) if not isinstance(one, str)]
    return _joined(str(where), files, states, parts, lost, beside)


Rows = list[tuple[str, str]]
"""Rows of skipped.csv: a path, and the reason."""


def _lost(file: str, index: ShardIndex | str, needs_labels: bool) -> Rows:
    """What is lost of a shard: under its own name the part of it in words, and each label that cannot be read."""
    shard = PurePath(file).name
    if isinstance(index, str):
        reason = index.removeprefix(f"{file}: ").removesuffix(AGAIN)
        return [(shard, f"{reason}, so none of its images is read")]
    return [
        *((shard, reason) for reason in index.damage),
        *(index.bad_labels if needs_labels else []),
    ]


def _joined(
    where: str,
    files: Sequence[str],
    states: Sequence[str],
    parts: Sequence[tuple[int, ShardIndex]],
    lost: Mapping[int, Rows],
    beside: Rows,
) -> ShardedImages:
    """The images of all shards by name; where two shards use the same, or rows have none, the shard's is put before."""
    often = Counter(name for _, part in parts for name in part.names)
    is_prefixed = not all(part.has_names for _, part in parts) or any(n > 1 for n in often.values())
    folder = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    stems = [os.path.splitext(os.path.relpath(file, folder))[0] for file in files]  # noqa: PTH122
    rows = [
        (f"{stems[i]}/{name}" if is_prefixed else name, i, start, n_bytes, label)
        for i, part in parts
        for name, start, n_bytes, label in zip(
            part.names, part.starts, part.n_bytes, part.labels, strict=True
        )
    ]
    rows.sort(key=lambda row: row[0])
    names = tuple(row[0] for row in rows)
    columns = {part.column for _, part in parts}
    if len(columns) > 1:
        raise DataError(
            f"{where}: shards have their images in different columns; give shards of one kind"
        )
    stored = StoredFiles(
        where=where,
        states=tuple(f"{states[i]}-{start}" for _, i, start, _, _ in rows),
        n_bytes=np.array([row[3] for row in rows], dtype=np.int64),
        shards=tuple(files),
        shard=np.array([row[1] for row in rows], dtype=np.int64),
        starts=np.array([row[2] for row in rows], dtype=np.int64),
        column=next(iter(columns)),
    )
    members = [
        (f"{stems[i]}/{name}" if is_prefixed else name, why)
        for i, part in parts
        for name, why in part.left_out
    ]
    left_out = sorted([*members, *beside, *(row for rows in lost.values() for row in rows)])
    damaged = [PurePath(files[i]).name for i in lost]
    notes = _notes([part for _, part in parts], damaged, [name for name, _ in members], is_prefixed)
    if beside:
        shards = count(len(beside), "compressed shard")
        notes += (
            f"{shards} left out, unpack to plain .tar files: {first_few([name for name, _ in beside])}",
        )
    listing = Listing(names, (), notes, tuple(left_out))
    has_labels = any(part.has_labels for _, part in parts)
    return ShardedImages(
        listing, stored, {row[0]: row[4] for row in rows} if has_labels else None, is_prefixed
    )


def _notes(
    parts: Sequence[ShardIndex], damaged: Sequence[str], members: Sequence[str], is_prefixed: bool
) -> tuple[str, ...]:
    notes = []
    if damaged:
        notes.append(
            f"{count(len(damaged), 'shard')} damaged, in part or whole left out: {first_few(damaged)}"
        )
    if members:
        notes.append(f"{count(len(members), 'member')} of shards left out: {first_few(members)}")
    n_doubled = sum(part.n_doubled for part in parts)
    if n_doubled:
        notes.append(
            f"{count(n_doubled, 'member')} with a name that its shard has already, the first is taken"
        )
    if is_prefixed and all(part.has_names for part in parts):
        notes.append("shards share names of images, so the name of the shard is put before each")
    return tuple(notes)


def _states(where: Path | Address, names: Sequence[str]) -> list[str]:
    """The state of each shard; one that is not there is an error."""
    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        states = list(threads.map(_state, names))
    absent = [
        PurePath(name).name for name, state in zip(names, states, strict=True) if state is None
    ]
    if absent:
        n_absent = (
            f"{len(absent):,} of {len(names):,} shards are" if len(names) > 1 else "the shard is"
        )
        raise DataError(f"{where}: {n_absent} not there ({first_few(absent)}); give those that are")
    return [state for state in states if state is not None]


def _state(file: str) -> str | None:
    address = as_address(file)
    if address is None:
        return file_state(file)
    try:
        with asking(address):
            return state_of(address).mark
    except DataError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _index(
    file: str,
    state: str,
    accepted: tuple[str, ...],
    image_column: str | None,
    label_column: str | None,
) -> ShardIndex:
    """The index of a shard, made now or kept from the last time, when the shard was as it is."""
    how = f"{VERSION}\n{file}\n{accepted}\n{image_column}\n{label_column}"
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", PurePath(file).name)[:80]
    folder = cache_folder() / "shards" / f"{name}-{_checksum(how)}"
    with suppress(OSError, ValueError, KeyError, TypeError):
        checksum, _, body = (folder / "index.json").read_text(encoding="utf-8").partition("\n")
        kept: dict[str, Any] = (
            json.loads(body) if checksum == _checksum(body) else {}
        )  # a damaged one is made again
        if kept["state"] == state:
            index = ShardIndex(**kept["index"])
            index.left_out = [(name, reason) for name, reason in index.left_out]
            index.bad_labels = [(member_name, reason) for member_name, reason in index.bad_labels]
            return index
    with _explained(file):
        index = _make_index(file, accepted, image_column, label_column)
    with suppress(ShoalError):  # a cache that cannot be written costs time, not the answer
        make_folder(folder)
        body = json.dumps({"state": state, "index": asdict(index)}, default=str)
        write_text(folder / "index.json", f"{_checksum(body)}\n{body}")
    return index


def _checksum(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


@contextmanager
def _explained(file: str) -> Iterator[None]:
    address = as_address(file)
    try:
        with nullcontext() if address is None else asking(address):
            yield
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read ({error.strerror or error}); check the permissions"
        ) from error


def _make_index(
    file: str, accepted: tuple[str, ...], image_column: str | None, label_column: str | None
) -> ShardIndex:
    if bare_name(file).endswith(".parquet"):
        return index_parquet(file, accepted, image_column, label_column)
    with open_file(file) as shard:
        return index_tar(shard, file, accepted)
