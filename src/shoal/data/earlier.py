"""What an earlier run, as people have corrected it, says of the images of a collection: ids, names and cannot-links.

Labels that people gave are labels like any other, in the collection itself.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, eq=False, kw_only=True)
class Earlier:
    """The categories there were; images by name, categories by id."""

    class_ids: tuple[int, ...]
    """The id of each known class of the collection."""
    names: Mapping[int, str]
    """What the categories are called, the known classes too."""
    categories: Mapping[str, int]
    """The category that each image was in, where it was in one."""
    apart: Mapping[str, frozenset[int]]
    """Cannot-links: the categories that an image was thrown out of."""
    next_id: int
    """From here on ids are free."""
    taken: frozenset[str]
    """Names that no new category may have: those of categories that have ended, too."""

    @property
    def checksum(self) -> str:
        """Equal where everything is."""
        apart = {name: sorted(ids) for name, ids in self.apart.items()}
        parts = (self.class_ids, self.names, self.categories, apart, self.next_id, sorted(self.taken))
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
