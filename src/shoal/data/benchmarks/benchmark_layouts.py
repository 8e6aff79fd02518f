"""Layouts: in which forms each benchmark may lie on a disk, which files mark each form, and who
reads it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.data.benchmarks import cifar, class_folders, list_files, zipped
from shoal.data.benchmarks.official_images import OfficialImages, Part
from shoal.data.benchmarks.published_facts import get_facts
from shoal.data.benchmarks.split import ClassSplit, load_split
from shoal.data.readers.folders import check_folder
from shoal.errors import DataError

PARTS: tuple[Part, ...] = ("train", "test")
PICKLE_FOLDERS = ("cifar-10-batches-py", "cifar-100-python")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One form of a benchmark: the folders it may lie in, the files that mark it, its reader."""

    words: str
    homes: tuple[str, ...] = ("",)
    """Folders, relative to the root, in which to look; the empty one is the root itself."""
    needs: Mapping[Part, tuple[str, ...]]
    """Files and folders, relative to the home, that must be there for each part; 'a|b' means
    either."""
    read: Callable[[Path, Part, ClassSplit], OfficialImages]


def _folders(train: str = "train", test: str = "test") -> dict[Part, tuple[str, ...]]:
    return {"train": (train,), "test": (test,)}


def _zip_of(name: str, read: Callable[[Path, Part, ClassSplit], OfficialImages]) -> Layout:
    needs: dict[Part, tuple[str, ...]] = {part: (zipped.zip_name(name, part),) for part in PARTS}
    return Layout(words="a zip archive per part", needs=needs, read=read)


CLASS_FOLDERS = Layout(
    words="train/<class>/ and test/<class>/ folders",
    needs=_folders(),
    read=class_folders.read_class_folders,
)
CUB_LISTS = (
    "images.txt",
    "image_class_labels.txt",
    "train_test_split.txt",
    "classes.txt",
    "images",
)
CARS_TEST_LABELS = f"devkit/{list_files.CARS_TEST_LABELS}|{list_files.CARS_TEST_LABELS}"

LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "cifar10": (
        Layout(
            words="the official binary version",
            homes=("", "cifar-10-batches-bin"),
            needs=cifar.CIFAR10_FILES,
            read=cifar.read_cifar10,
        ),
        _zip_of("cifar10", zipped.read_zip),
        CLASS_FOLDERS,
    ),
    "cifar100": (
        Layout(
            words="the official binary version",
            homes=("", "cifar-100-binary"),
            needs=cifar.CIFAR100_FILES,
            read=cifar.read_cifar100,
        ),
        _zip_of("cifar100", zipped.read_zip),
        CLASS_FOLDERS,
    ),
    "imagenet100": (
        Layout(
            words="train/<synset>/ and val/<synset>/ folders",
            homes=("", "ILSVRC/Data/CLS-LOC"),
            needs=_folders("train", "val"),
            read=class_folders.read_imagenet,
        ),
    ),
    "cub": (
        Layout(
            words="the official lists and images",
            homes=("", "CUB_200_2011"),
            needs={"train": CUB_LISTS, "test": CUB_LISTS},
            read=list_files.read_cub,
        ),
        _zip_of("cub", zipped.read_ordered_zip),
        CLASS_FOLDERS,
    ),
    "cars": (
        Layout(
            words="the official devkit and images",
            homes=("", "stanford_cars"),
            needs={
                "train": ("devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_train"),
                "test": ("devkit/cars_meta.mat", CARS_TEST_LABELS, "cars_test"),
            },
            read=list_files.read_cars,
        ),
        CLASS_FOLDERS,
    ),
    "aircraft": (
        Layout(
            words="the official lists and images",
            homes=("", "fgvc-aircraft-2013b"),
            needs={
                "train": ("data/images_variant_trainval.txt", "data/images"),
                "test": ("data/images_variant_test.txt", "data/images"),
            },
            read=list_files.read_aircraft,
        ),
        CLASS_FOLDERS,
    ),
    "herbarium19": (
        Layout(
            words="small-train/<class>/ and small-validation/<class>/ folders",
            homes=("", "herbarium_19", "herbarium-2019-fgvc6"),
            needs=_folders("small-train", "small-validation"),
            read=class_folders.read_herbarium,
        ),
    ),
}


@dataclass(frozen=True)
class Candidate:
    """A layout looked for in one home, with what of it is there."""

    layout: Layout
    home: Path
    present: tuple[str, ...]
    missing: tuple[str, ...]


def find_layout(name: str, root: Path, part: Part) -> Candidate:
    """The first layout that is all there; otherwise the one nearest to it, whose `missing` says
    what is not.

    Where nothing of the part is there in any layout, the nearest is the one in which another part
    is.
    """
    tried = [
        _candidate(layout, root / home, part) for layout in LAYOUTS[name] for home in layout.homes
    ]
    for candidate in tried:
        if not candidate.missing:
            return candidate

    def nearness(candidate: Candidate) -> tuple[int, int]:
        others = [
            _candidate(candidate.layout, candidate.home, other) for other in PARTS if other != part
        ]
        return len(candidate.present), sum(not other.missing for other in others)

    return max(tried, key=nearness)


def read_official(name: str, root: Path, part: Part) -> OfficialImages:
    """Read one part in whichever layout it lies under `root`; absent images are listed, not
    refused."""
    candidate = check_part(name, root, part)
    return candidate.layout.read(candidate.home, part, load_split(name))


def check_part(name: str, root: Path, part: Part) -> Candidate:
    """The layout of one part; refuse a folder that has none, before anything is read."""
    candidate = find_layout(name, check_folder(root), part)
    if candidate.missing:
        raise DataError(
            f"{root}: the {part} part of {get_facts(name).title} is not there; missing: "
            f"{', '.join(candidate.missing)} "
            f"({candidate.layout.words}){hint_at_pickles(root)}; "
            f"`shoal datasets prepare {name} {root}` says where to get it"
        )
    return candidate


def hint_at_pickles(root: Path) -> str:
    """Words for those who have CIFAR's Python version, which is pickles and never opened."""
    for name in PICKLE_FOLDERS:
        if (root / name).exists():
            never = "holds pickles, which are never opened: get the binary version"
            return f"; {name} is there, but {never}"
    return ""


def _candidate(layout: Layout, home: Path, part: Part) -> Candidate:
    present = []
    missing = []
    for need in layout.needs[part]:
        names = need.split("|")
        file = next((name for name in names if (home / name).exists()), None)
        if file is None:
            missing.append(" or ".join(names))
        else:
            present.append(file)
    return Candidate(layout, home, tuple(present), tuple(missing))
