"""A benchmark ready for use: a collection without hidden labels, and the truth for those who
score."""

import os
from dataclasses import dataclass

import numpy as np

from shoal.arrays import UNLABELED, Ints
from shoal.data.benchmarks.benchmark_layouts import PARTS, read_official
from shoal.data.benchmarks.official_images import OfficialImages, Part
from shoal.data.benchmarks.published_facts import BenchmarkFacts, get_facts
from shoal.data.benchmarks.split import ClassSplit, load_split
from shoal.data.benchmarks.zipped import ZipImages
from shoal.data.collection import Collection, Images, Truth
from shoal.data.readers.folders import check_folder
from shoal.data.splits import known_novel_split
from shoal.errors import DataError, UnknownName
from shoal.words import first_few


@dataclass(frozen=True, eq=False)
class Benchmark:
    """One part of a benchmark under a known/novel split."""

    name: str
    part: Part
    collection: Collection
    """Labels of the drawn images of known classes; -1 for everything else, and for the whole
    test part."""
    truth: Truth
    """True labels in the same order, known classes first; for scorers alone."""
    facts: BenchmarkFacts
    split: ClassSplit
    seed: int
    """Seed of the labeled draw; the published one is `split.seed`."""

    @property
    def n_clusters(self) -> int:
        """The true number of classes, for protocols in which it is given."""
        return self.split.n_classes


def read_benchmark(
    name: str, root: str | os.PathLike[str], *, part: Part = "train", seed: int = 0
) -> Benchmark:
    """Read a benchmark from its official layout, or another one it is found in, under `root`.

    With seed 0 and the official order of images, the labeled images are exactly those of the
    published split. Counts that differ from the published ones are notes of the collection; listed
    images that are absent are an error.
    """
    if part not in PARTS:
        raise UnknownName("part", part, PARTS)
    facts = get_facts(name)
    split = load_split(name)
    folder = check_folder(root)
    official = read_official(name, folder, part)
    if official.absent:
        listed = first_few(official.absent)
        raise DataError(
            f"{folder}: {len(official.absent):,} of the files and classes of {facts.title} are "
            f"not there ({listed}); "
            f"`shoal datasets verify {name} {folder}` lists them all"
        )
    return build(name, official, facts, split, part, seed)


def build(
    name: str,
    official: OfficialImages,
    facts: BenchmarkFacts,
    split: ClassSplit,
    part: Part,
    seed: int,
) -> Benchmark:
    """Draw the labeled images in official order, then sort by name, as collections are."""
    true_labels = split.positions[official.class_ids]  # (N,) known classes first
    labels = np.full(len(true_labels), UNLABELED, dtype=np.int64)
    if part == "train":
        labels = known_novel_split(
            true_labels, range(len(split.known)), split.labeled_share, seed=seed
        )
    order = np.array(
        sorted(range(len(official.names)), key=official.names.__getitem__), dtype=np.int64
    )
    names = tuple(official.names[i] for i in order)
    classes = tuple(official.classes[i] for i in (*split.known, *split.novel))
    collection = Collection(
        names,
        labels[order],
        classes[: len(split.known)],
        root=official.root,
        images=_reorder(official.images, order),
        layout=f"{facts.title}, {part} part: {official.layout}",
        notes=official.notes + _differences(len(names), facts, part),
    )
    truth = Truth(names, true_labels[order], classes, len(split.known))
    return Benchmark(name, part, collection, truth, facts, split, seed)


def _reorder(images: Images | None, order: Ints) -> Images | None:
    if isinstance(images, ZipImages):
        return images.take(order)
    if images is None or (np.diff(order) == 1).all():  # half a gigabyte need not be copied
        return images
    return np.asarray(images)[order]


def _differences(n_found: int, facts: BenchmarkFacts, part: Part) -> tuple[str, ...]:
    published = facts.n_images_of(part)
    if n_found == published:
        return ()
    return (
        f"{n_found:,} images, but the published {part} part has {published:,}: results cannot be "
        "compared",
    )
