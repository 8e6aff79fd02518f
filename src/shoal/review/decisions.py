"""What a review tells the next discovery: labels, cannot-links, known categories, names and ids."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.arrays import Ints
from shoal.review.actions import CONFIRMED, MOVED
from shoal.review.state import State
from shoal.runs import NO_CATEGORY

COUNTED_BY = "the review"
"""The rule in estimate.json if K is the number of categories in a review."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Decisions:
    """The decisions of a review; images by path, categories by id."""

    names: dict[int, str]
    known: tuple[int, ...]
    """The categories that are known from now on, ascending: known before, named by a person, or
    with an image that was confirmed or moved."""
    became_known: tuple[int, ...]
    """Those of them that were novel."""
    labels: dict[str, int]
    """The category of each image that was confirmed or moved.

    A split does not decide about single images: an image confirmed as its given label keeps that
    label.
    """
    given: dict[str, int]
    """The current category of each given label, by image."""
    cannot_links: dict[str, frozenset[int]]
    """The categories that an image was rejected from."""
    categories: dict[str, int]
    """The category of every image that has one."""
    called: dict[str, int]
    """The current category of each category name of the run: see `State.current_by_name`."""
    ended: dict[int, int]
    """The merged categories, and what they were merged into."""
    next_id: int
    taken: frozenset[str]
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


def decisions_of(state: State) -> Decisions:
    """Return the decisions of a review, with the cannot-links of earlier ones."""
    present = state.categories
    called = state.current_by_name()
    given = state.given_labels()
    labels = _labels(state, given)
    decided = set(labels.values())
    known = tuple(
        number
        for number, record in sorted(present.items())
        if not record.is_novel or record.is_named or number in decided
    )
    return Decisions(
        names={number: record.name for number, record in present.items()},
        known=known,
        became_known=tuple(number for number in known if present[number].is_novel),
        labels=labels,
        given=_by_path(state, given),
        cannot_links=_cannot_links(state),
        categories=_by_path(state, state.category),
        called=called,
        ended={number: state.current(number) for number in state.records if number not in present},
        next_id=state.next_id,
        taken=frozenset(called) | {record.name for record in state.records.values()},
    )


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
