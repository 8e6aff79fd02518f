"""What an action changes: the values that images and categories have afterwards, and, once done, had before.

Undoing an action is the same kind of change with the values from before.
"""

from dataclasses import dataclass, field

import numpy as np

from shoal.arrays import Ints


@dataclass(frozen=True, slots=True)
class Record:
    """A category as it stands."""

    name: str
    is_novel: bool
    """Whether the run was given no label of it."""
    is_named: bool = False
    """Whether a person gave it its name."""
    merged_into: int | None = None
    """Where its images went; such a category has ended."""
    owner: int = 0
    """The action that made it what it is; 0 for the run."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Values:
    """What is known of n images."""

    category: Ints
    status: Ints
    """Places in `STATUSES`."""
    decided: Ints
    """The action that gave each its status; 0 for the run."""
    owner: Ints
    """The last action that counts for each; 0 for the run."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Change:
    """New values for some images and categories."""

    rows: Ints
    values: Values
    records: dict[int, Record | None] = field(default_factory=dict)
    """None: the category is no more, and its id was never given."""
    rejected: dict[int, frozenset[int]] = field(default_factory=dict)
    """For some rows, every category they were rejected from."""

    @property
    def vanishing(self) -> list[int]:
        """Categories that will not be there."""
        return [category for category, record in self.records.items() if record is None]


class Images:
    """The values of all N images."""

    def __init__(self, category: Ints) -> None:
        self.category: Ints = category.copy()
        self.status, self.decided, self.owner, self.version = (np.zeros(len(category), np.int64) for _ in range(4))
        """`version` is the last action that changed an image at all, undoing included."""

    def values(self, rows: Ints) -> Values:
        """A copy of the values of some rows."""
        found = {name: getattr(self, name)[rows] for name in ("category", "status", "decided", "owner")}
        return Values(**found)

    def put(self, rows: Ints, values: Values, seq: int) -> None:
        """Write values."""
        for name in ("category", "status", "decided", "owner"):
            getattr(self, name)[rows] = getattr(values, name)
        self.version[rows] = seq
