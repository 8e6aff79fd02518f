"""Every image of one part of a benchmark in its official order, each with its true class; and in
which layouts a benchmark may lie on a disk.

The labeled draw of the published splits is a draw of positions in this order, so the order is part
of the split. Only `benchmark.py` and `preparation.py` see these; everybody else gets a
`Collection` without hidden labels.
"""

import io
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shoal.arrays import Ints
from shoal.data.benchmarks.published_facts import Layout, Part, get_facts
from shoal.data.benchmarks.split import ClassSplit
from shoal.data.collection import Images
from shoal.data.readers.folders import IMAGE_SUFFIXES, list_folder
from shoal.errors import DataError

PARTS: tuple[Part, ...] = ("train", "test")

ORDER_IS_LOST = (
    "the official order of the images is not kept in this layout: the labeled images are a draw "
    "of the published size, but other images than the published draw"
)
CIFAR_SIDE = 32
PICKLES = ("cifar-10-batches-py", "cifar-100-python")


Files = tuple[str, ...]
"""The files and folders of a part that mark its layout, relative to its home."""


@dataclass(frozen=True, eq=False)
class OfficialImages:
    """N images in official order; files under `root`, or `images` in memory or in an archive."""

    names: tuple[str, ...]
    """Unique; for files the path relative to `root`."""
    class_ids: Ints
    """(N,) official class ids."""
    classes: tuple[str, ...]
    """Class names by official id."""
    layout: str
    root: Path | None = None
    images: Images | None = None
    absent: tuple[str, ...] = ()
    """What the official lists name and the disk does not hold, relative to `root`."""
    notes: tuple[str, ...] = ()


# CIFAR


def _read_cifar(home: Path, files: Files, part: Part, split: ClassSplit) -> OfficialImages:
    """Read the binary version: records of label bytes and 32 x 32 x 3 pixel bytes.

    The first label byte of CIFAR-100 is the coarse class, the second the fine one, which counts.
    """
    n_label_bytes = 2 if split.name == "cifar100" else 1
    n_bytes = n_label_bytes + 3 * CIFAR_SIDE**2
    records = []
    for name in files:
        raw = np.fromfile(home / name, dtype=np.uint8)
        if not len(raw) or len(raw) % n_bytes:
            raise DataError(
                f"{home / name}: found {len(raw):,} bytes, expected a whole number of records of "
                f"{n_bytes:,} bytes; the file is cut off or of another kind: download the binary "
                "version again"
            )
        records.append(raw.reshape(-1, n_bytes))
    joined = np.concatenate(records)
    class_ids = joined[:, n_label_bytes - 1].astype(np.int64)
    if class_ids.max() >= split.n_classes:
        raise DataError(
            f"{home}: found label {class_ids.max()}, expected 0 to {split.n_classes - 1}; these "
            "are not the files of this benchmark"
        )
    planes = joined[:, n_label_bytes:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE)  # red, green, blue
    return OfficialImages(
        tuple(f"{part}-{i:05d}" for i in range(len(joined))),
        class_ids,
        split.class_names,
        "the official binary version",
        images=np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),  # (N, 32, 32, 3)
    )


# A folder per class


def _read_herbarium(home: Path, files: Files, part: Part, split: ClassSplit) -> OfficialImages:
    """Read small-train or small-validation; class ids are positions in the sorted folder names
    of small-train."""
    reference = home / "small-train"
    if not reference.is_dir():
        reference = home / files[0]
    classes = sorted(entry.name for entry in reference.iterdir() if entry.is_dir())
    if len(classes) != split.n_classes:
        raise DataError(
            f"{reference}: found {len(classes)} class folders, expected {split.n_classes}; the "
            "split counts their sorted names, so all must be there: unpack the archive again"
        )
    return _read_folders(home, files[0], tuple(classes))


def _read_imagenet(home: Path, files: Files, part: Part, split: ClassSplit) -> OfficialImages:
    """Read the 100 synsets of the split from train or val; other synsets may lie beside them."""
    return _read_folders(home, files[0], split.class_names)


def _read_class_folders(home: Path, files: Files, part: Part, split: ClassSplit) -> OfficialImages:
    """Read train/<class> or test/<class>; which image came first officially is not known."""
    return _without_order(_read_folders(home, files[0], split.class_names), part)


def _read_folders(home: Path, part_folder: str, classes: tuple[str, ...]) -> OfficialImages:
    names: list[str] = []
    class_ids: list[int] = []
    absent = []
    # Class by class, files sorted inside each: the order of an ImageFolder, which sorting whole
    # paths would not give.
    for class_id, class_name in enumerate(classes):
        folder = f"{part_folder}/{_folder_of(class_name)}"
        images = list_folder(home / folder).names
        if not images:
            absent.append(f"{folder}/")
        names += [f"{folder}/{name}" for name in images]
        class_ids += [class_id] * len(images)
    return OfficialImages(
        tuple(names),
        np.array(class_ids, dtype=np.int64),
        classes,
        "a folder per class",
        root=home,
        absent=tuple(absent),
    )


