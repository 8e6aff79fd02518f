"""A benchmark ready for use: a collection without hidden labels, and the truth for evaluation; and
its verification, which says what is missing and compares counts with the published ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.data.benchmarks.official_images import (
    PARTS,
    ClassSplit,
    OfficialImages,
    Part,
    ZipImages,
    find_layout,
    get_facts,
    load_split,
    read_images,
)
from shoal.data.collection import Collection
from shoal.data.readers.folders import check_folder
from shoal.data.storage import Location
from shoal.errors import DataError, UnknownName, first_few

# How many missing files the text lists; JSON lists them all
MAX_LINES = 20


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
