"""What a review says to the next discovery: labels, cannot-links, known categories, names and ids."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from shoal.arrays import Ints
from shoal.review.actions import CONFIRMED, MOVED, NO_CATEGORY
from shoal.review.review import Review
from shoal.review.state import State

COUNTED_BY = "the review"
"""Where the number of categories of a run comes from that goes on from those that people left."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Decisions:
    """A review in the words of a discovery; images by path, categories by id."""

    names: dict[int, str]
    """The categories that have not ended."""
    known: tuple[int, ...]
    """Those that are known from now on, ascending: known before, named by a person, or with a decided image."""
    became_known: tuple[int, ...]
    """Those of them that were novel."""
    labels: dict[str, int]
    """The images that were confirmed or moved, each with its category.

    A split decides about no single image: one that was confirmed as what its given label says keeps that label.
    """
    given: dict[str, int]
    """The images that came with a label, each with the category that its label stands for today."""
    contradicted: frozenset[str]
    """Those of them about which a person has decided otherwise: moved, confirmed elsewhere or thrown out."""
    apart: dict[str, frozenset[int]]
    """The categories that images were thrown out of."""
    categories: dict[str, int]
    """The category of every image that has one."""
    called: dict[str, int]
    """The category that each name of the run stands for today: see `State.named_today`."""
    ended: dict[int, int]
    """The categories that were merged, and what they are now."""
    next_id: int
    taken: frozenset[str]
    """Every name that a category has, or had in the run."""

    def label(self, path: str, given: Mapping[str, int] | None = None) -> int:
        """The category that an image is labeled with after the review; -1 for none.

        A given label counts until a person has decided about that very image. `given` are other given labels than
        those of the run.
        """
        if path in self.labels:
            return self.labels[path]
        label = (self.given if given is None else given).get(path, NO_CATEGORY)
        return NO_CATEGORY if label in self.apart.get(path, ()) else label


def decisions_of(review: Review) -> Decisions:
    """Read a review, with the cannot-links that hold from an earlier one."""
    state = review.state
    paths = review.answer.paths
    ended = {
        number: state.today(number) for number in state.records if number not in state.categories
    }
    called = state.named_today()
    given_labels = state.given_labels()
    labels = _labels(state, given_labels)
    known = _known(state, set(labels.values()))
    decisions = Decisions(
        names={number: record.name for number, record in state.categories.items()},
        known=known,
        became_known=tuple(number for number in known if state.records[number].is_novel),
        labels=labels,
        given={
            paths[row]: int(given_labels[row])
            for row in np.flatnonzero(given_labels != NO_CATEGORY).tolist()
        },
        contradicted=frozenset(),
        apart=_apart(review, ended),
        categories={
            paths[row]: int(state.images.category[row])
            for row in np.flatnonzero(state.images.category != NO_CATEGORY).tolist()
        },
        called=called,
        ended=ended,
        next_id=state.next_id,
        taken=frozenset(called) | {record.name for record in state.records.values()},
    )
    contradicted = {
        path for path, given in decisions.given.items() if decisions.label(path) != given
    }
    return replace(decisions, contradicted=frozenset(contradicted))


def _labels(state: State, given: Ints) -> dict[str, int]:
    """The category of each image that a person has decided about."""
    rows = np.flatnonzero(np.isin(state.images.status, (CONFIRMED, MOVED)))
    categories = state.images.category[rows]
    is_elsewhere = (given[rows] != NO_CATEGORY) & (given[rows] != categories)
    for at in np.flatnonzero(is_elsewhere).tolist():
        row = int(rows[at])
        if state.today(_decided_category(state, row)) == given[row]:
            # A person has agreed with the label, and a split has put the image elsewhere since.
            categories[at] = given[row]
    paths = state.answer.paths
    return {paths[row]: int(c) for row, c in zip(rows.tolist(), categories, strict=True)}


def _decided_category(state: State, row: int) -> int:
    """The category that the last decision about an image put it into or confirmed it in."""
    action = state.entry(int(state.images.decided[row])).action
    return next(group.category for group in action.groups if row in group.rows)


def _known(state: State, decided: set[int]) -> tuple[int, ...]:
    return tuple(
        number
        for number, record in sorted(state.categories.items())
        if not record.is_novel or record.is_named or number in decided
    )


def _apart(review: Review, ended: Mapping[int, int]) -> dict[str, frozenset[int]]:
    """Every cannot-link; where a person has put the image there after all, the later word holds."""
    state = review.state
    apart = {}
    for row, ids in sorted(state.rejected.by_row().items()):
        own = (
            {int(state.images.category[row])}
            if state.images.status[row] in (CONFIRMED, MOVED)
            else set()
        )
        if today := frozenset(ended.get(number, number) for number in ids) - own:
            apart[review.answer.paths[row]] = today
    return apart