def _folder_of(class_name: str) -> str:
    """A slash in a class name ('F/A-18') is a dash in the folder's."""
    return class_name.replace("/", "-")


def _without_order(official: OfficialImages, part: Part) -> OfficialImages:
    if part == "test":
        return official
    return replace(official, notes=(ORDER_IS_LOST,))


# Official lists


def _read_cub(home: Path, files: Files, part: Part, split: ClassSplit) -> OfficialImages:
    """Read CUB by image id; the test images of train_test_split.txt are never part of training."""
    paths = _read_ids(home / "images.txt")
    labels = _read_ids(home / "image_class_labels.txt")
    is_training = _read_ids(home / "train_test_split.txt")
    class_names = _read_ids(home / "classes.txt")
    if not paths.keys() == labels.keys() == is_training.keys():
        raise DataError(f"{home}: the lists name different image ids; unpack the archive again")
    wanted = {"train": "1", "test": "0"}[part]
    chosen = [i for i in sorted(paths) if is_training[i] == wanted]
    names = [f"images/{paths[i]}" for i in chosen]
    classes = tuple(class_names[i] for i in sorted(class_names))
    return _listed(home, names, [int(labels[i]) - 1 for i in chosen], classes, split)


def _read_cars(home: Path, files: Files, part: Part, split: ClassSplit) -> OfficialImages:
    """Read Stanford Cars by the devkit's tables; class ids are those of cars_meta.mat, which is
    not alphabetical."""
    meta = _read_matrix(home / "devkit" / "cars_meta.mat", "class_names")
    classes = tuple(" ".join(str(name).split()) for name in meta)
    file = home / files[0]
    rows = _read_matrix(file, "annotations")
    if "class" not in (rows.dtype.names or ()):
        raise DataError(
            f"{file}: has no field 'class'; the table with the classes of the test images is needed"
        )
    names = [f"cars_{part}/{name}" for name in rows["fname"]]
    return _listed(home, names, [int(label) - 1 for label in rows["class"]], classes, split)


def _read_aircraft(home: Path, files: Files, part: Part, split: ClassSplit) -> OfficialImages:
    """Read FGVC-Aircraft by variant; ids are positions among the sorted variant names, not lines
    of variants.txt."""
    rows = _read_lines(home / files[0])
    classes = tuple(sorted({variant for _, variant in rows}))
    ids = {variant: i for i, variant in enumerate(classes)}
    names = [f"data/images/{image}.jpg" for image, _ in rows]
    return _listed(home, names, [ids[variant] for _, variant in rows], classes, split)


def _listed(
    home: Path, names: list[str], class_ids: list[int], classes: tuple[str, ...], split: ClassSplit
) -> OfficialImages:
    if classes != split.class_names:
        raise DataError(
            f"{home}: the {len(classes)} classes are not the {split.n_classes} of the published "
            "split, or in another order; another edition of the benchmark would be split wrongly"
        )
    if len(set(names)) < len(names):
        raise DataError(f"{home}: the official lists name an image twice; unpack the archive again")
    return OfficialImages(
        tuple(names),
        np.array(class_ids, dtype=np.int64),
        classes,
        "the official layout",
        root=home,
        absent=_absent(home, names),
    )


def _absent(root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The names that are no files under `root`; each folder is read once."""

    @cache
    def files_in(folder: str) -> frozenset[str]:
        if not (root / folder).is_dir():
            return frozenset()
        return frozenset(os.listdir(root / folder))  # noqa: PTH208

    return tuple(
        name for name in names if name.rpartition("/")[2] not in files_in(name.rpartition("/")[0])
    )


def _read_ids(file: Path) -> dict[int, str]:
    try:
        return {int(key): value for key, value in _read_lines(file)}
    except ValueError as error:
        raise DataError(f"{file}: expected a number and a value in each line ({error})") from error


def _read_lines(file: Path) -> list[list[str]]:
    """The two words of each line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: cannot be read as text ({error}); unpack the archive again"
        ) from error
    rows = [line.strip().split(maxsplit=1) for line in lines if line.strip()]
    if any(len(row) < 2 for row in rows):
        raise DataError(f"{file}: expected two values in each line; unpack the archive again")
    return rows


