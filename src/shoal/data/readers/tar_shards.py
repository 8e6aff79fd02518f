"""Tar shards as WebDataset names them: KEY.jpg is an image, KEY.cls, KEY.json or KEY.txt its label.

Only headers and labels are read; where an image begins and how long it is, is kept, and its bytes are read when it is
decoded.
"""

import json
import tarfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from shoal.data.readers.folders import IMAGE_SUFFIXES
from shoal.data.readers.labels import why_no_label
from shoal.data.storage.addresses import why_unfit
from shoal.errors import DataError

LABEL_SUFFIXES = (".cls", ".json", ".txt")
"""Members that may hold the label of the image of the same key, the surest first."""

CAPTION = ".txt"
"""Members that may also hold something else than a label: several lines or a long text are none."""

MAX_LABEL_BYTES = 1 << 20
"""A larger member is no label."""

AGAIN = "; copy or make it again"

BROKEN = (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError)
"""What reading a damaged tar file may raise."""


@dataclass
class ShardIndex:
    """The images of one shard; lists of equal length, in the order of the shard."""

    names: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    n_bytes: list[int] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Images that cannot be taken, and why."""
    damage: list[str] = field(default_factory=list)
    """What is lost of the shard; it is refused, or said where --allow-missing goes on."""
    bad_labels: list[tuple[str, str]] = field(default_factory=list)
    """Where a label stands that cannot be read, and why; its image counts as unlabeled."""
    n_doubled: int = 0
    """Members that come a second time under the same name."""
    has_labels: bool = False
    """Whether the shard says anything of labels."""
    column: str | None = None
    """The column of images, in a parquet shard."""
    has_names: bool = True
    """Whether images have names of their own, not the number of their row."""


def index_tar(file: BinaryIO, where: str, accepted: tuple[str, ...]) -> ShardIndex:
    """Find the images of a tar shard and their labels, which JSON has under one of the `accepted` keys.

    A shard that breaks off gives what it holds until there, and the `damage`; one in which nothing can be read is an
    error.
    """
    # a text may be the error of reading it
    index = ShardIndex()
    texts = dict[str, Any]()
    seen = Counter[str]()
    try:
        with tarfile.open(fileobj=file, mode="r:", errorlevel=2) as shard:
            for member in shard:
                _sort_member(shard, member, index, texts, seen, accepted)
            index.damage += _bad_end(file, shard.offset)
    except DataError:
        raise
    except BROKEN as error:
        if not index.names:
            raise DataError(
                f"{where}: not a tar shard that can be read ({error}){AGAIN}"
            ) from error
        index.damage.append(
            f"it breaks off at byte {file.seek(0, 2):,} ({error}), and what followed is lost"
        )
    _drop_cut(index, file, where)
    for name in index.names:
        member_name, label = _label(name, texts)
        index.labels.append(None if isinstance(label, ValueError) else label)
        if isinstance(label, ValueError):
            index.bad_labels.append((member_name, f"the label of {name} cannot be read ({label})"))
    index.has_labels = bool(texts)
    return index


def _sort_member(
    shard: tarfile.TarFile,
    member: tarfile.TarInfo,
    index: ShardIndex,
    texts: dict[str, Any],
    seen: Counter[str],
    accepted: tuple[str, ...],
) -> None:
    """Take a member for what it is: an image, a label, or nothing of interest."""
    if member.size < 0:  # tarfile would go back and never end
        raise tarfile.ReadError("a member of negative size")
    name = "/".join(part for part in member.name.split("/") if part != ".")
    key, suffix = _split(name)
    is_hidden = any(part.startswith(".") and part != ".." for part in name.split("/"))
    if member.isdir() or is_hidden or suffix not in (*IMAGE_SUFFIXES, *LABEL_SUFFIXES):
        return
    if suffix in LABEL_SUFFIXES:
        _add_label(
            texts, f"{key}{suffix}", lambda: _cell(_text(shard, member, suffix), suffix, accepted)
        )
        return
    reason = why_unfit(name) or _why_not_plain(member)
    seen[name] += 1
    if reason is not None:
        index.left_out.append((ascii(name)[1:-1], reason))
    elif seen[name] > 1:
        index.n_doubled += 1
    else:
        index.names.append(name)
        index.starts.append(member.offset_data)
        index.n_bytes.append(member.size)


def _add_label(texts: dict[str, Any], member_name: str, read: Callable[[], Any]) -> None:
    """Keep what a member says of a label, or why it cannot be read; two that differ are no label."""
    try:
        label = read()
    except ValueError as error:
        texts[member_name] = error
        return
    before = texts.setdefault(member_name, label)
    if label != before and not isinstance(before, ValueError):
        texts[member_name] = ValueError(f"the shard has it twice, as {before!r} and {label!r}")


def _why_not_plain(member: tarfile.TarInfo) -> str | None:
    """Why a member has no bytes of its own that lie together; None where it has."""
    if member.issparse():
        return "a sparse member, whose bytes do not lie together"
    return None if member.isreg() else "a link or a device, no plain file"


def _bad_end(file: BinaryIO, offset: int) -> list[str]:
    """What is wrong where the members end: nothing but zeros must follow."""
    n_left = f"{file.seek(0, 2) - offset:,}"
    file.seek(offset)
    part = file.read(tarfile.BLOCKSIZE)
    if not part:
        return [
            f"it ends at byte {offset:,} without the zeros that close a tar file, so what followed may be lost"
        ]
    if any(part):
        return [
            f"the header at byte {offset:,} is damaged, and the {n_left} bytes from there on are lost"
        ]
    while part and not part.strip(b"\0"):
        part = file.read(1 << 20)
    if not part:
        return []
    return [
        f"more follows the zeros at byte {offset:,} that close it, and the {n_left} bytes from there are not read"
    ]


def _drop_cut(index: ShardIndex, file: BinaryIO, where: str) -> None:
    """Leave out the last image where the shard ends inside of it."""
    end = file.seek(0, 2)
    while index.names and index.starts[-1] + index.n_bytes[-1] > end:
        index.starts.pop()
        index.n_bytes.pop()
        index.left_out.append(
            (index.names.pop(), f"{PurePosixPath(where).name} breaks off inside of it")
        )
        index.damage = index.damage or [f"it breaks off at byte {end:,}, and what followed is lost"]


def _split(name: str) -> tuple[str, str]:
    """Key and suffix, the latter in small letters."""
    path = PurePosixPath(name)
    return name.removesuffix(path.suffix), path.suffix.lower()


def _text(shard: tarfile.TarFile, member: tarfile.TarInfo, suffix: str) -> str:
    """The text of a member that may hold a label; a ValueError says why it has none that can be read."""
    if member.size > MAX_LABEL_BYTES and suffix != CAPTION:
        raise ValueError(f"more than {MAX_LABEL_BYTES:,} bytes")
    if member.size > MAX_LABEL_BYTES:
        return ""
    try:
        file = shard.extractfile(member)  # which follows links inside of the shard
    except KeyError as error:
        raise ValueError("a link that leads nowhere") from error
    return "" if file is None else file.read(MAX_LABEL_BYTES).decode("utf-8-sig").strip()


def _cell(text: str, suffix: str, accepted: tuple[str, ...]) -> Any:
    """What a text says of the label: a text or a number, None where it says nothing."""
    if suffix == CAPTION:
        return text if len(text.splitlines()) == 1 else None
    if suffix != ".json":
        return _checked(text)
    try:
        said = json.loads(text) if text else None
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    by_name = (
        {str(key).strip().casefold(): value for key, value in said.items()}
        if isinstance(said, dict)
        else {}
    )
    label = (
        next((by_name[name] for name in accepted if name in by_name), None)
        if isinstance(said, dict)
        else said
    )
    return _checked(label)


def _checked(label: Any) -> Any:
    reason = why_no_label(label)
    if reason is not None:
        raise ValueError(reason)
    return label or None if isinstance(label, str) else label


def _label(name: str, texts: dict[str, Any]) -> tuple[str, Any]:
    """The label of an image and the member that has it.

    It is that of the image's key, with the last suffix taken off or, as WebDataset has it, all of them.
    """
    key = _split(name)[0]
    folder, slash, base = name.rpartition("/")
    for one in dict.fromkeys((key, f"{folder}{slash}{base.partition('.')[0]}")):
        for suffix in LABEL_SUFFIXES:
            if texts.get(f"{one}{suffix}") is not None:
                return f"{one}{suffix}", texts[f"{one}{suffix}"]
    return "", None
