"""Images and categories as they stand in a review, and what can be looked up in them."""

import itertools

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import MAX_NAME, NO_CATEGORY, composed
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
