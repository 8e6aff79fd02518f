"""What a review says to the next discovery: labels, cannot-links, known categories, names and
ids."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.arrays import Ints
from shoal.review.actions import CONFIRMED, MOVED, NO_CATEGORY
from shoal.review.state import State

COUNTED_BY = "the review"
"""Where K comes from in a run that goes on from the categories that people left."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Decisions:
    """A review in the words of a discovery; images by path, categories by id."""

    names: dict[int, str]
    """The categories that have not ended."""
    known: tuple[int, ...]
    """Those that are known from now on, ascending.

    Known before, named by a person, or with a decided image.
    """
    became_known: tuple[int, ...]
    """Those of them that were novel."""
    labels: dict[str, int]
    """The images that were confirmed or moved, each with its category.

    A split decides about no single image: one that was confirmed as what its given label says keeps
    that label.
    """
    given: dict[str, int]
    """The images that came with a label, each with the category that it stands for today."""
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

        A given label counts until a person has decided about that very image. `given` are other
        given labels than those of the run.
        """
        if path in self.labels:
            return self.labels[path]
        if given is None:
            given = self.given
        label = given.get(path, NO_CATEGORY)
        if label in self.apart.get(path, ()):
            return NO_CATEGORY
        return label

    @property
    def contradicted(self) -> frozenset[str]:
        """The labeled images that a person has moved, confirmed elsewhere or thrown out."""
        return frozenset(path for path, label in self.given.items() if self.label(path) != label)


def decisions_of(state: State) -> Decisions:
    """Read a review, with the cannot-links that hold from an earlier one."""
    living = state.categories
    called = state.named_today()
    given = state.given_labels()
    labels = _labels(state, given)
    decided = set(labels.values())
    known = tuple(
        number
        for number, record in sorted(living.items())
        if not record.is_novel or record.is_named or number in decided
    )
    return Decisions(
        names={number: record.name for number, record in living.items()},
        known=known,
        became_known=tuple(number for number in known if living[number].is_novel),
        labels=labels,
        given=_by_path(state, given),
        apart=_apart(state),
        categories=_by_path(state, state.images.category),
        called=called,
        ended={number: state.today(number) for number in state.records if number not in living},
        next_id=state.next_id,
        taken=frozenset(called) | {record.name for record in state.records.values()},
    )


def _by_path(state: State, categories: Ints) -> dict[str, int]:
    """The category of each image that has one."""
    rows = zip(state.paths, categories.tolist(), strict=True)
    return {path: category for path, category in rows if category != NO_CATEGORY}


def _labels(state: State, given: Ints) -> dict[str, int]:
    """The category of each image that a person has decided about."""
    labels = {}
    for row in np.flatnonzero(np.isin(state.images.status, (CONFIRMED, MOVED))).tolist():
        category = int(state.images.category[row])
        label = int(given[row])
        if label not in (NO_CATEGORY, category) and _decided_category(state, row) == label:
            # A person has agreed with the label, and a split has put the image elsewhere since.
            category = label
        labels[state.paths[row]] = category
    return labels


def _decided_category(state: State, row: int) -> int:
    """Where the last decision about an image put it or confirmed it, as that is today."""
    action = state.entry(int(state.images.decided[row])).action
    return state.today(next(group.category for group in action.groups if row in group.rows))


def _apart(state: State) -> dict[str, frozenset[int]]:
    """Every cannot-link; where a person has put the image there after all, the later word holds."""
    apart = {}
    for row, rejected in sorted(state.rejected.items()):
        today = {state.today(number) for number in rejected if number in state.records}
        if state.images.status[row] in (CONFIRMED, MOVED):
            today.discard(int(state.images.category[row]))
        if today:
            apart[state.paths[row]] = frozenset(today)
    return apart
