"""Verify and prepare benchmarks: list what is missing and where to download it, compare counts with
the published ones, write an index."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.benchmarks.benchmark import build, read_benchmark
from shoal.data.benchmarks.official_images import OfficialImages, find_layout, read_images
from shoal.data.benchmarks.published_facts import PARTS, Part, get_facts
from shoal.data.benchmarks.split import load_split
from shoal.data.readers.folders import check_folder
from shoal.data.storage.addresses import Location
from shoal.errors import DataError
from shoal.files import write_text

MAX_LINES = 20
"""How many missing files the text lists; JSON lists them all."""


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
    """What was found of a benchmark under a root, and what was done to prepare it."""

    name: str
    root: str
    parts: tuple[PartReport, ...]
    split_sha256: str
    is_complete: bool
    """Whether both parts are complete."""
    actions: tuple[str, ...] = ()
    """What to download, and what `prepare` has written, a line each."""

    def describe(self) -> str:
        """Return the verification as text."""
        lines = [*self.actions, f"{get_facts(self.name).title} in {self.root}"]
        for part in self.parts:
            lines += ["", *part.describe()]
        lines += ["", f"split {self.name}.json, SHA-256 {self.split_sha256}"]
        lines.append("Complete." if self.is_complete else "Not complete.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as plain values."""
        return asdict(self)


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


def prepare(name: str, root: Location) -> Verification:
    """Verify a benchmark, index its training part, and list what to download.

    The index `<name>-train.csv` (path, label; no label for unlabeled images) is written if the
    images are files and it does not exist yet, so that any command that reads a table can use the
    benchmark.
    """
    folder = check_folder(root)
    facts = get_facts(name)
    verification = verify(name, folder)
    actions: tuple[str, ...] = ()
    if not verification.is_complete:
        actions = (
            f"to download: {', '.join(facts.archives)}",
            f"from: {facts.page}; terms: {facts.terms}",
            f"then: unpack it in {folder} and run this command again; expected layout: "
            f"{facts.layout}",
        )
    if verification.parts[0].is_complete:
        actions += _write_index(name, folder)
    return replace(verification, actions=actions)


def _write_index(name: str, root: Path) -> tuple[str, ...]:
    """Write the training part as a table unless it exists or images are not files; report it."""
    collection = read_benchmark(name, root).collection
    target = root / f"{name}-train.csv"
    if collection.root is None or target.exists():
        return ()
    prefix = collection.root.relative_to(root)
    buffer = io.StringIO()
    cells = [*collection.classes, ""]  # UNLABELED is -1, the last of these
    rows = [
        ((prefix / image).as_posix(), cells[label])
        for image, label in zip(collection.names, collection.labels, strict=True)
    ]
    csv.writer(buffer, lineterminator="\n").writerows([("path", "label"), *rows])
    write_text(target, buffer.getvalue())
    return (f"{target.name}: written, {collection.count()}",)
