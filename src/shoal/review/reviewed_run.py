"""A run as people have decided it: its tables with reviewed names and categories. The run's own files stay as they are.

Categories keep their ids; new ones have new ids, merged ones are gone. What a person has decided has confidence 1, what
they have rejected has category -1 and confidence 0, and is of no novel category. Names elsewhere, given labels too,
follow renames and merges.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from shoal.arrays import Bools, Floats, Ints
from shoal.review.actions import CONFIRMED, MOVED, NO_CATEGORY, STATUSES
from shoal.review.log import FILE
from shoal.review.review import OtherAnswer, Review
from shoal.review.state import State
from shoal.review.state_tables import Record
from shoal.runs import UNSURE_BELOW, Assignment, Category, Run, column, read_vectors

N_EXEMPLARS = 5


class ReviewedRun(Run):
    """A run with what was decided about it; its tables are read once and kept.

    A log about another answer of the run does not count. Rows of everything are the images of
    assignments.csv, in its order.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._vectors: dict[str, Floats] = {}  # checked once: that reads all of them

    @classmethod
    def open(cls, path: Path | str, *, checks_tables: bool = True) -> Self:
        """Open a finished run; a review made on another answer of it is refused with the remedy."""
        run = super().open(path, checks_tables=checks_tables)
        if run.has(FILE):
            Review(Run(run.path))
        return run

    @classmethod
    def of(cls, run: Run) -> "ReviewedRun":
        """A run as people have decided it; of one that is, itself."""
        return run if isinstance(run, cls) else cls(run.path)

    @cached_property
    def review(self) -> Review | None:
        """What people decided; None where there is nothing, or nothing about this answer."""
        return fitting_review(self)

    @cached_property
    def assignments(self) -> Sequence[Assignment]:
        """A row per image, in the order of the embeddings."""
        if self.review is None:
            return Run(self.path).assignments
        return reviewed_assignments(self.review)

    @cached_property
    def categories(self) -> list[Category]:
        """A row per category that has not ended, known ones first."""
        if self.review is None:
            return Run(self.path).categories
        return reviewed_categories(self.review)

    def column(self, name: str) -> Any:
        """(N,) one column of `assignments`, a list or an array."""
        return column(self.assignments, name)

    @cached_property
    def category_ids(self) -> Ints:
        """(N,) the category of each image, -1 for none."""
        return np.array(self.column("category_id"), dtype=np.int64)

    @cached_property
    def is_labeled(self) -> Bools:
        """(N,) whether an image came with a label."""
        return np.array([bool(label) for label in self.column("label_given")], dtype=bool)

    @cached_property
    def is_unsure(self) -> Bools:
        """(N,) whether an image has no category, or one of low confidence."""
        confidence = np.array(self.column("confidence"), dtype=np.float64)
        unsure: Bools = (self.category_ids == NO_CATEGORY) | (confidence < UNSURE_BELOW)
        return unsure

    @cached_property
    def members(self) -> dict[int, Ints]:
        """The rows of each category, most typical first: outlier score, confidence, then path."""
        paths = self.column("path")
        outlier = np.nan_to_num(np.array(self.column("outlier_score"), dtype=np.float64))
        confidence = np.nan_to_num(np.array(self.column("confidence"), dtype=np.float64))
        by_path = np.array(sorted(range(len(paths)), key=paths.__getitem__), dtype=np.int64)
        # lexsort is stable: equal ones stay in the order of their paths
        order = by_path[np.lexsort((-confidence[by_path], outlier[by_path]))]
        rows: Ints = order[np.argsort(self.category_ids[order], kind="stable")]
        ids, first = np.unique(self.category_ids[rows], return_index=True)
        return dict(zip(ids.tolist(), np.split(rows, first[1:]), strict=False))  # none: one part

    def rows_of(self, name: str) -> Floats:
        """Map `<name>.npy`, (N, D), into memory; one that is damaged is refused."""
        if name not in self._vectors:
            self._vectors[name] = read_vectors(self.path / f"{name}.npy", len(self.assignments))
        return self._vectors[name]


