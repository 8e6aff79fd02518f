"""Tar shards as WebDataset names them: KEY.jpg is an image, KEY.cls, KEY.json or KEY.txt its label.

Only headers and labels are read; where an image begins and how long it is, is kept, and its bytes
are read when it is decoded.
"""

import json
import tarfile
from pathlib import PurePosixPath
from typing import BinaryIO

from shoal.data.readers.folders import IMAGE_SUFFIXES, is_hidden
from shoal.data.readers.labels import why_no_label
from shoal.data.readers.parquet_shards import AGAIN, ShardImage, ShardIndex
from shoal.data.storage.addresses import why_unfit
from shoal.data.storage.remote import in_words
from shoal.errors import DataError

CAPTION = ".txt"
"""Members that may also hold something else than a label: several lines or a long text are none."""

LABEL_SUFFIXES = (".cls", ".json", CAPTION)
"""Members that may hold the label of the image of the same key, the surest first."""

MAX_LABEL_BYTES = 1 << 20
"""A larger member is no label."""

BROKEN = (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError)
"""What reading a damaged tar file may raise."""


def index_tar(file: BinaryIO, where: str, accepted: tuple[str, ...]) -> ShardIndex:
    """Find the images of a tar shard and their labels, which JSON has under one of the `accepted`
    keys.

    A shard that breaks off gives what it holds until there, and the `damage`; one in which nothing
    can be read is an error.
    """
    index = ShardIndex()
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, object] = {}
    bad_labels: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:", errorlevel=2) as shard:
            for member in shard:
                if member.size < 0:  # tarfile would go back and never end
                    raise tarfile.ReadError("a member of negative size")
                name = "/".join(part for part in member.name.split("/") if part != ".")
                suffix = PurePosixPath(name).suffix.lower()
                if member.isdir() or is_hidden(name):
                    continue
                if suffix in IMAGE_SUFFIXES:
                    reason = _why_left_out(name, member, images)
                    if reason is None:
                        images[name] = member
                    else:
                        index.left_out.append((ascii(name)[1:-1], reason))
                elif suffix in LABEL_SUFFIXES:
                    index.has_labels = True
                    key = name[: -len(suffix)] + suffix
                    try:
                        label = _read_label(shard, member, suffix, accepted)
                        if label is not None and labels.setdefault(key, label) != label:
                            raise ValueError(f"the shard has it twice, {label!r} and another")
                    except (ValueError, KeyError, RecursionError) as error:
                        bad_labels[key] = in_words(error)
            index.damage = _damage_at_end(file, shard.offset)
    except BROKEN as error:
        if not images:
            raise DataError(
                f"{where}: not a tar shard that can be read ({error}){AGAIN}"
            ) from error
        index.damage = f"it breaks off ({error}), and what followed is lost"
    n_bytes = file.seek(0, 2)
    for name, member in images.items():
        if member.offset_data + member.size > n_bytes:
            index.left_out.append((name, "the shard breaks off inside of it"))
            index.damage = index.damage or f"it breaks off at byte {n_bytes:,}"
            continue
        keys = [key for key in _label_members(name) if key in labels or key in bad_labels]
        label = None
        if keys and keys[0] in bad_labels:
            reason = f"the label of {name} cannot be read ({bad_labels[keys[0]]})"
            index.bad_labels.append((keys[0], reason))
        elif keys:
            label = labels[keys[0]]
        index.images.append(ShardImage(name, member.offset_data, member.size, label))
    return index


def _why_left_out(
    name: str, member: tarfile.TarInfo, images: dict[str, tarfile.TarInfo]
) -> str | None:
    if member.issparse() or not member.isreg():
        return "a link, a device or a sparse member, no plain file"
    if name in images:
        return "the shard has this name already, the first is taken"
    return why_unfit(name)


def _read_label(
    shard: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, accepted: tuple[str, ...]
) -> object:
    """What a member says of the label: a text or a number, None where it says nothing; one that
    cannot be read is a ValueError."""
    is_caption = suffix == CAPTION
    if member.size > MAX_LABEL_BYTES:
        if is_caption:
            return None
        raise ValueError(f"more than {MAX_LABEL_BYTES:,} bytes")
    file = shard.extractfile(member)  # which follows links inside of the shard
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
            label = next((by_name[name] for name in accepted if name in by_name), None)
    reason = why_no_label(label)
    if reason is not None:
        raise ValueError(reason)
    return label


def _label_members(name: str) -> list[str]:
    """The members that may have the label of an image.

    They have its key: its name with the last suffix taken off or, as WebDataset has it, all.
    """
    folder, slash, base = name.rpartition("/")
    keys = (name.removesuffix(PurePosixPath(name).suffix), folder + slash + base.split(".")[0])
    return [key + suffix for key in keys for suffix in LABEL_SUFFIXES]


def _damage_at_end(file: BinaryIO, offset: int) -> str:
    """What is wrong where the members end: zeros must follow, and nothing else."""
    file.seek(offset)
    part = file.read(tarfile.BLOCKSIZE)
    if not part:
        return f"it ends at byte {offset:,} without the zeros of a whole tar file"
    while part:
        if part.strip(b"\0"):
            return f"a damaged header or zeros end it at byte {offset:,}, and the rest is lost"
        part = file.read(1 << 20)
    return ""
