"""Downloaded archives: read to the end for damage, and unpacked: nothing outside the folder,
nothing overwritten, nothing half done."""

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath, PureWindowsPath

from shoal.errors import DataError, MissingError, ShoalError
from shoal.files import make_folder, writing
from shoal.progress import Progress

BLOCK = 1 << 20
"""Bytes read at once."""

BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
)
"""What reading a damaged archive, or what is none, ends with."""


def find_damage(archive: Path, tick: Progress = lambda done, total: None) -> str:
    """Read a zip or tar archive to its end and say what of it is damaged; empty where every
    checksum is right.

    Every member of a zip has a checksum, a gzipped tar has one of all, a plain tar of the names
    alone.
    """
    try:
        if archive.suffix.lower() == ".zip":
            return _find_damaged_members(archive, tick)
        with archive.open("rb") as file:
            is_gzipped = file.read(2) == b"\x1f\x8b"
        if is_gzipped:
            return _read_gzip(archive, tick)
        return _walk_tar(archive)
    except (*BROKEN, OSError) as error:
        return f"{archive}: is damaged ({_in_one_line(error)}); fetch it again"


def _find_damaged_members(archive: Path, tick: Progress) -> str:
    bad = []
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        for i, member in enumerate(members):
            try:
                with opened.open(member) as stream:
                    while stream.read(BLOCK):  # the checksum is compared at the end
                        pass
            except (*BROKEN, OSError):
                bad.append(member.filename)
            tick(i + 1, len(members))
    if not bad:
        return ""
    damaged = f"{len(bad):,} of {len(members):,} members are damaged"
    return f"{archive}: {damaged}, the first is {bad[0]}; fetch it again"


def _read_gzip(archive: Path, tick: Progress) -> str:
    total = archive.stat().st_size // BLOCK
    with archive.open("rb") as file, gzip.GzipFile(fileobj=file) as stream:
        while stream.read(BLOCK):
            tick(file.tell() // BLOCK, total)
    return ""


def _walk_tar(archive: Path) -> str:
    with tarfile.open(archive, "r:") as opened:
        for _ in opened:
            pass
        behind = archive.stat().st_size - opened.offset
    # Zeros end a tar, and fill it up to a whole record: more than that was meant to be members.
    if behind > BLOCK:
        return f"{archive}: is damaged ({behind:,} bytes behind its end); fetch it again"
    return ""


def _in_one_line(error: BaseException) -> str:
    """The first line of a message: tarfile adds one for every compression that it has tried."""
    lines = str(error).splitlines() or [type(error).__name__]
    if len(lines) > 1:
        return "neither a tar archive nor a compressed one, or its beginning is damaged"
    return lines[0]


def unpack(archive: Path, into: Path, *, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Unpack a zip or tar archive into a folder and return the names that appeared there.

    Everything is unpacked into a hidden folder first and moved when it is complete; what is there
    already stays as it is. With `only`, the archive is a tar of tars, one per class, and those
    classes land in train/<class>/.
    """
    draft = into / f".unpacking-{archive.name}"
    shutil.rmtree(draft, ignore_errors=True)  # left by an unpacking that was killed
    make_folder(draft)
    try:
        with writing(draft):
            _unpack_any(archive, draft, only)
            return _move_in(draft, into)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _unpack_any(archive: Path, into: Path, only: Collection[str] | None) -> None:
    try:
        if archive.suffix.lower() == ".zip":
            _unpack_zip(archive, into)
        elif only is None:
            _unpack_tar(archive, into)
        else:
            _unpack_tar_of_tars(archive, into, only)
    except BROKEN as error:
        why = _in_one_line(error)
        raise DataError(
            f"{archive}: cannot be unpacked ({why}); nothing was changed; fetch it again"
        ) from error


def _move_in(draft: Path, into: Path) -> tuple[str, ...]:
    appeared = []
    for entry in sorted(draft.iterdir()):
        target = into / entry.name
        if not target.exists() and not target.is_symlink():
            entry.rename(target)
            appeared.append(entry.name)
    return tuple(appeared)


def _unpack_zip(archive: Path, into: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        for member in members:
            _check_member(archive, member)
        _check_space(archive, sum(member.file_size for member in members), into)
        opened.extractall(into)


def _check_member(archive: Path, member: zipfile.ZipInfo) -> None:
    name = member.filename
    leads_out = (
        PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive or ".." in name.split("/")
    )
    if leads_out or "\\" in name or stat.S_ISLNK(member.external_attr >> 16):
        raise DataError(
            f"{archive}: member {name!r} leads out of the folder or is a link; this archive is "
            "not trusted"
        )


def _unpack_tar(archive: Path, into: Path) -> None:
    _check_tar_filter()
    with tarfile.open(archive) as opened:
        opened.extractall(into, filter="data")
        assert opened.fileobj is not None
        while opened.fileobj.read(BLOCK):  # the checksum of a gzipped one comes last
            pass


def _unpack_tar_of_tars(archive: Path, into: Path, only: Collection[str]) -> None:
    _check_tar_filter()
    with tarfile.open(archive) as outer:
        for member in outer:
            name = PurePosixPath(member.name).name.removesuffix(".tar")
            if name not in only:
                continue
            stream = outer.extractfile(member)
            if stream is not None:
                with tarfile.open(fileobj=stream) as inner:
                    inner.extractall(into / "train" / name, filter="data")


def _check_tar_filter() -> None:
    if not hasattr(tarfile, "data_filter"):
        raise MissingError(
            "unpacking tar archives safely needs Python 3.11.4 or newer; unpack them with tar "
            "instead"
        )


def _check_space(archive: Path, n_bytes: int, into: Path) -> None:
    free = shutil.disk_usage(into).free
    if n_bytes > free:
        raise ShoalError(
            f"{archive}: needs {n_bytes:,} bytes unpacked, but {free:,} are free in {into}; make "
            "room"
        )
