"""A benchmark ready for use: a collection without hidden labels, and the truth for evaluation; and
its verification, which says what is missing and compares counts with the published ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.arrays import UNLABELED
from shoal.data.benchmarks.official_images import (
    OfficialImages,
    ZipImages,
    find_layout,
    read_images,
)
from shoal.data.benchmarks.published_facts import PARTS, ClassSplit, Part, get_facts, load_split
from shoal.data.collection import Collection, Truth
from shoal.data.readers.folders import check_folder
from shoal.data.splits import known_novel_split
from shoal.data.storage.addresses import Location
from shoal.errors import DataError, UnknownName
from shoal.words import first_few

MAX_LINES = 20
"""How many missing files the text lists; JSON lists them all."""


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
            f"{', '.join(missing)}; `shoal datasets verify {name} {folder}` says where to get it"
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


@dataclass(frozen=True, slots=True)
class PartReport:
    """What was found of one part."""

    part: Part
    layout: str
    """The layout that was found, or the one of which most is present."""
    is_complete: bool
    missing: Sequence[str]
    """Files, folders and listed images that are missing."""
    problem: str = ""
    """What cannot be read, and why."""
    counts: tuple[dict[str, Any], ...] = ()
    """A count each: `what`, `found`, `published`, `within` (the tolerance) and `is_correct`."""
    notes: tuple[str, ...] = ()

    def describe(self) -> list[str]:
        """Return the report as lines of text."""
        state = "complete" if self.is_complete else "not complete"
        lines = [f"{self.part} part: {state} ({self.layout})"]
        lines += [f"  MISSING  {name}" for name in self.missing[:MAX_LINES]]
        n_more = len(self.missing) - MAX_LINES
        if n_more > 0:
            lines.append(f"  MISSING  … and {n_more:,} more; --json lists them all")
        if self.problem:
            lines.append(f"  BAD      {self.problem}")
        for count in self.counts:
            state = "ok" if count["is_correct"] else "DIFFERS"
            about = "about " if count["within"] else ""
            published = f"(published {about}{count['published']:,})"
            lines.append(f"  {state:<8} {count['what']} {count['found']:,} {published}")
        return lines + [f"  note     {note}" for note in self.notes]


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of a benchmark under a root."""

    name: str
    root: str
    parts: tuple[PartReport, ...]
    split_sha256: str
    is_complete: bool
    """Whether both parts are complete."""

    def describe(self) -> str:
        """Return the verification as text, and what to download if anything is missing."""
        facts = get_facts(self.name)
        lines = [f"{facts.title} in {self.root}"]
        for part in self.parts:
            lines += ["", *part.describe()]
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
    is_complete = all(part.is_complete for part in parts)
    return Verification(name, str(folder), parts, load_split(name).sha256, is_complete)


def _verify_part(name: str, root: Path, part: Part) -> PartReport:
    layout, home, missing = find_layout(name, root, part)
    words = layout.words
    if home != root:
        words += f" in {home.relative_to(root)}"
    if missing:
        return PartReport(part, words, False, missing)
    try:
        official = read_images(layout, home, part, load_split(name))
    except DataError as error:
        return PartReport(part, words, False, (), str(error))
    counts = _compare_counts(name, official, part)
    is_complete = not official.absent and all(count["is_correct"] for count in counts)
    return PartReport(part, words, is_complete, official.absent, "", counts, official.notes)


def _compare_counts(name: str, official: OfficialImages, part: Part) -> tuple[dict[str, Any], ...]:
    facts = get_facts(name)
    split = load_split(name)
    rows = [
        ("images", len(official.names), facts.n_images_of(part), 0),
        ("classes", len(np.unique(official.class_ids)), facts.n_classes, 0),
    ]
    if part == "train" and np.isin(split.known, official.class_ids).all():
        collection = build(name, official, split, part, split.seed).collection
        n_unlabeled = len(collection) - collection.n_labeled
        rows += [
            ("labeled", collection.n_labeled, facts.n_labeled, facts.labeled_within),
            ("unlabeled", n_unlabeled, facts.n_unlabeled, facts.labeled_within),
        ]
    return tuple(
        {
            "what": what,
            "found": found,
            "published": published,
            "within": within,
            "is_correct": abs(found - published) <= within,
        }
        for what, found, published, within in rows
    )
