"""Benchmarks: their published counts and class splits, their images in official order, each part as
a collection without hidden labels, with the truth for evaluation, and their verification.

The published splits label a sample of positions in the official order, so the order is part of the
split. The verification says what is missing and compares counts with the published ones.
`splits/SHA256SUMS` holds the checksum of each split; a test compares them.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.data.collection import Collection
from shoal.data.readers.folders import IMAGE_SUFFIXES, check_folder, list_folder
from shoal.data.storage import Location, reading
from shoal.errors import DataError, UnknownName, first_few

Part = Literal["train", "test"]

PARTS: tuple[Part, ...] = ("train", "test")

ORDER_IS_LOST = (
    "this layout does not preserve the official order of the images: as many images are labeled as "
    "in the published split, but not the same ones"
)
CIFAR_SIDE = 32
CUB_LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
PUBLISHED = "file of the published benchmark"

# How many missing files the text lists; JSON lists them all
MAX_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One form in which a benchmark may be stored on a disk."""

    words: str
    # Folders, relative to the root, in which to look; the empty one is the root itself
    homes: list[str] = field(default_factory=lambda: [""])
    # Files and folders, relative to the home, that each part consists of
    needs: dict[Part, list[str]]
    # The reader, a key of `READERS`
    read: str
    # Whether images can be read in official order, on which the published split depends
    has_official_order: bool = True


@dataclass(frozen=True, kw_only=True)
class BenchmarkFacts:
    """Published counts, origin and terms of one benchmark."""

    title: str
    # Images of the training part, labeled and unlabeled
    n_images: int
    n_test: int
    # K, known and novel classes together
    n_classes: int
    n_known: int
    n_labeled: int
    n_unlabeled: int
    # Tolerance of the numbers of labeled and unlabeled images, if they were published rounded or
    # counted indirectly
    labeled_within: int = 0
    page: str
    terms: str
    layout: str
    # Layouts that can be read; the first complete one is
    layouts: list[Layout]
    # Files to download and unpack
    archives: list[str]

    def n_images_of(self, part: Part) -> int:
        return {"train": self.n_images, "test": self.n_test}[part]


def _read_facts() -> dict[str, BenchmarkFacts]:
    content = yaml.safe_load((files(__package__) / "benchmarks.yaml").read_text(encoding="utf-8"))
    facts = {}
    for name, values in content.items():
        layouts = [Layout(**layout) for layout in values.pop("layouts")]
        facts[name] = BenchmarkFacts(**values, layouts=layouts)
    return facts


BENCHMARKS = _read_facts()


def get_facts(name: str) -> BenchmarkFacts:
    if name not in BENCHMARKS:
        raise UnknownName("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]


@dataclass(frozen=True)
class ClassSplit:
    """Known and novel classes by official id, and how labeled images are sampled."""

    name: str
    # Official ids in the order of the split; their positions 0, 1, … are the labels
    known: tuple[int, ...]
    # Official ids that follow; positions count on
    novel: tuple[int, ...]
    # Names by official id; empty if only the downloaded folders have them
    class_names: tuple[str, ...]
    labeled_share: float
    seed: int
    # Checksum of the file, to be recorded with every result
    sha256: str

    @property
    def n_classes(self) -> int:
        return len(self.known) + len(self.novel)

    @property
    def positions(self) -> Ints:
        """(K,) label of each official id, known classes first in the order of the split."""
        positions = np.empty(self.n_classes, dtype=np.int64)
        positions[[*self.known, *self.novel]] = np.arange(self.n_classes)
        return positions


@cache
def load_split(name: str) -> ClassSplit:
    facts = get_facts(name)
    raw = (files(__package__) / "splits" / f"{name}.json").read_bytes()
    content = json.loads(raw)
    known = {entry["id"]: entry.get("name") for entry in content["known"]}
    novel = {entry["id"]: entry.get("name") for entry in content["novel"]}
    names = known | novel
    split = ClassSplit(
        name,
        tuple(known),
        tuple(novel),
        tuple(names[i] for i in range(len(names)) if names[i] is not None),
        content["labeled_draw"]["share"],
        content["labeled_draw"]["seed"],
        hashlib.sha256(raw).hexdigest(),
    )
    assert (split.n_classes, len(split.known)) == (facts.n_classes, facts.n_known)
    return split


@dataclass(frozen=True)
class OfficialImages:
    """N images in official order: files under `root`, or `images` in memory or in a zip archive."""

    # Unique; for files the path relative to `root`
    names: Sequence[str]
    class_ids: Ints | Sequence[int]  # (N,) official class ids
    # Class names by official id
    classes: tuple[str, ...]
    layout: str
    root: Path | None = None
    images: Any = None
    # Files and class folders that should be in the layout but are missing
    absent: Sequence[str] = ()
    notes: tuple[str, ...] = ()


class ZipImages:
    """Images of a zip archive, opened one by one on access; several threads may read."""

    def __init__(self, archive: zipfile.ZipFile, members: Sequence[str]) -> None:
        self.archive = archive
        self.members = members

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: int) -> Image.Image:
        """Return the image at `index`; PIL decodes it when its pixels are needed."""
        return Image.open(io.BytesIO(self.archive.read(self.members[index])))


