"""The class split of a benchmark: which classes are known, read from JSON that anyone can review.

`splits/SHA256SUMS` holds the checksum of each file; one that was changed is refused, because
results under it could not be compared with anybody's.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from shoal.arrays import Ints
from shoal.data.benchmarks.published_facts import get_facts
from shoal.errors import DataError


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """Known and novel classes by official id, and the recipe of the labeled draw."""

    name: str
    known: tuple[int, ...]
    """Official ids in the order of the split; their positions 0, 1, … are the labels."""
    novel: tuple[int, ...]
    """Official ids that follow; positions count on."""
    class_names: tuple[str, ...]
    """Names by official id; none where only the folders of the download know them."""
    labeled_share: float
    seed: int
    """Seed of the published draw."""
    sha256: str
    """Checksum of the file, to be recorded with every result."""

    @property
    def n_classes(self) -> int:
        """Known and novel classes together."""
        return len(self.known) + len(self.novel)

    @property
    def positions(self) -> Ints:
        """(K,) official id -> label, known classes first in the order of the split."""
        positions = np.empty(self.n_classes, dtype=np.int64)
        positions[[*self.known, *self.novel]] = np.arange(self.n_classes)
        return positions


@cache
def load_split(name: str) -> ClassSplit:
    """Read the split of a benchmark and check it against its checksum and the published class
    counts."""
    facts = get_facts(name)
    folder = files("shoal.data.benchmarks") / "splits"
    raw = (folder / f"{name}.json").read_bytes()
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {file: checksum for checksum, file in map(str.split, lines)}
    split = parse_split(name, raw, expected_sha256=sums[f"{name}.json"])
    assert (split.n_classes, len(split.known)) == (facts.n_classes, facts.n_known)
    return split


def parse_split(name: str, raw: bytes, *, expected_sha256: str) -> ClassSplit:
    """Turn the bytes of a split file into a `ClassSplit`; refuse bytes that are not the
    published ones."""
    sha256 = hashlib.sha256(raw).hexdigest()
    if sha256 != expected_sha256:
        raise DataError(
            f"splits/{name}.json: found SHA-256 {sha256[:12]}…, expected {expected_sha256[:12]}…; "
            "the split was changed, so results would not be comparable; install shoal again"
        )
    content = json.loads(raw)
    known = {entry["id"]: entry.get("name") for entry in content["known"]}
    novel = {entry["id"]: entry.get("name") for entry in content["novel"]}
    names = known | novel
    return ClassSplit(
        name,
        tuple(known),
        tuple(novel),
        tuple(names[i] for i in range(len(names)) if names[i] is not None),
        content["labeled_draw"]["share"],
        content["labeled_draw"]["seed"],
        sha256,
    )
