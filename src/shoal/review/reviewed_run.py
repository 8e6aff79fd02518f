"""A run as people have decided it: its tables with reviewed names and categories.

The run's own files stay as they are. Categories keep their ids; new ones have new ids, merged ones
are gone. What a person has decided has confidence 1, what they have rejected has category -1 and
confidence 0, and is of no novel category. Names elsewhere, given labels too, follow renames and
merges.
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
from shoal.review.parts import proposed_split
from shoal.review.review import OtherAnswer, Review
from shoal.review.state import Record, State
from shoal.runs import MIXED_FROM, UNSURE_BELOW, Assignment, Category, Run, column, read_vectors

N_EXEMPLARS = 5

NOWHERE = Record("", is_novel=False)
"""What stands for the category of an image that has none."""


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
        return reviewed_assignments(self.review.state)

    @cached_property
    def categories(self) -> list[Category]:
        """A row per category that has not ended, known ones first."""
        if self.review is None:
            return Run(self.path).categories
        return reviewed_categories(self.review.state)

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
    """The review of a run; None where there is none, or one of another answer of the run."""
    if not run.has(FILE):
        return None
    try:
        return Review(Run(run.path))
    except OtherAnswer:
        return None


def reviewed_assignments(state: State) -> list[Assignment]:
    """The images, each with its category of today and who has decided on it."""
    names = names_today(state)
    today = {
        column: [names.get(name, name) for name in state.columns[column]]
        for column in ("label_given", "nearest_known", "second_category")
    }
    confidence = _confidence(state).tolist()
    rows = []
    for row, path in enumerate(state.paths):
        number = int(state.images.category[row])
        decided = int(state.images.decided[row])
        record = state.records.get(number, NOWHERE)
        second = today["second_category"][row]
        if second == record.name:  # both may have been merged, or a person took it
            second = ""
        by = at = ""
        if decided:
            by = state.entry(decided).by
            at = state.entry(decided).at
        rows.append(
            Assignment(
                path=path,
                label_given=today["label_given"][row],
                category_id=number,
                category=record.name,
                is_novel=record.is_novel,
                confidence=confidence[row],
                outlier_score=float(state.columns["outlier_score"][row]),
                nearest_known=today["nearest_known"][row],
                nearest_known_similarity=float(state.columns["nearest_known_similarity"][row]),
                is_apart=bool(state.columns["is_apart"][row]),
                second_category=second,
                status=STATUSES[int(state.images.status[row])],
                classified_by=by,
                classified_at=at,
            )
        )
    return rows


def reviewed_categories(state: State) -> list[Category]:
    """The categories that have not ended, known ones first, by id."""
    confidence = _confidence(state)
    names = names_today(state)
    typical = state.typical_order
    ordered = sorted(state.categories.items(), key=lambda item: (item[1].is_novel, item[0]))
    categories = []
    for number, record in ordered:
        rows = typical[state.images.category[typical] == number]
        nearest, similarity = "", float("nan")
        if record.is_novel:
            nearest, similarity = _nearest_known(state, rows.tolist())
        mixed_probability = state.mixed_probability.get(number, 0.0)
        if mixed_probability >= MIXED_FROM and proposed_split(state, number) is None:
            mixed_probability = 0.0  # what it may have held has left it
        categories.append(
            Category(
                category_id=number,
                category=record.name,
                is_novel=record.is_novel,
                size=len(rows),
                n_labeled=sum(bool(state.columns["label_given"][row]) for row in rows.tolist()),
                confidence=float(confidence[rows].mean()) if len(rows) else 0.0,
                nearest_known=names.get(nearest, nearest),
                nearest_known_similarity=similarity,
                exemplars=tuple(state.paths[row] for row in rows[:N_EXEMPLARS].tolist()),
                mixed_probability=mixed_probability,
            )
        )
    return categories


def _nearest_known(state: State, rows: Sequence[int]) -> tuple[str, float]:
    """The known category nearest to most of some images, and the mean similarity of those."""
    nearest = state.columns["nearest_known"]
    votes = Counter(nearest[row] for row in rows if nearest[row])
    if not votes:
        return "", float("nan")
    best = max(votes, key=lambda name: (votes[name], name))
    similarity = state.columns["nearest_known_similarity"]
    return best, float(np.mean([similarity[row] for row in rows if nearest[row] == best]))


def _confidence(state: State) -> Floats:
    """(N,) 1 where a person has decided, 0 where there is no category, else what the run says."""
    confidence: Floats = np.array(state.columns["confidence"], dtype=np.float64)
    confidence[np.isin(state.images.status, (CONFIRMED, MOVED))] = 1.0
    confidence[state.images.category == NO_CATEGORY] = 0.0
    return confidence


def names_today(state: State) -> dict[str, str]:
    """What the categories of the run are called today, by their first name."""
    return {name: state.records[number].name for name, number in state.named_today().items()}