def find_layout(name: str, root: Path, part: Part) -> tuple[Layout, Path, list[str]]:
    """Return the first complete layout of a part, the folder it is in, and an empty list.

    If none is complete, return the one of which most is present, and the files that are missing.
    """
    found = []
    for layout in get_facts(name).layouts:
        for home in layout.homes:
            needs = layout.needs[part]
            missing = [file for file in needs if not (root / home / file).exists()]
            found.append((layout, root / home, missing))
    return max(found, key=lambda row: (not row[2], len(row[0].needs[part]) - len(row[2])))


def read_images(layout: Layout, home: Path, part: Part, split: ClassSplit) -> OfficialImages:
    """Read the images of a part in a layout that is complete."""
    official = READERS[layout.read](home, layout.needs[part], part, split)
    if part == "train" and not layout.has_official_order:
        official = replace(official, notes=(ORDER_IS_LOST,))
    return official


def _read_cifar(home: Path, files: list[str], part: Part, split: ClassSplit) -> OfficialImages:
    """Read the binary version: records of label bytes and 32 x 32 x 3 pixel bytes.

    The first label byte of CIFAR-100 is the coarse class, the second the fine class, which counts.
    """
    n_label_bytes = 2 if split.name == "cifar100" else 1
    records = []
    for name in files:
        with reading(home / name, PUBLISHED):
            raw = np.fromfile(home / name, dtype=np.uint8)
            records.append(raw.reshape(-1, n_label_bytes + 3 * CIFAR_SIDE**2))
            if records[-1][:, n_label_bytes - 1].max() >= split.n_classes:
                raise ValueError(f"labels above {split.n_classes - 1}")
    joined = np.concatenate(records)
    planes = joined[:, n_label_bytes:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE)  # red, green, blue
    return OfficialImages(
        [f"{part}-{i:05d}" for i in range(len(joined))],
        joined[:, n_label_bytes - 1].astype(np.int64),
        split.class_names,
        "the official binary version",
        images=np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),  # (N, 32, 32, 3)
    )


def _read_herbarium(home: Path, files: list[str], part: Part, split: ClassSplit) -> OfficialImages:
    """Read small-train or small-validation.

    Class ids are positions in the sorted folder names of small-train.
    """
    reference = home / "small-train"
    if not reference.is_dir():
        reference = home / files[0]
    classes = sorted(entry.name for entry in reference.iterdir() if entry.is_dir())
    if len(classes) != split.n_classes:
        raise DataError(
            f"{reference}: found {len(classes)} class folders, expected {split.n_classes}; class "
            "ids are positions among all of them: unpack the archive again"
        )
    return _read_class_folders(home, files, part, replace(split, class_names=tuple(classes)))


