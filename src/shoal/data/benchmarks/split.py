"""Class splits of the benchmarks: which classes are known, as JSON.

`splits/SHA256SUMS` holds the checksum of each file; a test compares them.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from shoal.arrays import Ints
from shoal.data.benchmarks.published_facts import get_facts


@dataclass(frozen=True, eq=False)
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
    """Seed of the published sample."""
    sha256: str
    """Checksum of the file, to be recorded with every result."""

    @property
    def n_classes(self) -> int:
        """Known and novel classes together."""
        return len(self.known) + len(self.novel)

    @property
    def positions(self) -> Ints:
        """(K,) label of each official id, known classes first in the order of the split."""
        positions = np.empty(self.n_classes, dtype=np.int64)
        positions[[*self.known, *self.novel]] = np.arange(self.n_classes)
        return positions


@cache
def load_split(name: str) -> ClassSplit:
    """Read the split of a benchmark."""
    facts = get_facts(name)
    raw = (files("shoal.data.benchmarks") / "splits" / f"{name}.json").read_bytes()
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
