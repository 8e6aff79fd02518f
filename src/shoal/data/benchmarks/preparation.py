"""What of a benchmark is present, missing or damaged, its counts beside the published ones; and
preparation without a network: unpack what was downloaded, write an index, say what to fetch."""

import csv
import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.benchmarks.archives import find_damage, unpack
from shoal.data.benchmarks.benchmark import build, read_benchmark
from shoal.data.benchmarks.official_images import (
    PARTS,
    OfficialImages,
    find_layout,
    hint_at_pickles,
)
from shoal.data.benchmarks.published_facts import Archive, Part, get_facts
from shoal.data.benchmarks.split import load_split
from shoal.data.readers.folders import check_folder
from shoal.errors import DataError
from shoal.files import write_text

MAX_LINES = 20
"""How many missing files the text lists; JSON lists them all."""

NESTED = "imagenet100"
"""The benchmark whose training archive is a tar of one tar per class."""

Bar = Callable[[str], AbstractContextManager[object]]
"""Says what is being done while it takes seconds."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number found, beside the published one."""

    what: str
    found: int
    published: int
    within: int
    """How far from the published one it may be."""
    is_right: bool


@dataclass(frozen=True, slots=True)
class PartReport:
    """What was found of one part."""

    part: Part
    layout: str
    """The layout found, or the one nearest to it."""
    present: tuple[str, ...]
    missing: tuple[str, ...]
    """Files, folders and listed images that are not there."""
    problem: str
    """Why the part, or some of it, cannot be read although its files are there; empty if it can."""
    counts: tuple[Count, ...]
    notes: tuple[str, ...]
    is_complete: bool
    """Whether everything is there and counts as published."""

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
            state = "ok" if count.is_right else "DIFFERS"
            about = "about " if count.within else ""
            published = f"(published {about}{count.published:,})"
            lines.append(f"  {state:<8} {count.what} {count.found:,} {published}")
        return lines + [f"  note     {note}" for note in self.notes]


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of a benchmark under a root, and what was done to prepare it."""

    name: str
    root: str
    parts: tuple[PartReport, ...]
    split_sha256: str
    downloaded: tuple[dict[str, str], ...]
    """Archives that are not unpacked: the `file`, and the `problem`, empty where it is whole."""
    is_complete: bool
    """Whether both parts are complete."""
    unpacked: tuple[str, ...] = ()
    """Sentences: what was unpacked, what was left as it was."""
    index: tuple[str, ...] = ()
    """Sentences: which index was written or kept."""
    to_fetch: tuple[str, ...] = ()
    """Sentences: what to download and from where; empty when the benchmark is complete."""

    def describe(self) -> str:
        """Say it in words."""
        lines = [*self.unpacked, *self.index, *self.to_fetch]
        lines.append(f"{get_facts(self.name).title} in {self.root}")
        for archive in self.downloaded:
            state = f"whole    {archive['file']}, not unpacked yet"
            if archive["problem"]:
                state = f"BAD      {archive['problem']}"
            lines.append(f"  {state}")
        for part in self.parts:
            lines += ["", *part.describe()]
        lines += ["", f"split {self.name}.json, SHA-256 {self.split_sha256}"]
        lines.append("Complete." if self.is_complete else "Not complete.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Turn it into plain values."""
        return asdict(self)


def verify(name: str, root: str | os.PathLike[str], *, bar: Bar = nullcontext) -> Verification:
    """Look for both parts of a benchmark under `root`; reads lists and names, decodes no image.

    Archives that are read in place, and downloaded ones that are not unpacked, are read to the end
    and compared with their checksums, which `bar` says. Images in folders have none.
    """
    folder = check_folder(root)
    downloaded = []
    for archive in get_facts(name).archives:
        if not any((folder / left).exists() for left in archive.leaves):
            for file in archive.names:
                if (folder / file).is_file():
                    downloaded.append({"file": file, "problem": _damage(folder / file, bar)})
    parts = tuple(_verify_part(name, folder, part, bar) for part in PARTS)
    is_complete = all(part.is_complete for part in parts)
    sha256 = load_split(name).sha256
    return Verification(name, str(folder), parts, sha256, tuple(downloaded), is_complete)


def _damage(archive: Path, bar: Bar) -> str:
    with bar(f"checking {archive.name}"):
        return find_damage(archive)


