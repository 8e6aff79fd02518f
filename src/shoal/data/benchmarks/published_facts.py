"""Published counts of each benchmark, and where its images come from."""

from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal

import yaml

from shoal.errors import UnknownName

Part = Literal["train", "test"]

PARTS: tuple[Part, ...] = ("train", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One form in which a benchmark may be stored on a disk."""

    words: str
    homes: list[str] = field(default_factory=lambda: [""])
    """Folders, relative to the root, in which to look; the empty one is the root itself."""
    needs: dict[Part, list[str]]
    """Files and folders, relative to the home, that each part consists of."""
    read: str
    """The reader, a key of `official_images.READERS`."""
    has_official_order: bool = True
    """Whether images can be read in official order, on which the published split depends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkFacts:
    """Published counts, origin and terms of one benchmark."""

    title: str
    n_images: int
    """Images of the training part, labeled and unlabeled."""
    n_test: int
    n_classes: int
    """K, known and novel classes together."""
    n_known: int
    n_labeled: int
    n_unlabeled: int
    labeled_within: int = 0
    """Tolerance of the last two, if they were published rounded or counted indirectly."""
    page: str
    """The official page."""
    terms: str
    layout: str
    """Description of the official layout."""
    layouts: list[Layout]
    """Layouts that can be read; the first complete one is."""
    archives: list[str]
    """Files to download and unpack."""

    def n_images_of(self, part: Part) -> int:
        """Return the published number of images of a part."""
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
    """Return the facts of a benchmark by its name."""
    if name not in BENCHMARKS:
        raise UnknownName("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]
