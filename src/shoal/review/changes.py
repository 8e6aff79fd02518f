"""What an action changes: the values that images and categories have afterwards, and, once done, had before.

Undoing an action is the same kind of change with the values from before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.arrays import Ints

CATEGORY = (1 << 32) - 1
"""The bits of a category in a pair of an image and a category."""


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
    rejects: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Pairs as `Rejections` has them that are not among them yet, ascending."""
    readmits: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Pairs that are among them and no longer hold, ascending."""

    distinct: frozenset[tuple[int, int]] = frozenset()
    """Pairs of categories, the lower id first, that are not the same from now on."""
    alike: frozenset[tuple[int, int]] = frozenset()
    """Pairs of which that no longer is said."""

    @property
    def vanishing(self) -> list[int]:
        """Categories that will not be there."""
        return [category for category, record in self.records.items() if record is None]


class Rejections:
    """Which images do not belong to which categories: pairs, each a number, row * 2**32 + category, ascending."""

    def __init__(self, by_row: Mapping[int, Iterable[int]]) -> None:
        pairs = [
            row << 32 | category for row, categories in by_row.items() for category in categories
        ]
        self.pairs: Ints = np.sort(np.array(pairs, np.int64))

    def of(self, row: int) -> list[int]:
        """The categories that an image does not belong to."""
        low, high = np.searchsorted(self.pairs, [row << 32, (row + 1) << 32])
        return [pair & CATEGORY for pair in self.pairs[low:high].tolist()]

    def rows(self, category: int) -> Ints:
        """The images that do not belong to a category."""
        rows: Ints = self.pairs[self.pairs & CATEGORY == category] >> 32
        return rows

    def by_row(self) -> dict[int, set[int]]:
        """The categories that each image does not belong to, of those that have any."""
        categories_of: dict[int, set[int]] = {}
        for pair in self.pairs.tolist():
            categories_of.setdefault(pair >> 32, set()).add(pair & CATEGORY)
        return categories_of

    def parted(self, rows: Ints, category: Ints | int) -> tuple[Ints, Ints]:
        """The pairs of images with a category each: those that are not there yet, and those that are."""
        wanted = np.sort(rows << 32 | category)
        position = np.searchsorted(self.pairs, wanted)
        is_there = np.append(self.pairs, -1)[position] == wanted
        return wanted[~is_there], wanted[is_there]

    def put(self, change: Change) -> None:
        """Take in the pairs of a change."""
        if len(change.readmits):
            self.pairs = np.delete(self.pairs, np.searchsorted(self.pairs, change.readmits))
        if len(change.rejects):
            self.pairs = np.insert(
                self.pairs, np.searchsorted(self.pairs, change.rejects), change.rejects
            )


class Images:
    """The values of all N images."""

    def __init__(self, category: Ints) -> None:
        self.category: Ints = category.copy()
        self.status, self.decided, self.owner, self.version = (
            np.zeros(len(category), np.int64) for _ in range(4)
        )
        """`version` is the last action that changed an image at all, undoing included."""

    def values(self, rows: Ints) -> Values:
        """A copy of the values of some rows."""
        columns = {
            name: getattr(self, name)[rows] for name in ("category", "status", "decided", "owner")
        }
        return Values(**columns)

    def put(self, rows: Ints, values: Values, seq: int) -> None:
        """Write values."""
        for name in ("category", "status", "decided", "owner"):
            getattr(self, name)[rows] = getattr(values, name)
        self.version[rows] = seq
