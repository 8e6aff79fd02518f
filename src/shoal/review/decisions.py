"""What a review says to the next discovery: labels, cannot-links, known categories, names and ids."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.review.actions import CONFIRMED, MOVED, NO_CATEGORY
from shoal.review.review import Review
from shoal.review.state import State

COUNTED_BY = "the review"
"""Where the number of categories of a run comes from that goes on from those that people left."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Decisions:
    """A review in the words of a discovery; images by path, categories by id."""

    names: dict[int, str]
    """The categories that have not ended, without those between others."""
    known: tuple[int, ...]
    """Those that are known from now on, ascending: known before, named by a person, or with a decided image."""
    became_known: tuple[int, ...]
    """Those of them that were novel."""
    labels: dict[str, int]
    """The images that were confirmed or moved, each with its category."""
    undecided: frozenset[str]
    """Images that people left between categories: they have no label and no category."""
    given: dict[str, int]
    """Other images that came with a label nobody has contradicted."""
    contradicted: frozenset[str]
    """Images that came with a label which people contradicted."""
    apart: dict[str, frozenset[int]]
    """The categories that images were thrown out of."""
    categories: dict[str, int]
    """The category of every image that has one."""
    called: dict[str, int]
    """The category that each name of the run stands for today, of renamed and merged categories too."""
    ended: dict[int, int]
    """The categories that were merged, and what they are now."""
    next_id: int
    taken: frozenset[str]
    """Every name that a category has, or had in the run."""


def decisions_of(review: Review) -> Decisions:
    """Read a review, with the cannot-links that hold from an earlier one."""
    state = review.state
    paths = review.answer.paths
    ended = {
        number: _today(state, number) for number in state.records if number not in state.categories
    }
    called = {c.category: ended.get(c.category_id, c.category_id) for c in review.answer.categories}
    between = {number for number, record in state.categories.items() if record.between}
    is_between = np.isin(state.images.category, sorted(between))
    decided = np.flatnonzero(
        np.isin(state.images.status, (CONFIRMED, MOVED)) & ~is_between
    ).tolist()
    labels = {paths[row]: int(state.images.category[row]) for row in decided}
    apart = _apart(review, ended, between)
    known = tuple(number for number in _known(state, set(labels.values())) if number not in between)
    given = {
        path: name
        for path, name in zip(paths, review.answer.columns["label_given"], strict=True)
        if name
    }
    contradicted = _contradicted(review, given, called, labels, apart)
    return Decisions(
        names={
            number: record.name
            for number, record in state.categories.items()
            if number not in between
        },
        known=known,
        became_known=tuple(number for number in known if state.records[number].is_novel),
        labels=labels,
        undecided=frozenset(paths[row] for row in np.flatnonzero(is_between).tolist()),
        given={
            path: called[name]
            for path, name in given.items()
            if name in called and path not in labels and path not in contradicted
        },
        contradicted=contradicted,
        apart=apart,
        categories={
            paths[row]: int(state.images.category[row])
            for row in np.flatnonzero((state.images.category != NO_CATEGORY) & ~is_between).tolist()
        },
        called=called,
        ended=ended,
        next_id=state.next_id,
        taken=frozenset(called) | {record.name for record in state.records.values()},
    )


def _today(state: State, number: int) -> int:
    while (into := state.records[number].merged_into) is not None:
        number = into
    return number


def _known(state: State, decided: set[int]) -> tuple[int, ...]:
    return tuple(
        number
        for number, record in sorted(state.categories.items())
        if not record.is_novel or record.is_named or number in decided
    )


def _apart(
    review: Review, ended: Mapping[int, int], between: set[int]
) -> dict[str, frozenset[int]]:
    """Every cannot-link; where a person has put the image there after all, the later word holds."""
    state = review.state
    apart = {}
    for row, ids in sorted(state.rejected.by_row().items()):
        own = (
            {int(state.images.category[row])}
            if state.images.status[row] in (CONFIRMED, MOVED)
            else set()
        )
        if today := frozenset(ended.get(number, number) for number in ids) - own - between:
            apart[review.answer.paths[row]] = today
    return apart


def _contradicted(
    review: Review,
    given: Mapping[str, str],
    called: Mapping[str, int],
    labels: Mapping[str, int],
    apart: Mapping[str, frozenset[int]],
) -> frozenset[str]:
    """The images whose label does not hold: a decision for another category, a rejection or a split says otherwise."""
    state = review.state
    made_by_run = set(called.values())
    contradicted = set()
    for path, name in given.items():
        label = called.get(name)
        own = int(state.images.category[review.answer.row_of[path]])
        is_parted = own in state.categories and own not in made_by_run
        if labels.get(path, label) != label or label in apart.get(path, ()) or is_parted:
            contradicted.add(path)
    return frozenset(contradicted)
