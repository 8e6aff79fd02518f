"""What is published about each benchmark, and where its images come from."""

from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal

import yaml

from shoal.errors import UnknownName

Part = Literal["train", "test"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """A file to download, and what it leaves in the root when it is unpacked there."""

    names: list[str]
    """File names under which it is distributed."""
    leaves: list[str]
    """Folders or files that are there once it is unpacked; with one of them present it is not
    unpacked again."""
    by_hand: str = ""
    """What to do with it, where it is not unpacked by `prepare`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One form in which a benchmark may lie on a disk."""

    words: str
    homes: list[str] = field(default_factory=lambda: [""])
    """Folders, relative to the root, in which to look; the empty one is the root itself."""
    needs: dict[Part, list[str]]
    """Files and folders, relative to the home, that must be there for each part; 'a|b' means
    either."""
    read: str
    """The reader, one of `official_images.READERS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkFacts:
    """Published counts, origin and terms of one benchmark."""

    title: str
    n_images: int
    """Images of the training part: the labeled and the unlabeled ones together."""
    n_test: int
    n_classes: int
    """K: known and novel classes together."""
    n_known: int
    n_labeled: int
    n_unlabeled: int
    labeled_within: int = 0
    """How far the last two may lie from the published ones, where those were rounded or counted
    indirectly."""
    page: str
    """The official page."""
    terms: str
    layout: str
    """What the official layout consists of, in words."""
    layouts: list[Layout]
    """The forms in which it may lie on a disk; the first that is complete is read."""
    archives: list[Archive]

    def n_images_of(self, part: str) -> int:
        """The published number of images of a part, train or test."""
        return {"train": self.n_images, "test": self.n_test}[part]


def _read_facts() -> dict[str, BenchmarkFacts]:
    content = yaml.safe_load((files(__package__) / "benchmarks.yaml").read_text(encoding="utf-8"))
    facts = {}
    for name, values in content.items():
        layouts = [Layout(**layout) for layout in values.pop("layouts")]
        archives = [Archive(**archive) for archive in values.pop("archives")]
        facts[name] = BenchmarkFacts(**values, layouts=layouts, archives=archives)
    return facts


BENCHMARKS = _read_facts()


def get_facts(name: str) -> BenchmarkFacts:
    """The facts of a benchmark by its name."""
    if name not in BENCHMARKS:
        raise UnknownName("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]