def fitting_review(run: Run) -> Review | None:
    """The review of a run; None where there is none, or one of another answer, which has to be replayed first."""
    if not run.has(FILE):
        return None
    try:
        return Review(Run(run.path))
    except OtherAnswer:
        return None


def reviewed_assignments(review: Review) -> list[Assignment]:
    """The images, each with its category of today and who has decided on it."""
    state = review.state
    column = review.answer.columns
    names = names_today(state)
    confidence = _confidence(state)
    rows = []
    for row, path in enumerate(review.answer.paths):
        number = int(state.images.category[row])
        decided = int(state.images.decided[row])
        record = state.records.get(number)
        entry = state.entry(decided) if decided else None
        name = record.name if record else ""
        second = column["second_category"][row]
        second = names.get(second, second)
        rows.append(
            Assignment(
                path=path,
                label_given=names.get(column["label_given"][row], column["label_given"][row]),
                category_id=number,
                category=name,
                is_novel=record is not None and record.is_novel,
                confidence=float(confidence[row]),
                outlier_score=float(column["outlier_score"][row]),
                nearest_known=names.get(column["nearest_known"][row], column["nearest_known"][row]),
                nearest_known_similarity=float(column["nearest_known_similarity"][row]),
                is_apart=bool(column["is_apart"][row]),
                second_category=second
                if second != name
                else "",  # both may have been merged, or a person took it
                status=STATUSES[int(state.images.status[row])],
                classified_by=entry.by if entry else "",
                classified_at=entry.at if entry else "",
            )
        )
    return rows


def reviewed_categories(review: Review) -> list[Category]:
    """The categories that have not ended, known ones first, by id."""
    state = review.state
    confidence = _confidence(state)
    names = names_today(state)
    order = review.answer.typical_order
    members = {number: order[state.images.category[order] == number] for number in state.categories}
    ordered = sorted(state.categories.items(), key=lambda item: (item[1].is_novel, item[0]))
    return [
        _category(review, number, record, members[number], confidence, names)
        for number, record in ordered
    ]


def _category(
    review: Review,
    number: int,
    record: Record,
    rows: Ints,
    confidence: Floats,
    names: dict[str, str],
) -> Category:
    column = review.answer.columns
    paths = review.answer.paths
    labels = [column["label_given"][row] for row in rows.tolist()]
    near = (
        Counter(name for row in rows.tolist() if (name := column["nearest_known"][row]))
        if record.is_novel
        else {}
    )
    nearest = max(near, key=lambda name: (near[name], name)) if near else ""
    similar = [
        column["nearest_known_similarity"][row]
        for row in rows
        if column["nearest_known"][row] == nearest
    ]
    return Category(
        category_id=number,
        category=record.name,
        is_novel=record.is_novel,
        size=len(rows),
        n_labeled=sum(map(bool, labels)),
        confidence=float(confidence[rows].mean()) if len(rows) else 0.0,
        nearest_known=names.get(nearest, nearest),
        nearest_known_similarity=float(np.mean(similar)) if nearest else float("nan"),
        exemplars=tuple(paths[row] for row in rows[:N_EXEMPLARS].tolist()),
        mixed_probability=review.answer.mixed_probability.get(number, 0.0),
    )


def _confidence(state: State) -> Floats:
    """(N,) 1 where a person has decided, 0 where there is no category, else what the run says."""
    confidence: Floats = np.asarray(state.answer.columns["confidence"], dtype=np.float64).copy()
    confidence[np.isin(state.images.status, (CONFIRMED, MOVED))] = 1.0
    confidence[state.images.category == NO_CATEGORY] = 0.0
    return confidence


def names_today(state: State) -> dict[str, str]:
    """What the categories of the run are called today, by their first name."""
    return {name: state.records[number].name for name, number in state.named_today().items()}