def _read_class_folders(
    home: Path, files: list[str], part: Part, split: ClassSplit
) -> OfficialImages:
    """Read the classes of the split from train/<class>, test/<class> or val/<class>; the slash of
    'F/A-18' is a dash in the name of its folder."""
    names: list[str] = []
    class_ids: list[int] = []
    absent = []
    # Class by class, files sorted inside each: the order of torchvision's ImageFolder, which
    # sorting whole paths would not give.
    for class_id, class_name in enumerate(split.class_names):
        folder = f"{files[0]}/{class_name.replace('/', '-')}"
        images = list_folder(home / folder).names
        if not images:
            absent.append(f"{folder}/")
        names += [f"{folder}/{name}" for name in images]
        class_ids += [class_id] * len(images)
    return OfficialImages(
        names, class_ids, split.class_names, "a folder per class", root=home, absent=absent
    )


def _read_zip(home: Path, files: list[str], part: Part, split: ClassSplit) -> OfficialImages:
    """Read a zip archive of `train/<class>/` or `test/<class>/` in place, in its own order."""
    file = home / files[0]
    ids = {f"{part}/{name.replace('/', '-')}": i for i, name in enumerate(split.class_names)}
    with reading(file, PUBLISHED):
        archive = zipfile.ZipFile(file)
    names = [
        name
        for name in archive.namelist()
        if name.lower().endswith(IMAGE_SUFFIXES) and name.rpartition("/")[0] in ids
    ]
    folders = [name.rpartition("/")[0] for name in names]
    return OfficialImages(
        names,
        [ids[folder] for folder in folders],
        split.class_names,
        f"{file.name}, read in place",
        images=ZipImages(archive, names),
        absent=[f"{file.name}: {folder}/" for folder in ids if folder not in set(folders)],
    )


def _read_cub(home: Path, files: list[str], part: Part, split: ClassSplit) -> OfficialImages:
    """Read CUB by image id; the test images of train_test_split.txt are never part of training."""
    tables = [dict(_read_lines(home / name)) for name in CUB_LISTS]
    paths, labels, is_training, class_names = tables
    flag = {"train": "1", "test": "0"}[part]
    with reading(home / "images.txt", PUBLISHED):
        chosen = [i for i in sorted(paths, key=int) if is_training[i] == flag]
        class_ids = [int(labels[i]) - 1 for i in chosen]
        classes = tuple(class_names[i] for i in sorted(class_names, key=int))
    return _listed(home, [f"images/{paths[i]}" for i in chosen], class_ids, classes, split)


def _read_cars(home: Path, files: list[str], part: Part, split: ClassSplit) -> OfficialImages:
    """Read Stanford Cars by the devkit's tables.

    Class ids are those of cars_meta.mat, which is not alphabetical.
    """
    meta = _read_matrix(home / "devkit" / "cars_meta.mat", "class_names")
    classes = tuple(" ".join(str(name).split()) for name in meta)
    file = home / files[0]
    rows = _read_matrix(file, "annotations")
    with reading(file, PUBLISHED):  # the devkit's own table of test images has no field 'class'
        class_ids = [int(label) - 1 for label in rows["class"]]
    names = [f"cars_{part}/{name}" for name in rows["fname"]]
    return _listed(home, names, class_ids, classes, split)


def _read_aircraft(home: Path, files: list[str], part: Part, split: ClassSplit) -> OfficialImages:
    """Read FGVC-Aircraft by variant.

    Class ids are positions among the sorted variant names, not lines of variants.txt.
    """
    rows = _read_lines(home / files[0])
    classes = tuple(sorted({variant for _, variant in rows}))
    ids = {variant: i for i, variant in enumerate(classes)}
    names = [f"data/images/{image}.jpg" for image, _ in rows]
    return _listed(home, names, [ids[variant] for _, variant in rows], classes, split)


def _listed(
    home: Path, names: list[str], class_ids: list[int], classes: tuple[str, ...], split: ClassSplit
) -> OfficialImages:
    """Build the images that official lists name; find out which of them are missing."""
    if classes != split.class_names or len(set(names)) < len(names):
        raise DataError(
            f"{home}: the official lists name an image twice, or other classes than the "
            f"{split.n_classes} of the published split; unpack the archive again"
        )

    absent = [name for name in names if not (home / name).is_file()]
    return OfficialImages(
        names, class_ids, classes, "the official layout", root=home, absent=absent
    )