def _verify_part(name: str, root: Path, part: Part, bar: Bar) -> PartReport:
    found = find_layout(name, root, part)
    words = found.layout.words
    if found.home != root:
        words += f" in {found.home.relative_to(root)}"
    if found.missing:
        hint = hint_at_pickles(root)
        return PartReport(part, words, found.present, found.missing, hint, (), (), False)
    try:
        official = found.read(part, load_split(name))
    except DataError as error:
        return PartReport(part, words, found.present, (), str(error), (), (), False)
    archives = [found.home / file for file in found.present if file.endswith(".zip")]
    problem = "; ".join(filter(None, (_damage(archive, bar) for archive in archives)))
    counts = _count(name, official, part)
    is_right = all(count.is_right for count in counts)
    is_complete = is_right and not official.absent and not problem
    return PartReport(
        part, words, found.present, official.absent, problem, counts, official.notes, is_complete
    )


def _count(name: str, official: OfficialImages, part: Part) -> tuple[Count, ...]:
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
        Count(what, found, published, within, abs(found - published) <= within)
        for what, found, published, within in rows
    )


def prepare(name: str, root: str | os.PathLike[str], *, bar: Bar = nullcontext) -> Verification:
    """Unpack the official archives found in `root`, index the training part, and verify.

    Nothing is downloaded and no file is overwritten. The index `<name>-train.csv` (path, label; no
    label for unlabeled images) is written where the images are files, so that any command that
    reads a table can use the benchmark.
    """
    folder = check_folder(root)
    archives = [archive for archive in get_facts(name).archives if not archive.by_hand]
    unpacked = [sentence for archive in archives for sentence in _unpack(name, archive, folder)]
    verification = verify(name, folder, bar=bar)
    index: tuple[str, ...] = ()
    if verification.parts[0].is_complete:
        index = (_write_index(name, folder),)
    to_fetch: tuple[str, ...] = ()
    if not verification.is_complete:
        to_fetch = _what_to_fetch(name, folder)
    return replace(verification, unpacked=tuple(unpacked), index=index, to_fetch=to_fetch)


def _unpack(name: str, archive: Archive, root: Path) -> list[str]:
    files = [root / file for file in archive.names if (root / file).is_file()]
    there = [left for left in archive.leaves if (root / left).exists()]
    if not files:
        return []
    if there:
        return [f"{files[0].name}: {there[0]} is there already and stays as it is"]
    only = load_split(name).class_names if name == NESTED else None
    appeared = unpack(files[0], root, only=only)
    return [f"{files[0].name}: unpacked {', '.join(appeared) or 'nothing new'}"]


def _write_index(name: str, root: Path) -> str:
    collection = read_benchmark(name, root).collection
    if collection.root is None:
        return f"no index needed: {collection.layout}, no files of its own"
    prefix = collection.root.relative_to(root)
    buffer = io.StringIO()
    rows = csv.writer(buffer, lineterminator="\n")
    rows.writerow(["path", "label"])
    cells = [*collection.classes, ""]  # the last is that of UNLABELED, -1
    for image, label in zip(collection.names, collection.labels, strict=True):
        rows.writerow([(prefix / image).as_posix(), cells[label]])
    target = root / f"{name}-train.csv"
    if not target.exists():
        write_text(target, buffer.getvalue())
        return f"{target.name}: written, {collection.count()}"
    if target.read_bytes() == buffer.getvalue().encode("utf-8"):
        return f"{target.name}: already there"
    return f"{target.name}: there already with other content; not overwritten"


def _what_to_fetch(name: str, root: Path) -> tuple[str, ...]:
    facts = get_facts(name)
    homes = {root / home for layout in facts.layouts for home in layout.homes}
    absent = [
        archive
        for archive in facts.archives
        if not any((home / left).exists() for home in homes for left in archive.leaves)
    ]
    missing = [
        archive.names[0]
        for archive in absent
        if not any((root / file).is_file() for file in archive.names)
    ]
    by_hand = [f"by hand: {one.names[0]}, {one.by_hand}" for one in absent if one.by_hand]
    return (
        f"to fetch: {', '.join(missing) or 'what is listed as missing below'}",
        f"from: {facts.page}; terms: {facts.terms}",
        *by_hand,
        f"then: put it in {root} and run this command again; expected is {facts.layout}",
    )
