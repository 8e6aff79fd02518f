"""What a review tells the next discovery: labels, cannot-links, known categories, names and ids."""

from collections.abc import Mapping

import numpy as np

from shoal.arrays import Ints
from shoal.review.actions import CONFIRMED, MOVED
from shoal.review.state import State
from shoal.runs import NO_CATEGORY

# The rule in estimate.json if K is the number of categories in a review
COUNTED_BY = "the review"


class Decisions:
    """The decisions of a review, with the cannot-links of earlier ones; images by path, categories
    by id."""

    def __init__(self, state: State) -> None:
        present = state.categories
        self.names = {number: record.name for number, record in present.items()}
        self.called = state.current_by_name()
        """The current category of each category name of the run: see `State.current_by_name`."""
        given = state.given_labels()
        self.given = _by_path(state, given)
        """The current category of each given label, by image."""
        self.labels = _labels(state, given)
        """The category of each image that was confirmed or moved.

        A split does not decide about single images: an image confirmed as its given label keeps
        that label.
        """
        decided = set(self.labels.values())
        self.known = tuple(
            number
            for number, record in sorted(present.items())
            if not record.is_novel or record.is_named or number in decided
        )
        """The categories that are known from now on, ascending: known before, named by a person, or
        with an image that was confirmed or moved."""
        self.became_known = tuple(number for number in self.known if present[number].is_novel)
        self.cannot_links = _cannot_links(state)
        """The categories that an image was rejected from."""
        self.categories = _by_path(state, state.category)
        """The category of every image that has one."""
        self.ended = {
            number: state.current(number) for number in state.records if number not in present
        }
        """The merged categories, and what they were merged into."""
        self.next_id = state.next_id
        self.taken = frozenset(self.called) | {record.name for record in state.records.values()}
        """Every name that a category has, or had in the run."""

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
