"""Verification: what of a benchmark is present, missing or damaged, and its counts beside the
published ones."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.benchmarks.archives import find_damage
from shoal.data.benchmarks.benchmark import build
from shoal.data.benchmarks.benchmark_layouts import PARTS, find_layout, hint_at_pickles
from shoal.data.benchmarks.official_images import OfficialImages, Part
from shoal.data.benchmarks.published_facts import BenchmarkFacts, get_facts
from shoal.data.benchmarks.split import load_split
from shoal.data.readers.folders import check_folder
from shoal.errors import DataError
from shoal.progress import Progress

MAX_LINES = 20
"""How many missing files the text lists; JSON lists them all."""

Bar = Callable[[str], AbstractContextManager[Progress]]
"""Shows how far something that may take seconds is."""


def no_bar(what: str) -> AbstractContextManager[Progress]:
    """Show nothing."""
    return nullcontext(lambda done, total: None)


@dataclass(frozen=True, slots=True)
class Count:
    """A number found, beside the published one."""

    what: str
    found: int
    published: int
    within: int = 0

    @property
    def is_right(self) -> bool:
        """Whether it is the published number, as exactly as that is known."""
        return abs(self.found - self.published) <= self.within

    def describe(self) -> str:
        """One line: 'images 5,994 (published 5,994)'."""
        about = "about " if self.within else ""
        return f"{self.what} {self.found:,} (published {about}{self.published:,})"


@dataclass(frozen=True, slots=True)
class PartReport:
    """What was found of one part."""

    part: Part
    layout: str
    """The layout found, or the one nearest to it."""
    present: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Files, folders and listed images that are not there."""
    problem: str = ""
    """Why the part, or some of it, cannot be read although its files are there; empty if it can."""
    counts: tuple[Count, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether everything is there and counts as published."""
        is_right = all(count.is_right for count in self.counts)
        return is_right and not self.missing and not self.problem

    def describe(self) -> list[str]:
        """Lines of text."""
        state = "complete" if self.is_complete else "not complete"
        lines = [f"{self.part} part: {state} ({self.layout})"]
        lines += [f"  present  {name}" for name in self.present]
        lines += [f"  MISSING  {name}" for name in self.missing[:MAX_LINES]]
        n_more = len(self.missing) - MAX_LINES
        if n_more > 0:
            lines.append(f"  MISSING  … and {n_more:,} more; --json lists them all")
        if self.problem:
            lines.append(f"  BAD      {self.problem}")
        for count in self.counts:
            lines.append(f"  {'ok' if count.is_right else 'DIFFERS':<8} {count.describe()}")
        return lines + [f"  note     {note}" for note in self.notes]


@dataclass(frozen=True, slots=True)
class DownloadedArchive:
    """An archive that was downloaded and is not unpacked."""

    file: str
    problem: str
    """What of it is damaged; empty where it is whole."""

    def describe(self) -> str:
        """One line."""
        if self.problem:
            return f"BAD      {self.problem}"
        return f"whole    {self.file}, not unpacked yet"


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of a benchmark under a root."""

    name: str
    root: Path
    parts: tuple[PartReport, ...]
    split_sha256: str
    downloaded: tuple[DownloadedArchive, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether both parts are complete."""
        return all(part.is_complete for part in self.parts)

    def describe(self) -> str:
        """Say it in words."""
        lines = [f"{get_facts(self.name).title} in {self.root}"]
        lines += [f"  {archive.describe()}" for archive in self.downloaded]
        for part in self.parts:
            lines += ["", *part.describe()]
        lines += ["", f"split {self.name}.json, SHA-256 {self.split_sha256}"]
        lines.append("Complete." if self.is_complete else "Not complete.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Turn it into plain values."""
        values = asdict(self) | {"root": str(self.root), "is_complete": self.is_complete}
        for part, plain in zip(self.parts, values["parts"], strict=True):
            plain["is_complete"] = part.is_complete
            for count, row in zip(part.counts, plain["counts"], strict=True):
                row["is_right"] = count.is_right
        return values


def verify(name: str, root: str | os.PathLike[str], *, bar: Bar = no_bar) -> Verification:
    """Look for both parts of a benchmark under `root`; reads lists and names, decodes no image.

    Archives that are read in place, and downloaded ones that are not unpacked, are read to the end
    and compared with their checksums: `bar` shows how far that is. Images in folders have none.
    """
    folder = check_folder(root)
    downloaded = []
    for archive in get_facts(name).archives:
        if not any((folder / left).exists() for left in archive.leaves):
            files = [folder / file for file in archive.names if (folder / file).is_file()]
            downloaded += [DownloadedArchive(file.name, _damage(file, bar)) for file in files]
    parts = tuple(_verify_part(name, folder, part, bar) for part in PARTS)
    return Verification(name, folder, parts, load_split(name).sha256, tuple(downloaded))


def _damage(archive: Path, bar: Bar) -> str:
    with bar(f"checking {archive.name}") as tick:
        return find_damage(archive, tick)


def _verify_part(name: str, root: Path, part: Part, bar: Bar) -> PartReport:
    candidate = find_layout(name, root, part)
    present = candidate.present
    words = candidate.layout.words
    if candidate.home != root:
        words += f" in {candidate.home.relative_to(root)}"
    if candidate.missing:
        hint = hint_at_pickles(root).lstrip("; ")
        return PartReport(part, words, present, candidate.missing, hint)
    try:
        official = candidate.layout.read(candidate.home, part, load_split(name))
    except DataError as error:
        return PartReport(part, words, present, problem=str(error))
    damages = [_damage(candidate.home / file, bar) for file in present if file.endswith(".zip")]
    problem = "; ".join(filter(None, damages))
    counts = _counts(name, official, get_facts(name), part)
    return PartReport(part, words, present, official.absent, problem, counts, official.notes)


def _counts(
    name: str, official: OfficialImages, facts: BenchmarkFacts, part: Part
) -> tuple[Count, ...]:
    counts = [
        Count("images", len(official.names), facts.n_images_of(part)),
        Count("classes", len(np.unique(official.class_ids)), facts.n_classes),
    ]
    split = load_split(name)
    if part == "train" and np.isin(split.known, official.class_ids).all():
        collection = build(name, official, facts, split, part, split.seed).collection
        n_labeled = collection.n_labeled
        n_unlabeled = len(collection) - n_labeled
        counts += [
            Count("labeled", n_labeled, facts.n_labeled, facts.labeled_within),
            Count("unlabeled", n_unlabeled, facts.n_unlabeled, facts.labeled_within),
        ]
    return tuple(counts)
