"""Images read in place from a zip archive of class folders, without unpacking it."""

import io
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shoal.arrays import Ints
from shoal.data.benchmarks.class_folders import class_of_folder
from shoal.data.benchmarks.official_images import (
    ORDER_IS_LOST,
    OfficialImages,
    Part,
    listed_but_absent,
)
from shoal.data.benchmarks.split import ClassSplit
from shoal.data.readers.folders import IMAGE_SUFFIXES
from shoal.errors import DataError
from shoal.words import count, plural


class ZipArchive:
    """A zip archive that each process opens once; threads may read it together."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._process = os.getpid()
        self._archive = self._opened()

    def names(self) -> list[str]:
        """Its members, in the order of the archive."""
        return self._here().namelist()

    def read(self, member: str) -> bytes:
        """The bytes of one member."""
        return self._here().read(member)

    def __reduce__(self) -> tuple[type["ZipArchive"], tuple[Path]]:
        return ZipArchive, (self.file,)

    def _here(self) -> zipfile.ZipFile:
        # A forked process shares the file offset with its parent, so it must open the archive itself.
        if self._process != os.getpid():
            self._archive = self._opened()
            self._process = os.getpid()
        return self._archive

    def _opened(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.file)
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{self.file}: cannot be read as a zip archive ({error}); fetch it again"
            ) from error


class ZipImages(Sequence[Image.Image]):
    """The images of a zip archive, opened one by one when they are asked for."""

    def __init__(self, archive: ZipArchive, members: Sequence[str]) -> None:
        self.archive = archive
        self.members = tuple(members)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: Any) -> Any:
        """The image at `index`; decoding waits until its pixels are needed."""
        if isinstance(index, slice):
            return ZipImages(self.archive, self.members[index])
        member = self.members[index]
        try:
            return Image.open(io.BytesIO(self.archive.read(member)))
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{self.archive.file}: {member} cannot be read ({error}); fetch it again"
            ) from error

    def take(self, order: Ints) -> "ZipImages":
        """The same images in another order, or some of them."""
        return ZipImages(self.archive, [self.members[i] for i in order])


def read_ordered_zip(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read `*-train.zip` or `*-test.zip` whose members stand in official order."""
    return _read(home, part, split, ())


def read_zip(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read `*-train.zip` or `*-test.zip` whose members were sorted by name, so that the official order is lost."""
    return _read(home, part, split, (ORDER_IS_LOST,) if part == "train" else ())


def zip_name(name: str, part: Part) -> str:
    """The file name of the archive of one part: cub200-train.zip."""
    return f"{'cub200' if name == 'cub' else name}-{part}.zip"


def _read(home: Path, part: Part, split: ClassSplit, notes: tuple[str, ...]) -> OfficialImages:
    archive = ZipArchive(home / zip_name(split.name, part))
    ids = class_of_folder(split)
    every = [name for name in archive.names() if name.lower().endswith(IMAGE_SUFFIXES)]
    members = [name for name in every if _class_folder(name, part) in ids]
    if len(members) < len(every):
        n_strange = len(every) - len(members)
        images = f"{count(n_strange, 'image')} of {archive.file.name}"
        notes += (
            f"{images} {plural(n_strange, 'lies')} in no class folder {part}/<class>/: not read",
        )
    class_ids = np.array([ids[_class_folder(name, part)] for name in members], dtype=np.int64)
    names = split.class_names
    assert names is not None
    without = sorted(set(range(split.n_classes)) - set(class_ids.tolist()))
    # Unpacked beside the archive, images are files, which the pixel cache keeps; the order is still the archive's.
    is_unpacked = (home / part).is_dir() and not listed_but_absent(home, members)
    return OfficialImages(
        tuple(members),
        class_ids,
        names,
        f"{part}/ in the order of {archive.file.name}"
        if is_unpacked
        else f"{archive.file.name}, read in place",
        root=home if is_unpacked else None,
        images=None if is_unpacked else ZipImages(archive, members),
        absent=tuple(f"{archive.file.name}: {part}/{names[i]}/" for i in without),
        notes=notes,
    )


def _class_folder(member: str, part: Part) -> str:
    """The class folder of 'train/<class>/<file>'; empty for a member that lies elsewhere."""
    folders = member.split("/")
    return folders[1] if len(folders) == 3 and folders[0] == part else ""
