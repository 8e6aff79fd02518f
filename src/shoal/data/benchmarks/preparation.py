"""Preparation without a network: unpack what was downloaded, write an index, say what is still
to be fetched."""

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.data.benchmarks.archives import unpack
from shoal.data.benchmarks.benchmark import Benchmark, read_benchmark
from shoal.data.benchmarks.benchmark_layouts import LAYOUTS
from shoal.data.benchmarks.published_facts import Archive, get_facts
from shoal.data.benchmarks.split import load_split
from shoal.data.benchmarks.verification import Bar, Verification, no_bar, verify
from shoal.data.readers.folders import check_folder
from shoal.files import write_text

NESTED = "imagenet100"
"""The benchmark whose training archive is a tar of one tar per class."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """What was done, and what remains to be done by hand."""

    name: str
    root: Path
    unpacked: tuple[str, ...]
    """Sentences: what was unpacked, what was left as it was."""
    index: tuple[str, ...]
    """Sentences: which index was written or kept."""
    to_fetch: tuple[str, ...]
    """Sentences: what to download and from where; empty when the benchmark is complete."""
    verification: Verification

    def describe(self) -> str:
        """Say it in words, the verification last."""
        lines = [*self.unpacked, *self.index, *self.to_fetch]
        if lines:
            lines.append("")
        return "\n".join([*lines, self.verification.describe()])

    def to_dict(self) -> dict[str, Any]:
        """Turn it into plain values."""
        return {
            "unpacked": self.unpacked,
            "index": self.index,
            "to_fetch": self.to_fetch,
            **self.verification.to_dict(),
        }


def prepare(name: str, root: str | os.PathLike[str], *, bar: Bar = no_bar) -> Preparation:
    """Unpack the official archives found in `root`, index the training part, and verify.

    Nothing is downloaded and no file is overwritten. The index `<name>-train.csv` (path, label; no
    label for unlabeled images) is written where the images are files, so that any command that
    reads a table can use the benchmark.
    """
    facts = get_facts(name)
    folder = check_folder(root)
    archives = [archive for archive in facts.archives if not archive.by_hand]
    unpacked = [sentence for archive in archives for sentence in _unpack(name, archive, folder)]
    verification = verify(name, folder, bar=bar)
    index: tuple[str, ...] = ()
    if verification.parts[0].is_complete:
        index = (_write_index(read_benchmark(name, folder), folder),)
    to_fetch = () if verification.is_complete else _what_to_fetch(name, folder)
    return Preparation(name, folder, tuple(unpacked), index, to_fetch, verification)


def _unpack(name: str, archive: Archive, root: Path) -> list[str]:
    path = next((root / file for file in archive.names if (root / file).is_file()), None)
    if path is None:
        return []
    there = next((left for left in archive.leaves if (root / left).exists()), None)
    if there is not None:
        return [f"{path.name}: {there} is there already and stays as it is"]
    appeared = unpack(path, root, only=load_split(name).class_names if name == NESTED else None)
    return [f"{path.name}: unpacked {', '.join(appeared) or 'nothing new'}"]


def _write_index(benchmark: Benchmark, root: Path) -> str:
    collection = benchmark.collection
    if collection.root is None:
        return f"no index needed: {collection.layout}, no files of its own"
    prefix = collection.root.relative_to(root)
    buffer = io.StringIO()
    rows = csv.writer(buffer, lineterminator="\n")
    rows.writerow(["path", "label"])
    cells = [*collection.classes, ""]  # the last is that of UNLABELED, -1
    for name, label in zip(collection.names, collection.labels, strict=True):
        rows.writerow([(prefix / name).as_posix(), cells[label]])
    target = root / f"{benchmark.name}-train.csv"
    if not target.exists():
        write_text(target, buffer.getvalue())
        return f"{target.name}: written, {collection.count()}"
    if target.read_bytes() == buffer.getvalue().encode("utf-8"):
        return f"{target.name}: already there"
    return f"{target.name}: there already with other content; not overwritten"


def _what_to_fetch(name: str, root: Path) -> tuple[str, ...]:
    facts = get_facts(name)
    homes = {root / home for layout in LAYOUTS[name] for home in layout.homes}
    absent = [
        archive
        for archive in facts.archives
        if not any((home / left).exists() for home in homes for left in archive.leaves)
    ]
    by_hand = [archive for archive in absent if archive.by_hand]
    missing = [
        archive for archive in absent if not any((root / file).is_file() for file in archive.names)
    ]
    files = ", ".join(archive.names[0] for archive in missing)
    fetch = files or ("nothing more" if by_hand else "what is listed as missing below")
    return (
        f"to fetch: {fetch}",
        f"from: {facts.page}; terms: {facts.terms}",
        *(f"by hand: {archive.names[0]}, {archive.by_hand}" for archive in by_hand),
        f"then: put it in {root} and run this command again; expected is {facts.layout}",
    )
