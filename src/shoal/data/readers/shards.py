"""Shards: tar and parquet files that hold images, on this machine or on a network, as one collection."""

import hashlib
import itertools
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
from shoal.data.readers.parquet_shards import holds_images, index_parquet
from shoal.data.readers.tables import LABEL_COLUMNS
from shoal.data.readers.tar_shards import AGAIN, ShardIndex, index_tar
from shoal.data.storage.addresses import Address, absolute, as_address
from shoal.data.storage.opening import open_file
from shoal.data.storage.remote import N_AT_ONCE, asking, list_remote, state_of
from shoal.data.storage.retries import Lost
from shoal.data.storage.stored import StoredFiles
from shoal.errors import DataError, ShoalError
from shoal.files import cache_folder, make_folder, write_text
from shoal.words import count, first_few

VERSION = 3
"""Raised whenever an index is made in another way."""

SHARD_SUFFIXES = (".tar", ".parquet")
COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
BRACES = re.compile(r"\{([^{}]*)\}")
MAX_SHARDS = 1_000_000


@dataclass(frozen=True, eq=False)
class ShardedImages:
    """The images of some shards; `labels` are those that the shards hold, None where they say nothing of labels."""

    listing: Listing
    files: StoredFiles
    labels: dict[str, Any] | None
    is_prefixed: bool
    """Whether the name of its shard stands before that of an image."""


def is_shards(location: str | os.PathLike[str], image_column: str | None = None) -> bool:
    """Whether this names shards: a tar file, a parquet file with images in it, or several by braces or a star."""
    name = os.fspath(location).partition("?")[0].lower()
    if Path(location).is_dir():
        return False
    is_many = BRACES.search(name) is not None or "*" in name
    if name.endswith((".tar", *COMPRESSED)) or (is_many and name.endswith(SHARD_SUFFIXES)):
        return True
    return name.endswith(".parquet") and bool(holds_images(str(absolute(location)), image_column))


def shards_below(folder: Path) -> str | None:
    """The shards in a folder without images, as a pattern: tar files or, where there are none, parquet files.

    Of the latter the first that can be read says whether they hold images; where none can, reading them says so.
    """
    for suffix in SHARD_SUFFIXES:
        files = [str(file) for file in sorted(folder.rglob(f"*{suffix}")) if file.is_file()]
        said = (holds_images(file) for file in files if suffix == ".parquet")
        hold = next((one for one in said if one is not None), True)
        if files and hold:
            return f"{folder}/*{suffix}"
    return None


def expand_braces(pattern: str) -> list[str]:
    """Every name that a pattern such as `shards-{000..012}.tar` or `{train,test}.tar` stands for."""
    parts = BRACES.split(pattern)
    choices = [[part] if i % 2 == 0 else _choices(part, pattern) for i, part in enumerate(parts)]
    if np.prod([len(one) for one in choices], dtype=float) > MAX_SHARDS:
        raise DataError(f"{pattern}: stands for more than {MAX_SHARDS:,} shards; give a smaller range")
    return ["".join(chosen) for chosen in itertools.product(*choices)]


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
        raise DataError(f"{where}: is compressed, so images cannot be read one by one; unpack it to a plain .tar file")
    files, states = _find(where)
    accepted = tuple(name.casefold() for name in ((label_column,) if label_column else LABEL_COLUMNS))

    def index(i: int) -> ShardIndex | str:
        try:
            return _index(files[i], states[i], accepted, image_column, label_column)
        except DataError as error:
            if isinstance(error.__cause__, Lost):  # nothing has been done yet, and all of it may be there again soon
                raise
            return str(error)

    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        found = list(threads.map(index, range(len(files))))
    broken = [one for one in found if isinstance(one, str)]
    if len(broken) == len(files):
        more = f" (and so are the {len(files) - 1} other shards)" if len(files) > 1 else ""
        raise DataError(f"{broken[0]}{more}")
    lost = {i: rows for i, one in enumerate(found) if (rows := _lost(files[i], one, needs_labels))}
    if lost and not allow_missing:
        first, rows = next(iter(lost.items()))
        more = f", and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        others = f"; {count(len(lost) - 1, 'other shard')} too" if len(lost) > 1 else ""
        raise DataError(
            f"{files[first]}: {rows[0][1]}{more}{others}{AGAIN}, or go on without what is lost: --allow-missing "
            "(allow_missing=True in Python)"
        )
    return _joined(str(where), files, states, [(i, x) for i, x in enumerate(found) if not isinstance(x, str)], lost)


Rows = list[tuple[str, str]]
"""Rows of skipped.csv: a path, and the reason."""


def _lost(file: str, found: ShardIndex | str, needs_labels: bool) -> Rows:
    """What is lost of a shard: under its own name the part of it in words, and each label that cannot be read."""
    shard = PurePath(file).name
    if isinstance(found, str):
        reason = found.removeprefix(f"{file}: ").removesuffix(AGAIN)
        return [(shard, f"{reason}, so none of its images is read")]
    return [*((shard, reason) for reason in found.damage), *(found.bad_labels if needs_labels else [])]