def _read_matrix(file: Path, variable: str) -> "NDArray[np.void]":
    """One variable of a MATLAB file, as a flat array; structures become records with named
    fields."""
    from scipy.io import loadmat  # a third of a second that readers of others need not pay

    try:
        matrix: NDArray[np.void] = np.atleast_1d(loadmat(file, squeeze_me=True)[variable])
    except (OSError, ValueError, NotImplementedError, KeyError) as error:
        raise DataError(
            f"{file}: cannot be read as a MATLAB table of {variable} ({error}); fetch it again"
        ) from error
    return matrix


# A zip archive of class folders, read in place


@lru_cache(maxsize=4)
def _open_zip(file: Path, process: int) -> zipfile.ZipFile:
    """An open archive, one per process: forked ones would share the position in the file."""
    try:
        return zipfile.ZipFile(file)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{file}: cannot be read as a zip archive ({error}); fetch it again"
        ) from error


class ZipImages:
    """The images of a zip archive, opened one by one when they are asked for; threads may read
    together."""

    def __init__(self, file: Path, members: Sequence[str]) -> None:
        self.file = file
        self.members = tuple(members)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: int) -> Image.Image:
        """The image at `index`; decoding waits until its pixels are needed."""
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


def _read_ordered_zip(home: Path, files: Files, part: Part, split: ClassSplit) -> OfficialImages:
    """Read `*-train.zip` or `*-test.zip` whose members stand in official order."""
    file = home / files[0]
    folders = [f"{part}/{_folder_of(name)}" for name in split.class_names]
    ids = {folder: i for i, folder in enumerate(folders)}
    every = _open_zip(file, os.getpid()).namelist()
    images = [name for name in every if name.lower().endswith(IMAGE_SUFFIXES)]
    members = [name for name in images if name.rpartition("/")[0] in ids]
    class_ids = [ids[name.rpartition("/")[0]] for name in members]
    without = [folders[i] for i in sorted(set(range(len(folders))) - set(class_ids))]
    official = OfficialImages(
        tuple(members),
        np.array(class_ids, dtype=np.int64),
        split.class_names,
        f"{file.name}, read in place",
        images=ZipImages(file, members),
        absent=tuple(f"{file.name}: {folder}/" for folder in without),
    )
    # Unpacked beside the archive, images are files, which the pixel cache keeps; the order is still
    # the archive's.
    if (home / part).is_dir() and not _absent(home, members):
        layout = f"{part}/ in the order of {file.name}"
        return replace(official, layout=layout, root=home, images=None)
    return official


def _read_zip(home: Path, files: Files, part: Part, split: ClassSplit) -> OfficialImages:
    """Read an archive whose members were sorted by name, so that the official order is lost."""
    return _without_order(_read_ordered_zip(home, files, part, split), part)


READERS = {
    "cifar": _read_cifar,
    "herbarium": _read_herbarium,
    "imagenet": _read_imagenet,
    "class_folders": _read_class_folders,
    "cub": _read_cub,
    "cars": _read_cars,
    "aircraft": _read_aircraft,
    "ordered_zip": _read_ordered_zip,
    "zip": _read_zip,
}
"""What reads each layout: from its home, the files that mark it, the part and the split."""


class Candidate(NamedTuple):
    """A layout looked for in one home, with what of it is there."""

    layout: Layout
    home: Path
    present: tuple[str, ...]
    missing: tuple[str, ...]

    def read(self, part: Part, split: ClassSplit) -> OfficialImages:
        """Read the images of a part, which is all there."""
        return READERS[self.layout.read](self.home, self.present, part, split)


def find_layout(name: str, root: Path, part: Part) -> Candidate:
    """The first layout that is all there; otherwise the one nearest to it, whose `missing` says
    what is not.

    Where nothing of the part is there in any layout, the nearest is the one in which the other
    part is.
    """
    other: Part = "test" if part == "train" else "train"
    tried = [(layout, root / home) for layout in get_facts(name).layouts for home in layout.homes]

    def nearness(candidate: tuple[Layout, Path]) -> tuple[bool, int, bool]:
        here = _look(*candidate, part)
        return not here.missing, len(here.present), not _look(*candidate, other).missing

    return _look(*max(tried, key=nearness), part)


def _look(layout: Layout, home: Path, part: Part) -> Candidate:
    present = []
    missing = []
    for need in layout.needs[part]:
        files = need.split("|")
        there = [file for file in files if (home / file).exists()]
        present += there[:1]
        if not there:
            missing.append(" or ".join(files))
    return Candidate(layout, home, tuple(present), tuple(missing))


def hint_at_pickles(root: Path) -> str:
    """Words for those who have CIFAR's Python version, which is pickles and never opened."""
    there = [name for name in PICKLES if (root / name).exists()]
    if not there:
        return ""
    return f"{there[0]} holds pickles, which are never opened: get the binary version"
