"""Downloaded archives: read to the end for damage, and unpacked: nothing outside the folder,
nothing overwritten, nothing half done."""

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from shoal.errors import DataError
from shoal.files import make_folder, writing

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
"""Errors of reading a damaged or unknown archive; zipfile raises NotImplementedError for a
compression that it does not know."""


def find_damage(archive: Path) -> str:
    """Read a zip or tar archive to its end and say what of it is damaged; empty where every
    checksum is right.

    Every member of a zip has a checksum, a gzipped tar has one of all, a plain tar of the names
    alone.
    """
    try:
        if archive.suffix.lower() == ".zip":
            with zipfile.ZipFile(archive) as opened:
                damage = opened.testzip() or ""
        else:
            with tarfile.open(archive) as tar:
                for _ in tar:
                    pass
                damage = _read_to_end(tar)
    except (*BROKEN, OSError) as error:
        damage = " ".join(str(error).split())
    if damage:
        return f"{archive}: is damaged ({damage}); fetch it again"
    return ""


def _read_to_end(tar: tarfile.TarFile) -> str:
    """Read what follows the members: zeros, and the checksum of a gzipped tar."""
    assert tar.fileobj is not None
    while block := tar.fileobj.read(BLOCK):
        if block.strip(b"\0"):
            return f"its members end at byte {tar.offset:,}, but more follows"
    return ""


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
            try:
                _extract(archive, draft, only)
            except BROKEN as error:
                why = " ".join(str(error).split())
                raise DataError(
                    f"{archive}: cannot be unpacked ({why}); nothing was changed; fetch it again"
                ) from error
            appeared = []
            for entry in sorted(draft.iterdir()):
                target = into / entry.name
                if not target.exists() and not target.is_symlink():
                    entry.rename(target)
                    appeared.append(entry.name)
            return tuple(appeared)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _extract(archive: Path, into: Path, only: Collection[str] | None) -> None:
    if archive.suffix.lower() == ".zip":
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(into)  # which writes nothing outside, and no links
        return
    with tarfile.open(archive) as tar:
        if only is None:
            tar.extractall(into, filter="data")
            _read_to_end(tar)
            return
        for member in tar:
            name = PurePosixPath(member.name).name.removesuffix(".tar")
            stream = tar.extractfile(member)
            if name in only and stream is not None:
                with tarfile.open(fileobj=stream) as inner:
                    inner.extractall(into / "train" / name, filter="data")