def _joined(
    where: str,
    files: Sequence[str],
    states: Sequence[str],
    parts: Sequence[tuple[int, ShardIndex]],
    lost: Mapping[int, Rows],
) -> ShardedImages:
    """The images of all shards by name; where two shards use the same, or rows have none, the shard's is put before."""
    often = Counter(name for _, part in parts for name in part.names)
    is_prefixed = not all(part.has_names for _, part in parts) or any(n > 1 for n in often.values())
    folder = os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120
    stems = [os.path.splitext(os.path.relpath(file, folder))[0] for file in files]  # noqa: PTH122
    rows = [
        (f"{stems[i]}/{name}" if is_prefixed else name, i, start, n_bytes, label)
        for i, part in parts
        for name, start, n_bytes, label in zip(part.names, part.starts, part.n_bytes, part.labels, strict=True)
    ]
    rows.sort(key=lambda row: row[0])
    names = tuple(row[0] for row in rows)
    columns = {part.column for _, part in parts}
    if len(columns) > 1:
        raise DataError(f"{where}: shards have their images in different columns; give shards of one kind")
    stored = StoredFiles(
        where=where,
        states=tuple(f"{states[i]}-{start}" for _, i, start, _, _ in rows),
        n_bytes=np.array([row[3] for row in rows], dtype=np.int64),
        shards=tuple(files),
        shard=np.array([row[1] for row in rows], dtype=np.int64),
        starts=np.array([row[2] for row in rows], dtype=np.int64),
        column=next(iter(columns)),
    )
    members = [(f"{stems[i]}/{name}" if is_prefixed else name, why) for i, part in parts for name, why in part.left_out]
    left_out = sorted([*members, *(row for rows in lost.values() for row in rows)])
    damaged = [PurePath(files[i]).name for i in lost]
    notes = _notes([part for _, part in parts], damaged, [name for name, _ in members], is_prefixed)
    listing = Listing(names, (), notes, tuple(left_out))
    has_labels = any(part.has_labels for _, part in parts)
    return ShardedImages(listing, stored, {row[0]: row[4] for row in rows} if has_labels else None, is_prefixed)


def _notes(
    parts: Sequence[ShardIndex], damaged: Sequence[str], members: Sequence[str], is_prefixed: bool
) -> tuple[str, ...]:
    notes = []
    if damaged:
        notes.append(f"{count(len(damaged), 'shard')} damaged, in part or whole left out: {first_few(damaged)}")
    if members:
        notes.append(f"{count(len(members), 'member')} of shards left out: {first_few(members)}")
    n_doubled = sum(part.n_doubled for part in parts)
    if n_doubled:
        notes.append(f"{count(n_doubled, 'member')} with a name that its shard has already, the first is taken")
    if is_prefixed and all(part.has_names for part in parts):
        notes.append("shards share names of images, so the name of the shard is put before each")
    return tuple(notes)


def _find(where: Path | Address) -> tuple[list[str], list[str]]:
    """The shards that a pattern stands for, and the state of each."""
    names = expand_braces(str(where))
    if "*" in str(where):
        names = sorted({file for name in names for file in _matching(name)})
    if not names:
        raise DataError(f"{where}: matches nothing; give shards that are there, such as 'shards-{{000..012}}.tar'")
    with ThreadPoolExecutor(N_AT_ONCE) as threads:
        states = list(threads.map(_state, names))
    absent = [PurePath(name).name for name, state in zip(names, states, strict=True) if state is None]
    if absent:
        n_absent = f"{len(absent):,} of {len(names):,} shards are" if len(names) > 1 else "the shard is"
        raise DataError(f"{where}: {n_absent} not there ({first_few(absent)}); give those that are")
    return names, [state for state in states if state is not None]


def _matching(pattern: str) -> list[str]:
    """The files that a pattern with a star means; a star stands for slashes too."""
    fixed = pattern.partition("*")[0].rpartition("/")[0]
    address = as_address(fixed)
    if address is None:
        below = [str(file) for file in Path(fixed or "/").rglob("*") if file.is_file()]
    else:
        with asking(address):
            below = [f"{address}/{name}" for name, _ in list_remote(address)]
    wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))))
    return [file for file in below if wanted.fullmatch(file)]


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
    file: str, state: str, accepted: tuple[str, ...], image_column: str | None, label_column: str | None
) -> ShardIndex:
    """The index of a shard, made now or kept from the last time, when the shard was as it is."""
    how = f"{VERSION}\n{file}\n{accepted}\n{image_column}\n{label_column}"
    digest = hashlib.blake2b(how.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    folder = cache_folder() / "shards" / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', PurePath(file).name)[:80]}-{digest}"
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        if kept["state"] == state:
            found = ShardIndex(**kept["index"])
            found.left_out = [(name, reason) for name, reason in found.left_out]
            found.bad_labels = [(place, reason) for place, reason in found.bad_labels]
            return found
    with _explained(file):
        found = _make_index(file, accepted, image_column, label_column)
    with suppress(ShoalError):  # a cache that cannot be written costs time, not the answer
        make_folder(folder)
        write_text(folder / "index.json", json.dumps({"state": state, "index": asdict(found)}, default=str))
    return found


@contextmanager
def _explained(file: str) -> Iterator[None]:
    address = as_address(file)
    try:
        with nullcontext() if address is None else asking(address):
            yield
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error}); check the permissions") from error


def _make_index(file: str, accepted: tuple[str, ...], image_column: str | None, label_column: str | None) -> ShardIndex:
    if file.partition("?")[0].lower().endswith(".parquet"):
        return index_parquet(file, accepted, image_column, label_column)
    with open_file(file) as shard:
        return index_tar(shard, file, accepted)


def _choices(part: str, pattern: str) -> list[str]:
    """What stands between braces: numbers from one to another, or a list."""
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", part)
    if numbers is None:
        return part.split(",")
    first, last = numbers.groups()
    if int(last) < int(first) or int(last) - int(first) >= MAX_SHARDS:
        raise DataError(f"{pattern}: found the range {part}, expected the smaller number first, such as {{000..012}}")
    width = max(len(first), len(last)) if first.startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
