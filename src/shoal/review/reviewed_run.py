"""A run with its review: the tables with reviewed names and categories, and what the next discovery
takes from the review.

The files of the run do not change. Categories keep their ids; new ones have new ids, merged ones
are gone. Confirmed and moved images have confidence 1; rejected images have category -1,
confidence 0 and are not novel. All names, including given labels, follow renames and merges.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from shoal.arrays import Bools, Floats, Ints
from shoal.review.actions import CONFIRMED, MOVED, STATUSES, Action
from shoal.review.review import FILE, OtherResult, Review
from shoal.review.state import Record, State, by_category, proposed_split, typical_first
from shoal.runs import (
    MIXED_FROM,
    NO_CATEGORY,
    Assignment,
    Category,
    Run,
    column,
    read_vectors,
    to_rows,
)

N_EXEMPLARS = 5

# What the run found out about a category that the review created: nothing
CREATED = Category(
    category_id=NO_CATEGORY, category="", is_novel=True, size=0, n_labeled=0, confidence=0.0
)

# The record of images without a category
NO_RECORD = Record("", is_novel=False)

# The rule in estimate.json if K is the number of categories in a review
COUNTED_BY = "the review"


class ReviewedRun(Run):
    """A run with its review; tables are read once.

    A review of another result is ignored. Rows are the images of assignments.csv, in its order.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._vectors: dict[str, Floats] = {}  # cached, because checking them reads all of them

    @classmethod
    def open(cls, path: Path | str, *, checks_tables: bool = True) -> Self:
        """Open a finished run; refuse one with a review of another result."""
        run = super().open(path, checks_tables=checks_tables)
        if (run.path / FILE).exists():  # a folder of this name is refused
            Review(Run(run.path))
        return run

    @classmethod
    def of(cls, run: Run) -> "ReviewedRun":
        """Return a run with its review; a ReviewedRun is returned as it is."""
        return run if isinstance(run, cls) else cls(run.path)

    @cached_property
    def review(self) -> Review | None:
        """The review; None if there is none, or only one of another result."""
        if not self.has(FILE):
            return None
        try:
            return Review(Run(self.path))
        except OtherResult:
            return None

    @cached_property
    def assignments(self) -> list[Assignment]:
        if self.review is None:
            return Run(self.path).assignments
        return reviewed_assignments(self.review.state)

    @cached_property
    def categories(self) -> list[Category]:
        if self.review is None:
            return Run(self.path).categories
        return reviewed_categories(self.review.state)

    @cached_property
    def category_ids(self) -> Ints:
        """(N,) the category of each image, -1 for none."""
        return np.array(column(self.assignments, "category_id"), dtype=np.int64)

    @cached_property
    def is_labeled(self) -> Bools:
        """(N,) whether an image was given a label."""
        return np.array([bool(row.label_given) for row in self.assignments], dtype=bool)

    @cached_property
    def members(self) -> dict[int, Ints]:
        """The rows of each category, most typical first."""
        outlier_score = column(self.assignments, "outlier_score")
        ordered = typical_first(outlier_score, column(self.assignments, "confidence"))
        return by_category(self.category_ids, ordered)

    def vectors(self, name: str) -> Floats:
        """Map `<name>.npy`, (N, D), into memory; refuse a damaged one."""
        if name not in self._vectors:
            self._vectors[name] = read_vectors(self.path / f"{name}.npy", len(self.assignments))
        return self._vectors[name]


def reviewed_assignments(state: State) -> list[Assignment]:
    names = current_names(state)
    columns = dict(state.columns)
    for key in ("label_given", "nearest_known", "second_category"):
        columns[key] = [names.get(name, name) for name in columns[key]]
    records = [state.records.get(number, NO_RECORD) for number in state.category.tolist()]
    second = zip(columns["second_category"], records, strict=True)
    decided = state.decided.tolist()
    actions = [Action(kind="start"), *state.actions]  # by seq
    columns |= {
        "path": state.paths,
        "category_id": state.category,
        "category": [record.name for record in records],
        "is_novel": [record.is_novel for record in records],
        "confidence": _confidence(state),
        # both were merged, or a person moved the image there
        "second_category": ["" if name == record.name else name for name, record in second],
        "status": [STATUSES[status] for status in state.status.tolist()],
        "classified_by": [actions[seq].by for seq in decided],
        "classified_at": [actions[seq].at for seq in decided],
    }
    return to_rows(Assignment, columns)


