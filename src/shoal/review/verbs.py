"""The actions of a review for Python callers: categories by name or id, images by path.

Each function returns an action on a state, for `Review.act`.
"""

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UnknownName, UsageError, folded
from shoal.review.actions import PREDICTED, Action, Group, about_images, checked_name
from shoal.review.state import State, by_category, labeled_first, parts_of, proposed_split
from shoal.runs import NO_CATEGORY

# A category by name or id; NumPy integers are ids too
Which = str | SupportsIndex


def find(state: State, category: Which) -> int:
    number = None
    if isinstance(category, str):
        number = state.find(category)
    elif isinstance(category, SupportsIndex) and not isinstance(category, bool):
        number = operator.index(category)
    if number is None or number not in state.categories:
        names = [record.name for record in state.categories.values()]
        raise UnknownName("category", str(category), names)
    return number


def grouped(state: State, rows: Ints) -> tuple[Group, ...]:
    parts = by_category(state.category, rows)
    return tuple(Group(category=category, rows=part) for category, part in parts.items())


def _rows(state: State, images: Iterable[str]) -> Ints:
    """Return the rows of some paths; a string is one path."""
    return state.rows([images] if isinstance(images, str) else images)


def decide(state: State, kind: str, category: Which | None, images: Iterable[str] | None) -> Action:
    """Confirm, reject or flag images, or the undecided ones of a category."""
    if category is not None and images is None:
        is_undecided = state.status == PREDICTED
        is_member = state.category == find(state, category)
        rows = np.flatnonzero(is_undecided & is_member)
    elif images is not None and category is None:
        rows = _rows(state, images)
    else:
        raise UsageError(f"{kind}: give either a category or images")
    return decision(state, kind, rows)


def decision(state: State, kind: str, rows: Ints) -> Action:
    """Return the action that confirms, rejects or flags images in their current categories."""
    groups = grouped(state, rows)
    if not groups:
        raise UsageError(f"{kind}: there is no image left to {kind}")
    if kind != "flag" and groups[0].category == NO_CATEGORY:
        raise UsageError(f"{kind}: an image has no category; move it to one first")
    return Action(kind=kind, groups=groups)


def move(state: State, images: Iterable[str], to: Which) -> Action:
    """Move images to a category; a new name creates one."""
    rows = _rows(state, images)
    if not len(rows):
        raise UsageError(f"move: expected images to move to {to}")
    if isinstance(to, str) and state.find(to) is None:
        return about_images("create", state.next_id, rows, checked_name(to))
    return about_images("assign", find(state, to), rows)


def rename(state: State, category: Which, name: str) -> Action:
    return Action(kind="rename", category=find(state, category), name=checked_name(name))


def merge(state: State, categories: Which | Sequence[Which], into: Which | None = None) -> Action:
    """Merge categories into one of them, by default the first."""
    if isinstance(categories, str) or not isinstance(categories, Iterable):
        categories = [categories]
    ids = [find(state, category) for category in categories]
    if into is not None:
        ids.insert(0, find(state, into))
    target, *others = dict.fromkeys(ids) or [NO_CATEGORY]  # a merge of none is refused later
    return Action(kind="merge", categories=tuple(others), category=target)


def split(
    state: State, category: Which, parts: SupportsIndex | Mapping[str, Iterable[str]]
) -> Action:
    """Split a category into a number of parts along the run's tree, or into given parts by name."""
    source = find(state, category)
    if isinstance(parts, Mapping):
        named = {checked_name(name): _rows(state, images) for name, images in parts.items()}
    else:
        proposed = proposed_split(state, source)
        if parts == 2 and proposed is not None:
            found = labeled_first(state, source, proposed)
        else:
            found = parts_of(state, source, parts)
        named = dict(zip(_part_names(state, source), found[1:], strict=False))
    groups = tuple(
        Group(category=number, rows=rows, name=name)
        for number, (name, rows) in enumerate(named.items(), start=state.next_id)
    )
    return Action(kind="split", category=source, groups=groups)


def _part_names(state: State, category: int) -> Iterable[str]:
    """Yield default names for the parts of a category: 'gull (2)', 'gull (3)' and so on."""
    base = state.records[category].name
    taken = {folded(record.name) for record in state.categories.values()}
    names = (f"{base} ({number})" for number in itertools.count(2))
    return (name for name in names if folded(name) not in taken)
