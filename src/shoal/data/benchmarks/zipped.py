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
from shoal.data.benchmarks.pool import ORDER_IS_LOST, Part, Pool
from shoal.data.benchmarks.split import ClassSplit
from shoal.data.readers.folders import IMAGE_SUFFIXES
from shoal.errors import DataError


class ZipImages(Sequence[Image.Image]):
    """The images of a zip archive, opened one by one when they are asked for; safe across forks and pickling."""

    def __init__(self, file: Path, members: Sequence[str]) -> None:
        self.file = file
        self.members = tuple(members)
        self._open: tuple[int, zipfile.ZipFile] | None = None

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: Any) -> Any:
        """The image at `index`; decoding waits until its pixels are needed."""
        if isinstance(index, slice):
            return ZipImages(self.file, self.members[index])
        member = self.members[index]
        try:
            return Image.open(io.BytesIO(self._archive().read(member)))
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{self.file}: {member} cannot be read ({error}); fetch the archive again") from error

    def take(self, order: Ints) -> "ZipImages":
        """The same images in another order."""
        return ZipImages(self.file, [self.members[i] for i in order])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def _archive(self) -> zipfile.ZipFile:
        # A forked process shares the file offset with its parent, so each process opens the archive itself.
        if self._open is None or self._open[0] != os.getpid():
            self._open = (os.getpid(), zipfile.ZipFile(self.file))
        return self._open[1]


def read_ordered_zip(home: Path, part: Part, split: ClassSplit) -> Pool:
    """Read `*-train.zip` or `*-test.zip` whose members stand in official order."""
    return _read(home, part, split, ())


def read_zip(home: Path, part: Part, split: ClassSplit) -> Pool:
    """Read `*-train.zip` or `*-test.zip` whose members were sorted by name, so that the official order is lost."""
    return _read(home, part, split, (ORDER_IS_LOST,) if part == "train" else ())


def zip_name(name: str, part: Part) -> str:
    """The file name of the archive of one part: cub200-train.zip."""
    return f"{'cub200' if name == 'cub' else name}-{part}.zip"


def _read(home: Path, part: Part, split: ClassSplit, notes: tuple[str, ...]) -> Pool:
    file = home / zip_name(split.name, part)
    ids = class_of_folder(split)
    members, class_ids, strange = [], [], 0
    for member in _members(file):
        folders = member.split("/")
        if len(folders) == 3 and folders[0] == part and folders[1] in ids:
            members.append(member)
            class_ids.append(ids[folders[1]])
        else:
            strange += 1
    if strange:
        notes += (f"{strange:,} image(s) of {file.name} lie in no class folder {part}/<class>/ and are not read",)
    without = sorted(set(range(split.n_classes)) - set(class_ids))
    assert split.class_names is not None
    return Pool(
        tuple(members),
        np.array(class_ids, dtype=np.int64),
        split.class_names,
        f"{file.name}, read in place",
        images=ZipImages(file, members),
        absent=tuple(f"{file.name}: {part}/{split.class_names[i]}/" for i in without),
        notes=notes,
    )


def _members(file: Path) -> list[str]:
    try:
        with zipfile.ZipFile(file) as archive:
            return [name for name in archive.namelist() if name.lower().endswith(IMAGE_SUFFIXES)]
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: cannot be read as a zip archive ({error}); fetch it again") from error
