"""What is published about each benchmark, and where its images come from."""

from dataclasses import dataclass
from importlib.resources import files

import yaml

from shoal.errors import UnknownName


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """A file to download, and what it leaves in the root when it is unpacked there."""

    names: tuple[str, ...]
    """File names under which it is distributed."""
    leaves: tuple[str, ...]
    """Folders or files that are there once it is unpacked; with one of them present it is not
    unpacked again."""
    by_hand: str = ""
    """What to do with it, where it is not unpacked by `prepare`."""


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
    archives: tuple[Archive, ...]

    def n_images_of(self, part: str) -> int:
        """The published number of images of a part, train or test."""
        return {"train": self.n_images, "test": self.n_test}[part]


def _read_facts() -> dict[str, BenchmarkFacts]:
    content = yaml.safe_load((files(__package__) / "benchmarks.yaml").read_text(encoding="utf-8"))
    facts = {}
    for name, values in content.items():
        archives = [
            Archive(
                names=tuple(archive["names"]),
                leaves=tuple(archive["leaves"]),
                by_hand=archive.get("by_hand", ""),
            )
            for archive in values.pop("archives")
        ]
        facts[name] = BenchmarkFacts(**values, archives=tuple(archives))
    return facts


BENCHMARKS = _read_facts()


def get_facts(name: str) -> BenchmarkFacts:
    """The facts of a benchmark by its name."""
    if name not in BENCHMARKS:
        raise UnknownName("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]