def reviewed_categories(state: State) -> list[Category]:
    """Return the current categories, known ones first, by id."""
    confidence = _confidence(state)
    names = current_names(state)
    typical = state.typical_order
    ordered = sorted(state.categories.items(), key=lambda item: (item[1].is_novel, item[0]))
    categories = []
    for number, record in ordered:
        rows = typical[state.category[typical] == number]
        found = state.found.get(number, CREATED)
        mixed_probability = found.mixed_probability
        if mixed_probability >= MIXED_FROM and proposed_split(state, number) is None:
            mixed_probability = 0.0  # one of its two sides is empty after the review
        categories.append(
            replace(
                found,
                category_id=number,
                category=record.name,
                is_novel=record.is_novel,
                size=len(rows),
                n_labeled=int(state.is_labeled[rows].sum()),
                confidence=float(confidence[rows].mean()) if len(rows) else 0.0,
                nearest_known=names.get(found.nearest_known, found.nearest_known),
                exemplars=tuple(state.paths[row] for row in rows[:N_EXEMPLARS].tolist()),
                mixed_probability=mixed_probability,
            )
        )
    return categories


def _confidence(state: State) -> Floats:
    """Return (N,) 1 for confirmed and moved images, 0 without a category, else the run's."""
    confidence: Floats = np.array(state.columns["confidence"], dtype=np.float64)
    confidence[np.isin(state.status, (CONFIRMED, MOVED))] = 1.0
    confidence[state.category == NO_CATEGORY] = 0.0
    return confidence


def current_names(state: State) -> dict[str, str]:
    """Return the current name of each category of the run, by its original name."""
    return {name: state.records[number].name for name, number in state.current_by_name().items()}


class Decisions:
    """The decisions of a review, with the cannot-links of earlier ones; images by path, categories
    by id."""

    def __init__(self, state: State) -> None:
        present = state.categories
        self.names = {number: record.name for number, record in present.items()}
        # The current category of each category name of the run: see `State.current_by_name`
        self.called = state.current_by_name()
        given = state.given_labels()
        # The current category of each given label, by image
        self.given = _by_path(state, given)
        # The category of each image that was confirmed or moved. A split does not decide about
        # single images: an image confirmed as its given label keeps that label.
        self.labels = _labels(state, given)
        decided = set(self.labels.values())
        # The categories that are known from now on, ascending: known before, named by a person, or
        # with an image that was confirmed or moved
        self.known = tuple(
            number
            for number, record in sorted(present.items())
            if not record.is_novel or record.is_named or number in decided
        )
        self.became_known = tuple(number for number in self.known if present[number].is_novel)
        # The categories that an image was rejected from
        self.cannot_links = _cannot_links(state)
        # The category of every image that has one
        self.categories = _by_path(state, state.category)
        # The merged categories, and what they were merged into
        self.ended = {
            number: state.current(number) for number in state.records if number not in present
        }
        self.next_id = state.next_id
        # Every name that a category has, or had in the run
        self.taken = frozenset(self.called) | {record.name for record in state.records.values()}

    def label(self, path: str, given: Mapping[str, int] | None = None) -> int:
        """Return the category that an image is labeled with after the review; -1 for none.

        A given label counts until a person decides about the image. `given` replaces the labels
        that the run was given.
        """
        if path in self.labels:
            return self.labels[path]
        if given is None:
            given = self.given
        label = given.get(path, NO_CATEGORY)
        if label in self.cannot_links.get(path, ()):
            return NO_CATEGORY
        return label

    @property
    def contradicted(self) -> frozenset[str]:
        """The labeled images that a person has moved, confirmed elsewhere or rejected."""
        return frozenset(path for path, label in self.given.items() if self.label(path) != label)


def _by_path(state: State, categories: Ints) -> dict[str, int]:
    """Return the category of each image that has one."""
    rows = zip(state.paths, categories.tolist(), strict=True)
    return {path: category for path, category in rows if category != NO_CATEGORY}


def _labels(state: State, given: Ints) -> dict[str, int]:
    labels = {}
    for row in np.flatnonzero(np.isin(state.status, (CONFIRMED, MOVED))).tolist():
        category = int(state.category[row])
        label = int(given[row])
        if label not in (NO_CATEGORY, category) and _decided_category(state, row) == label:
            # A person has agreed with the label, and a split has moved the image since.
            category = label
        labels[state.paths[row]] = category
    return labels


def _decided_category(state: State, row: int) -> int:
    """Return the category in which the last decision about an image put or confirmed it."""
    action = state.action(int(state.decided[row]))
    return state.current(next(group.category for group in action.groups if row in group.rows))


def _cannot_links(state: State) -> dict[str, frozenset[int]]:
    """Return the cannot-links of each image, except with the category a person put it into."""
    links = {}
    for row in np.flatnonzero(state.rejected).tolist():
        rejected = state.currently_rejected(row)
        if state.status[row] in (CONFIRMED, MOVED):
            rejected.discard(int(state.category[row]))
        if rejected:
            links[state.paths[row]] = frozenset(rejected)
    return links
