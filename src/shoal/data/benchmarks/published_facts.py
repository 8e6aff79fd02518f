"""Published counts and class splits of each benchmark, and where its images come from.

`splits/SHA256SUMS` holds the checksum of each split; a test compares them.
"""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
import yaml

from shoal.arrays import Ints
from shoal.errors import UnknownName

Part = Literal["train", "test"]

PARTS: tuple[Part, ...] = ("train", "test")


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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
    terms: str
    layout: str
    layouts: list[Layout]
    """Layouts that can be read; the first complete one is."""
    archives: list[str]
    """Files to download and unpack."""

    def n_images_of(self, part: Part) -> int:
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
    if name not in BENCHMARKS:
        raise UnknownName("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]


@dataclass(frozen=True)
class ClassSplit:
    """Known and novel classes by official id, and how labeled images are sampled."""

    name: str
    known: tuple[int, ...]
    """Official ids in the order of the split; their positions 0, 1, … are the labels."""
    novel: tuple[int, ...]
    """Official ids that follow; positions count on."""
    class_names: tuple[str, ...]
    """Names by official id; empty if only the downloaded folders have them."""
    labeled_share: float
    seed: int
    sha256: str
    """Checksum of the file, to be recorded with every result."""

    @property
    def n_classes(self) -> int:
        return len(self.known) + len(self.novel)

    @property
    def positions(self) -> Ints:
        """(K,) label of each official id, known classes first in the order of the split."""
        positions = np.empty(self.n_classes, dtype=np.int64)
        positions[[*self.known, *self.novel]] = np.arange(self.n_classes)
        return positions


@cache
def load_split(name: str) -> ClassSplit:
    facts = get_facts(name)
    raw = (files(__package__) / "splits" / f"{name}.json").read_bytes()
    content = json.loads(raw)
    known = {entry["id"]: entry.get("name") for entry in content["known"]}
    novel = {entry["id"]: entry.get("name") for entry in content["novel"]}
    names = known | novel
    split = ClassSplit(
        name,
        tuple(known),
        tuple(novel),
        tuple(names[i] for i in range(len(names)) if names[i] is not None),
        content["labeled_draw"]["share"],
        content["labeled_draw"]["seed"],
        hashlib.sha256(raw).hexdigest(),
    )
    assert (split.n_classes, len(split.known)) == (facts.n_classes, facts.n_known)
    return split
