"""Unpacking a downloaded archive: nothing outside the folder, nothing overwritten, nothing half done."""

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath, PureWindowsPath

from shoal.errors import DataError, MissingError, ShoalError
from shoal.files import make_folder, writing


def unpack(archive: Path, into: Path, *, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Unpack a zip or tar archive into a folder and return the names that appeared there.

    Everything is unpacked into a hidden folder first and moved when it is complete; what is there already stays as it
    is. With `only`, the archive is a tar of tars, one per class, and those classes land in train/<class>/.
    """
    draft = into / f".unpacking-{archive.name}"
    shutil.rmtree(draft, ignore_errors=True)  # left by an unpacking that was killed
    make_folder(draft)
    try:
        with writing(draft):
            if archive.suffix.lower() == ".zip":
                _unpack_zip(archive, draft)
            elif only is None:
                _unpack_tar(archive, draft)
            else:
                _unpack_tar_of_tars(archive, draft, only)
            return _move_in(draft, into)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{archive}: cannot be unpacked ({error}); nothing was changed; fetch it again") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


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
    leads_out = PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive or ".." in name.split("/")
    if leads_out or "\\" in name or stat.S_ISLNK(member.external_attr >> 16):
        raise DataError(f"{archive}: member {name!r} leads out of the folder or is a link; this archive is not trusted")


def _unpack_tar(archive: Path, into: Path) -> None:
    _check_tar_filter()
    with tarfile.open(archive) as opened:
        opened.extractall(into, filter="data")


def _unpack_tar_of_tars(archive: Path, into: Path, only: Collection[str]) -> None:
    _check_tar_filter()
    with tarfile.open(archive) as outer:
        for member in outer:
            name = PurePosixPath(member.name).name.removesuffix(".tar")
            stream = outer.extractfile(member) if name in only else None
            if stream is not None:
                with tarfile.open(fileobj=stream) as inner:
                    inner.extractall(into / "train" / name, filter="data")


def _check_tar_filter() -> None:
    if not hasattr(tarfile, "data_filter"):
        raise MissingError("unpacking tar archives safely needs Python 3.11.4 or newer; unpack them with tar instead")


def _check_space(archive: Path, n_bytes: int, into: Path) -> None:
    free = shutil.disk_usage(into).free
    if n_bytes > free:
        raise ShoalError(f"{archive}: needs {n_bytes:,} bytes unpacked, but {free:,} are free in {into}; make room")
