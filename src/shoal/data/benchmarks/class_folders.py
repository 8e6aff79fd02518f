"""A folder per class: ImageNet, Herbarium, and any benchmark that was unpacked or exported that
way."""

from pathlib import Path

import numpy as np

from shoal.data.benchmarks.official_images import ORDER_IS_LOST, OfficialImages, Part
from shoal.data.benchmarks.split import ClassSplit
from shoal.data.readers.folders import list_folder
from shoal.errors import DataError
from shoal.words import count, first_few, plural

N_SYNSETS = 1_000


def read_herbarium(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read small-train or small-validation; class ids are positions in the sorted folder names
    of small-train."""
    folder = {"train": "small-train", "test": "small-validation"}[part]
    reference = home / "small-train"
    if not reference.is_dir():
        reference = home / folder
    class_names = _sorted_folders(reference)
    if len(class_names) != split.n_classes:
        raise DataError(
            f"{reference}: found {len(class_names)} class folders, expected {split.n_classes}; "
            "the split counts their "
            "sorted names, so all must be there: unpack the archive again"
        )
    return _read(home, folder, class_names, "the official class folders", ())


def read_imagenet(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read the 100 synsets of the split from train or val; other synsets may lie beside them.

    Where all 1,000 are there, the 100 must have the published positions, or these are not the
    folders of ILSVRC 2012.
    """
    folder = {"train": "train", "test": "val"}[part]
    names = _names(split)
    folders = _sorted_folders(home / folder)
    drawn = np.sort(np.random.RandomState(split.seed).choice(N_SYNSETS, len(names), replace=False))
    if len(folders) == N_SYNSETS and tuple(folders[i] for i in drawn) != names:
        raise DataError(
            f"{home / folder}: 1,000 folders, but not the synsets of ILSVRC 2012; expected their "
            "WordNet ids"
        )
    return _read(home, folder, names, "a folder per synset", ())


def read_class_folders(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read train/<class> or test/<class>, classes found by name; which image came first
    officially is not known."""
    notes: tuple[str, ...] = (ORDER_IS_LOST,) if part == "train" else ()
    strange = set(_sorted_folders(home / part)) - {_folder_name(name) for name in _names(split)}
    if strange:
        n_strange = count(len(strange), "folder")
        listed = first_few(sorted(strange))
        notes += (
            f"{n_strange} in {part} {plural(len(strange), 'is')} no class of this benchmark and "
            f"not read: {listed}",
        )
    return _read(home, part, _names(split), "a folder per class", notes)


def class_of_folder(split: ClassSplit) -> dict[str, int]:
    """Folder name -> official class id; a slash in a class name ('F/A-18') is a dash in the
    folder's."""
    return {_folder_name(name): i for i, name in enumerate(_names(split))}


def _read(
    home: Path, part_folder: str, class_names: tuple[str, ...], layout: str, notes: tuple[str, ...]
) -> OfficialImages:
    names: list[str] = []
    class_ids: list[int] = []
    absent = []
    # Class by class, files sorted inside each: the order of an ImageFolder, which sorting whole
    # paths would not give.
    for class_id, class_name in enumerate(class_names):
        folder = f"{part_folder}/{_folder_name(class_name)}"
        images: list[str] = []
        if (home / folder).is_dir():
            images = list_folder(home / folder).names
        if not images:
            absent.append(f"{folder}/")
        names += [f"{folder}/{name}" for name in images]
        class_ids += [class_id] * len(images)
    ids = np.array(class_ids, dtype=np.int64)
    return OfficialImages(
        tuple(names), ids, class_names, layout, root=home, absent=tuple(absent), notes=notes
    )


def _names(split: ClassSplit) -> tuple[str, ...]:
    assert split.class_names is not None, f"{split.name} has no class names"
    return split.class_names


def _folder_name(class_name: str) -> str:
    return class_name.replace("/", "-")


def _sorted_folders(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(
            entry.name
            for entry in folder.iterdir()
            if entry.is_dir() and not entry.name.startswith(".")
        )
    )
