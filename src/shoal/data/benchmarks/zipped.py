"""Images read in place from a zip archive of class folders, without unpacking it."""

import io
import os
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
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


@lru_cache(maxsize=4)
def _open_zip(file: Path, process: int) -> zipfile.ZipFile:
    """An open archive, one per process: forked ones would share the position in the file."""
    try:
        return zipfile.ZipFile(file)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{file}: cannot be read as a zip archive ({error}); fetch it again"
        ) from error


class ZipImages(Sequence[Image.Image]):
    """The images of a zip archive, opened one by one when they are asked for; threads may read
    together."""

    def __init__(self, file: Path, members: Sequence[str]) -> None:
        self.file = file
        self.members = tuple(members)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: Any) -> Any:
        """The image at `index`; decoding waits until its pixels are needed."""
        if isinstance(index, slice):
            return ZipImages(self.file, self.members[index])
        member = self.members[index]
        try:
            return Image.open(io.BytesIO(_open_zip(self.file, os.getpid()).read(member)))
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{self.file}: {member} cannot be read ({error}); fetch it again"
            ) from error

    def take(self, order: Ints) -> "ZipImages":
        """The same images in another order, or some of them."""
        return ZipImages(self.file, [self.members[i] for i in order])


def read_ordered_zip(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read `*-train.zip` or `*-test.zip` whose members stand in official order."""
    file = home / zip_name(split.name, part)
    ids = class_of_folder(split)
    every = _open_zip(file, os.getpid()).namelist()
    images = [name for name in every if name.lower().endswith(IMAGE_SUFFIXES)]
    members = [name for name in images if _class_folder(name, part) in ids]
    notes: tuple[str, ...] = ()
    n_strange = len(images) - len(members)
    if n_strange:
        lie = f"{count(n_strange, 'image')} of {file.name} {plural(n_strange, 'lies')}"
        notes = (f"{lie} in no class folder {part}/<class>/: not read",)
    class_ids = np.array([ids[_class_folder(name, part)] for name in members], dtype=np.int64)
    names = split.class_names
    assert names is not None
    without = sorted(set(range(split.n_classes)) - set(class_ids.tolist()))
    absent = tuple(f"{file.name}: {part}/{names[i]}/" for i in without)
    # Unpacked beside the archive, images are files, which the pixel cache keeps; the order is still
    # the archive's.
    if (home / part).is_dir() and not listed_but_absent(home, members):
        layout = f"{part}/ in the order of {file.name}"
        return OfficialImages(
            tuple(members), class_ids, names, layout, root=home, absent=absent, notes=notes
        )
    return OfficialImages(
        tuple(members),
        class_ids,
        names,
        f"{file.name}, read in place",
        images=ZipImages(file, members),
        absent=absent,
        notes=notes,
    )


def read_zip(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read `*-train.zip` or `*-test.zip` whose members were sorted by name, so that the official
    order is lost."""
    official = read_ordered_zip(home, part, split)
    if part == "test":
        return official
    return replace(official, notes=(ORDER_IS_LOST, *official.notes))


def zip_name(name: str, part: Part) -> str:
    """The file name of the archive of one part: cub200-train.zip."""
    return f"{'cub200' if name == 'cub' else name}-{part}.zip"


def _class_folder(member: str, part: Part) -> str:
    """The class folder of 'train/<class>/<file>'; empty for a member that lies elsewhere."""
    folders = member.split("/")
    if len(folders) == 3 and folders[0] == part:
        return folders[1]
    return ""
