"""A benchmark ready for use: a collection without hidden labels, and the truth for evaluation."""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import UNLABELED
from shoal.data.benchmarks.official_images import (
    OfficialImages,
    ZipImages,
    find_layout,
    read_images,
)
from shoal.data.benchmarks.published_facts import PARTS, Part, get_facts
from shoal.data.benchmarks.split import ClassSplit, load_split
from shoal.data.collection import Collection, Truth
from shoal.data.readers.folders import check_folder
from shoal.data.splits import known_novel_split
from shoal.data.storage.addresses import Location
from shoal.errors import DataError, UnknownName
from shoal.words import first_few


@dataclass(frozen=True, eq=False)
class Benchmark:
    """One part of a benchmark under a known/novel split."""

    name: str
    part: Part
    collection: Collection
    """Labels of the sampled images of known classes; -1 for all others and for the test part."""
    truth: Truth
    """True labels in the same order, known classes first; for evaluation only."""
    split: ClassSplit

    @property
    def n_clusters(self) -> int:
        """The true number of classes, for protocols in which it is given."""
        return self.split.n_classes


def read_benchmark(name: str, root: Location, *, part: Part = "train", seed: int = 0) -> Benchmark:
    """Read a benchmark from one of its layouts under `root`.

    With seed 0 and the official order of images, the labeled images are exactly those of the
    published split. Counts that differ from the published ones become notes of the collection;
    missing images are an error.
    """
    if part not in PARTS:
        raise UnknownName("part", part, PARTS)
    title = get_facts(name).title
    folder = check_folder(root)
    split = load_split(name)
    layout, home, missing = find_layout(name, folder, part)
    if missing:
        raise DataError(
            f"{folder}: the {part} part of {title} is not complete ({layout.words}); missing: "
            f"{', '.join(missing)}; `shoal datasets prepare {name} {folder}` says where to get it"
        )
    official = read_images(layout, home, part, split)
    if official.absent:
        raise DataError(
            f"{folder}: {len(official.absent):,} files or classes of {title} are missing "
            f"({first_few(official.absent)}); `shoal datasets verify {name} {folder}` lists them "
            "all"
        )
    return build(name, official, split, part, seed)


def build(
    name: str, official: OfficialImages, split: ClassSplit, part: Part, seed: int
) -> Benchmark:
    """Sample the labeled images in official order, then sort by name, as collections are."""
    facts = get_facts(name)
    n_known = len(split.known)
    true_labels = split.positions[np.asarray(official.class_ids)]  # (N,) known classes first
    labels = np.full(len(true_labels), UNLABELED, dtype=np.int64)
    if part == "train":
        labels = known_novel_split(true_labels, range(n_known), split.labeled_share, seed=seed)
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
    classes = tuple(official.classes[i] for i in (*split.known, *split.novel))
    collection = Collection(
        names,
        labels[order],
        classes[:n_known],
        root=official.root,
        images=images,
        layout=f"{facts.title}, {part} part: {official.layout}",
        notes=notes,
    )
    truth = Truth(names, true_labels[order], classes, n_known)
    return Benchmark(name, part, collection, truth, split)
