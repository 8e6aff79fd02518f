"""Benchmarks whose classes and parts stand in official lists: CUB, Stanford Cars and
FGVC-Aircraft."""

from pathlib import Path
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.data.benchmarks.official_images import OfficialImages, Part, listed_but_absent
from shoal.data.benchmarks.split import ClassSplit
from shoal.errors import DataError

CARS_TEST_LABELS = "cars_test_annos_withlabels.mat"
LAYOUT = "the official layout"


def read_cub(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read CUB by image id; the test images of train_test_split.txt are never part of training."""
    paths = _by_id(home / "images.txt")
    labels = _by_id(home / "image_class_labels.txt")
    is_training = _by_id(home / "train_test_split.txt")
    class_names = _by_id(home / "classes.txt")
    for file, values in (("image_class_labels.txt", labels), ("train_test_split.txt", is_training)):
        if values.keys() != paths.keys():
            raise DataError(
                f"{home / file}: its image ids are not those of images.txt; unpack the archive "
                "again"
            )
    wanted = {"train": "1", "test": "0"}[part]
    chosen = [i for i in sorted(paths) if is_training[i] == wanted]
    names = [f"images/{paths[i]}" for i in chosen]
    class_ids = [int(labels[i]) - 1 for i in chosen]
    return _official_images(
        home, names, class_ids, tuple(class_names[i] for i in sorted(class_names)), split
    )


def read_cars(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read Stanford Cars by the devkit's tables; class ids are those of cars_meta.mat, which is
    not alphabetical."""
    class_names = tuple(
        " ".join(str(name).split())
        for name in _matrix(home / "devkit" / "cars_meta.mat", "class_names")
    )
    file = home / "devkit" / {"train": "cars_train_annos.mat", "test": CARS_TEST_LABELS}[part]
    if not file.is_file() and (home / CARS_TEST_LABELS).is_file():
        file = (
            home / CARS_TEST_LABELS
        )  # it is distributed apart from the devkit, and often left beside it
    rows = _matrix(file, "annotations")
    if "class" not in (rows.dtype.names or ()):
        raise DataError(
            f"{file}: has no field 'class'; the table with the classes of the test images is needed"
        )
    names = [f"cars_{part}/{name}" for name in rows["fname"]]
    return _official_images(
        home, names, [int(label) - 1 for label in rows["class"]], class_names, split
    )


def read_aircraft(home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read FGVC-Aircraft by variant; ids are positions among the sorted variant names, not lines
    of variants.txt."""
    lists = {"train": "trainval", "test": "test"}
    file = home / "data" / f"images_variant_{lists[part]}.txt"
    rows = [line.split(maxsplit=1) for line in _lines(file)]
    if any(len(row) < 2 for row in rows):
        raise DataError(
            f"{file}: expected an image id and a variant in each line; unpack the archive again"
        )
    class_names = tuple(sorted({variant for _, variant in rows}))
    ids = {variant: i for i, variant in enumerate(class_names)}
    names = [f"data/images/{image}.jpg" for image, _ in rows]
    return _official_images(home, names, [ids[variant] for _, variant in rows], class_names, split)


def _official_images(
    home: Path,
    names: list[str],
    class_ids: list[int],
    class_names: tuple[str, ...],
    split: ClassSplit,
) -> OfficialImages:
    if class_names != split.class_names:
        assert split.class_names is not None
        strange = sorted(set(class_names) ^ set(split.class_names)) or [
            "the same names in another order"
        ]
        raise DataError(
            f"{home}: the {len(class_names)} classes are not the {split.n_classes} of the "
            "published split "
            f"({strange[0]}); another edition of the benchmark would be split wrongly"
        )
    if len(set(names)) < len(names):
        raise DataError(f"{home}: the official lists name an image twice; unpack the archive again")
    ids: Ints = np.array(class_ids, dtype=np.int64)
    return OfficialImages(
        tuple(names), ids, class_names, LAYOUT, root=home, absent=listed_but_absent(home, names)
    )


def _by_id(file: Path) -> dict[int, str]:
    """Lines of 'id value' as a mapping."""
    try:
        return {int(key): value for key, value in (line.split(maxsplit=1) for line in _lines(file))}
    except ValueError as error:
        raise DataError(f"{file}: expected a number and a value in each line ({error})") from error


def _lines(file: Path) -> list[str]:
    try:
        return [
            line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: cannot be read as text ({error}); unpack the archive again"
        ) from error


def _matrix(file: Path, variable: str) -> Any:
    """One variable of a MATLAB file, as a flat array; structures become records with named
    fields."""
    from scipy.io import (
        loadmat,
    )  # a third of a second that readers of other benchmarks need not pay

    try:
        return np.atleast_1d(loadmat(file, squeeze_me=True)[variable])
    except (OSError, ValueError, NotImplementedError, KeyError) as error:
        raise DataError(
            f"{file}: cannot be read as a MATLAB table of {variable} ({error}); fetch it again"
        ) from error
