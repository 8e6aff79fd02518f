"""Images and categories as they stand in a review, and what can be looked up in them."""

import itertools
from collections.abc import Iterable

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import MAX_NAME, NO_CATEGORY, OR, composed
from shoal.review.changes import Images, Record, Rejections
from shoal.review.run_tables import RunTables


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

    def named_between(self, name: str) -> tuple[int, ...]:
        """The categories whose names a name lists, 'heron or egret'; none where it is a name of its own."""
        ids = self.spread(self._listed(name.split(OR)) or ())
        return ids if len(ids) > 1 else ()

    def _listed(self, parts: list[str]) -> list[int] | None:
        """The categories that a list names, some perhaps with an 'or' in their name; None where one is no category."""
        if not parts:
            return []
        for n_parts in range(1, len(parts) + 1):
            first = self.find(OR.join(parts[:n_parts]))
            if first is not None and (rest := self._listed(parts[n_parts:])) is not None:
                return [first, *rest]
        return None

    def spread(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Some categories, with those that one is between instead of it."""
        groups = (self.between(self.living(number)) or {number} for number in ids)
        return tuple(sorted({number for each in groups for number in each}))

    def between(self, record: Record) -> frozenset[int]:
        """The categories that one is between, as they are today; none for any other."""
        return frozenset(self.today(number) for number in record.between if number in self.records)

    def find_between(self, ids: Iterable[int]) -> int | None:
        """The category between some others."""
        wanted = frozenset(ids)
        pairs = ((number, self.between(record)) for number, record in self.categories.items())
        return next((number for number, pair in pairs if pair and pair == wanted), None)

    def joined(self, ids: Iterable[int]) -> str:
        """The name of a category between some others."""
        return OR.join(sorted(self.records[number].name for number in ids))

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
