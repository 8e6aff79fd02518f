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
from shoal.data.readers.shard_index import AGAIN, ShardImage, ShardIndex
from shoal.data.storage.addresses import why_unfit
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
    members: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, object] = {}  # a label may be the error of reading it
    try:
        with tarfile.open(fileobj=file, mode="r:", errorlevel=2) as shard:
            for member in shard:
                if member.size < 0:  # tarfile would go back and never end
                    raise tarfile.ReadError("a member of negative size")
                name = "/".join(part for part in member.name.split("/") if part != ".")
                suffix = PurePosixPath(name).suffix.lower()
                if member.isdir() or is_hidden(name):
                    continue
                if suffix in LABEL_SUFFIXES:
                    key = name[: -len(suffix)] + suffix
                    _add_label(labels, key, _read_label(shard, member, suffix, accepted))
                elif suffix in IMAGE_SUFFIXES:
                    _add_image(index, members, name, member)
            index.damage += _damage_at_end(file, shard.offset)
    except DataError:
        raise
    except BROKEN as error:
        if not members:
            raise DataError(
                f"{where}: not a tar shard that can be read ({error}){AGAIN}"
            ) from error
        index.damage.append(
            f"it breaks off at byte {file.seek(0, 2):,} ({error}), and what followed is lost"
        )
    n_bytes = file.seek(0, 2)
    for name, member in members.items():
        if member.offset_data + member.size > n_bytes:
            index.left_out.append((name, f"{PurePosixPath(where).name} breaks off inside of it"))
            index.damage = index.damage or [
                f"it breaks off at byte {n_bytes:,}, and what followed is lost"
            ]
            continue
        label_member = _label_member(name, labels)
        label = labels.get(label_member)
        if isinstance(label, ValueError):
            index.bad_labels.append((label_member, f"the label of {name} cannot be read ({label})"))
            label = None
        index.images.append(ShardImage(name, member.offset_data, member.size, label))
    index.has_labels = bool(labels)
    return index


def _add_image(
    index: ShardIndex, members: dict[str, tarfile.TarInfo], name: str, member: tarfile.TarInfo
) -> None:
    reason = why_unfit(name)
    if member.issparse():
        reason = "a sparse member, whose bytes do not lie together"
    elif not member.isreg():
        reason = "a link or a device, no plain file"
    if reason is not None:
        index.left_out.append((ascii(name)[1:-1], reason))
    elif name in members:
        index.n_doubled += 1
    else:
        members[name] = member


def _add_label(labels: dict[str, object], key: str, label: object) -> None:
    """Keep what a member says of a label, or why it cannot be read; two that differ are no
    label."""
    before = labels.setdefault(key, label)
    if isinstance(label, ValueError):
        labels[key] = label
    elif label != before and not isinstance(before, ValueError):
        labels[key] = ValueError(f"the shard has it twice, as {before!r} and {label!r}")


def _read_label(
    shard: tarfile.TarFile, member: tarfile.TarInfo, suffix: str, accepted: tuple[str, ...]
) -> object:
    """What a member says of the label: a text, a number, None where it says nothing, or why it
    cannot be read."""
    if member.size > MAX_LABEL_BYTES:
        return None if suffix == CAPTION else ValueError(f"more than {MAX_LABEL_BYTES:,} bytes")
    try:
        file = shard.extractfile(member)  # which follows links inside of the shard
        if file is None:  # a device
            return None
        text = file.read().decode("utf-8-sig").strip()
        label = _label_in_json(text, accepted) if suffix == ".json" else text
    except KeyError:
        return ValueError("a link that leads nowhere")
    except RecursionError:
        return ValueError("nested too deeply")
    except ValueError as error:
        return error
    if suffix == CAPTION and len(text.splitlines()) > 1:
        return None
    reason = why_no_label(label)
    if reason is not None:
        return ValueError(reason)
    return None if label == "" else label


def _label_in_json(text: str, accepted: tuple[str, ...]) -> object:
    if not text:
        return None
    content = json.loads(text)
    if not isinstance(content, dict):
        return content
    by_name = {str(key).strip().casefold(): value for key, value in content.items()}
    return next((by_name[name] for name in accepted if name in by_name), None)


def _label_member(name: str, labels: dict[str, object]) -> str:
    """The member that has the label of an image, empty where none has.

    It has the image's key: its name with the last suffix taken off or, as WebDataset has it, all of
    them.
    """
    folder, slash, base = name.rpartition("/")
    for key in (name.removesuffix(PurePosixPath(name).suffix), folder + slash + base.split(".")[0]):
        for suffix in LABEL_SUFFIXES:
            if labels.get(key + suffix) is not None:
                return key + suffix
    return ""


def _damage_at_end(file: BinaryIO, offset: int) -> list[str]:
    """What is wrong where the members end: zeros must follow, and nothing else."""
    file.seek(offset)
    part = file.read(tarfile.BLOCKSIZE)
    if not part:
        return [f"it ends at byte {offset:,} without the zeros of a whole tar file"]
    while part:
        if part.strip(b"\0"):
            n_lost = file.seek(0, 2) - offset
            return [
                f"its members end at byte {offset:,}, by a damaged header or by the zeros that "
                "close a tar file, and "
                f"the {n_lost:,} bytes from there on are lost"
            ]
        part = file.read(1 << 20)
    return []
