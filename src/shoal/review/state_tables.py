"""Images and categories as they stand in a review, what an action changes of them, and what can be looked up in them.

Undoing an action is the same kind of change with the values from before.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import MAX_NAME, NO_CATEGORY, composed
from shoal.review.run_tables import RunTables

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


class Conflict(UsageError):
    """An action that does not fit what somebody else has done meanwhile."""


class Tables:
    """The answer of a run with what people have changed of it."""

    def __init__(self, answer: RunTables) -> None:
        self.answer = answer
        self.images = Images(answer.category_ids)
        self.records = {c.category_id: Record(c.category, c.is_novel) for c in answer.categories}
        kept_out = answer.kept_out
        self.rejected = Rejections(
            {answer.row_of[path]: kept_out[path] for path in kept_out if path in answer.row_of}
        )
        self.distinct: frozenset[tuple[int, int]] = frozenset()
        """Pairs of categories, the lower id first, that people said are not the same."""
        self.next_id = max([NO_CATEGORY, *self.records]) + 1
        """An id that no category ever had."""

    @property
    def categories(self) -> dict[int, Record]:
        """The categories that have not ended, by id."""
        return {
            category: record
            for category, record in self.records.items()
            if record.merged_into is None
        }

    def members(self, category: int) -> Ints:
        """The rows of a category, ascending."""
        return np.flatnonzero(self.images.category == category)

    def sizes(self) -> dict[int, int]:
        """How many images each category has, and how many have none."""
        counts = np.bincount(self.images.category + 1, minlength=self.next_id + 1)
        return {category: int(counts[category + 1]) for category in (NO_CATEGORY, *self.categories)}

    def today(self, category: int) -> int:
        """The category in which one goes on that may have been merged, more than once perhaps."""
        while (into := self.records[category].merged_into) is not None:
            category = into
        return category

    def is_second_forbidden(self, row: int) -> bool:
        """Whether people threw an image out of what is its second choice."""
        second = self.answer.id_of.get(self.answer.columns["second_category"][row], NO_CATEGORY)
        refused = {self.today(number) for number in self.rejected.of(row) if number in self.records}
        return second in self.records and self.today(second) in refused

    def find(self, name: str) -> int | None:
        """The id of the category with this name, however its accents are written."""
        wanted = composed(name)
        return next(
            (
                number
                for number, record in self.categories.items()
                if composed(record.name) == wanted
            ),
            None,
        )

    def free_name(self, name: str) -> str:
        """A name like another that no category has or had."""
        taken = {record.name for record in self.records.values()}
        return next(
            free
            for at in itertools.count(2)
            if (free := f"{name[: MAX_NAME - 10]} {at}") not in taken
        )

    def living(self, category: int) -> Record:
        """A category that has not ended."""
        record = self.records.get(category)
        if record is None:
            raise Conflict(f"category {category}: there is none")
        if record.merged_into is not None:
            raise Conflict(
                f"{record.name}: was merged into {self.name(record.merged_into)} (action {record.owner})"
            )
        return record

    def name(self, category: int) -> str:
        """What a category is called, whether it has ended or not."""
        record = self.records.get(category)
        return f"category {category}" if record is None else record.name