def _read_lines(file: Path) -> list[tuple[str, str]]:
    """Return the first word and the rest of each line that is not blank."""
    rows = []
    with reading(file, PUBLISHED):
        for line in filter(str.strip, file.read_text(encoding="utf-8").splitlines()):
            first, rest = line.strip().split(maxsplit=1)
            rows.append((first, rest))
    return rows


def _read_matrix(file: Path, variable: str) -> NDArray[np.void]:
    """Return one variable of a MATLAB file as a flat array; structures become records."""
    from scipy.io import loadmat  # takes a third of a second to import

    with reading(file, PUBLISHED):
        return np.atleast_1d(loadmat(file, squeeze_me=True)[variable])


# Readers by the name used in benchmarks.yaml
READERS = {
    "cifar": _read_cifar,
    "herbarium": _read_herbarium,
    "class_folders": _read_class_folders,
    "cub": _read_cub,
    "cars": _read_cars,
    "aircraft": _read_aircraft,
    "zip": _read_zip,
}


@dataclass(frozen=True)
class Benchmark:
    """One part of a benchmark under a known/novel split."""

    # Labels of the sampled images of known classes; -1 for all others and for the test part
    collection: Collection
    truth: Ints  # (N,) true classes in the same order, known ones first; for evaluation only
    split: ClassSplit

    @property
    def is_known(self) -> Bools:
        return self.truth < len(self.split.known)


def read_benchmark(name: str, root: Location, *, part: Part = "train") -> Benchmark:
    """Read a benchmark from one of its layouts under `root`.

    In the official order of images, the labeled images are exactly those of the published split.
    Counts that differ from the published ones become notes of the collection;
    missing images are an error.
    """
    if part not in PARTS:
        raise UnknownName("part", part, PARTS)
    folder = check_folder(root)
    split = load_split(name)
    layout, home, missing = find_layout(name, folder, part)
    if not missing:
        official = read_images(layout, home, part, split)
        missing = [*official.absent]
    if missing:
        raise DataError(
            f"{folder}: {len(missing):,} files of the {part} part of {get_facts(name).title} are "
            f"missing ({layout.words}): {first_few(missing)}; `shoal datasets verify {name} "
            f"{folder}` lists them all, and where to get them"
        )
    return build(name, official, split, part)


def build(name: str, official: OfficialImages, split: ClassSplit, part: Part) -> Benchmark:
    """Sample the labeled images in official order, then sort by name, as collections are."""
    facts = get_facts(name)
    true_labels = split.positions[np.asarray(official.class_ids)]  # (N,) known classes first
    labels = np.full(len(true_labels), UNLABELED, dtype=np.int64)
    if part == "train":
        labels = known_novel_split(
            true_labels, range(len(split.known)), split.labeled_share, seed=split.seed
        )
    n_images = len(official.names)
    order = np.array(sorted(range(n_images), key=official.names.__getitem__), dtype=np.int64)
    names = tuple(official.names[i] for i in order)
    images = official.images
    if isinstance(images, ZipImages):
        images = ZipImages(images.archive, names)
    elif images is not None and (np.diff(order) < 0).any():  # else half a gigabyte is not copied
        images = np.asarray(images)[order]
    notes = official.notes
    published = facts.n_images_of(part)
    if n_images != published:
        notes += (
            f"{n_images:,} images, but the published {part} part has {published:,}: results cannot "
            "be compared",
        )
    classes = tuple(official.classes[i] for i in split.known)
    collection = Collection(
        names,
        labels[order],
        classes,
        root=official.root,
        images=images,
        layout=f"{facts.title}, {part} part: {official.layout}",
        notes=notes,
    )
    return Benchmark(collection, true_labels[order], split)


@dataclass
class PartReport:
    """What was found of one part."""

    part: Part
    # The layout that was found, or the one of which most is present
    layout: str
    missing: list[str]
    # What cannot be read, and counts that differ from the published ones
    problems: list[str] = field(default_factory=list)
    # Images and classes that were found; labeled and unlabeled ones in the training part
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verification:
    """What was found of a benchmark under a root."""

    name: str
    root: str
    parts: tuple[PartReport, ...]
    split_sha256: str
    # Whether nothing is missing, and all counts are the published ones
    is_complete: bool

    def describe(self) -> str:
        facts = get_facts(self.name)
        lines = [f"{facts.title} in {self.root}"]
        for part in self.parts:
            counts = ", ".join(f"{n:,} {what}" for what, n in part.counts.items())
            lines += ["", f"{part.part} part: {part.layout}", f"  found    {counts or 'nothing'}"]
            lines += [f"  MISSING  {name}" for name in part.missing[:MAX_LINES]]
            if len(part.missing) > MAX_LINES:
                lines.append(f"  MISSING  {len(part.missing):,} in all; --json lists them")
            lines += [f"  BAD      {problem}" for problem in part.problems]
            lines += [f"  note     {note}" for note in part.notes]
        lines += ["", f"split {self.name}.json, SHA-256 {self.split_sha256}"]
        if self.is_complete:
            return "\n".join([*lines, "Complete."])
        lines += [
            "Not complete.",
            f"to download: {', '.join(facts.archives)}",
            f"from: {facts.page}; terms: {facts.terms}",
            f"then: unpack it in {self.root}; expected layout: {facts.layout}",
        ]
        return "\n".join(lines)


def verify(name: str, root: Location) -> Verification:
    """Look for both parts of a benchmark under `root`; read lists and names, decode no image."""
    folder = check_folder(root)
    parts = tuple(_verify_part(name, folder, part) for part in PARTS)
    is_complete = not any(part.missing or part.problems for part in parts)
    return Verification(name, str(folder), parts, load_split(name).sha256, is_complete)


def _verify_part(name: str, root: Path, part: Part) -> PartReport:
    layout, home, missing = find_layout(name, root, part)
    report = PartReport(part, layout.words, missing)
    if missing:
        return report
    facts = get_facts(name)
    split = load_split(name)
    try:
        official = read_images(layout, home, part, split)
    except DataError as error:
        report.problems.append(str(error))
        return report
    report.missing += official.absent
    report.notes = official.notes
    report.counts["images"] = len(official.names)
    report.counts["classes"] = len(np.unique(official.class_ids))
    published = {"images": facts.n_images_of(part), "classes": facts.n_classes}
    if part == "train" and np.isin(split.known, official.class_ids).all():
        collection = build(name, official, split, part).collection
        report.counts["labeled"] = collection.n_labeled
        report.counts["unlabeled"] = len(collection) - collection.n_labeled
        published |= {"labeled": facts.n_labeled, "unlabeled": facts.n_unlabeled}
    for what, n in published.items():
        within = facts.labeled_within if what.endswith("labeled") else 0
        if abs(report.counts[what] - n) > within:
            report.problems.append(f"{report.counts[what]:,} {what}, but {n:,} were published")
    return report


def known_novel_split(
    true_labels: ArrayLike,
    known_classes: Sequence[int] | Sequence[str],
    labeled_share: float,
    seed: int,
) -> Ints:
    """Return labels (N,) for a share of the images of known classes, -1 for all others.

    This is the protocol of the GCD benchmarks: one sample of `int(labeled_share * n)` from the n
    images of known classes in dataset order, not stratified. A label is the position of the class
    in `known_classes`.
    """
    truth = np.asarray(true_labels)  # (N,) any dtype
    assert 0 < labeled_share < 1
    assert np.isin(known_classes, truth).all(), "a known class does not occur"
    candidates = np.flatnonzero(np.isin(truth, known_classes))
    # The published splits were sampled with numpy's legacy generator.
    legacy = np.random.RandomState(seed)
    n_labeled = int(labeled_share * len(candidates))
    sampled = candidates[legacy.choice(len(candidates), n_labeled, replace=False)]
    labels = np.full(len(truth), UNLABELED, dtype=np.int64)
    for label, known in enumerate(known_classes):
        labels[sampled[truth[sampled] == known]] = label
    return labels
