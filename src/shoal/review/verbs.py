"""The actions of a review for Python callers: categories by name or id, images by path."""

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UnknownName, UsageError
from shoal.review.actions import PREDICTED, Action, Entry, Group, assign, checked_name, create
from shoal.review.parts import labeled_first, parts_of, proposed_split
from shoal.review.review import Review
from shoal.review.state import Conflict, State, by_category
from shoal.runs import NO_CATEGORY
from shoal.words import first_few

Which = str | SupportsIndex
"""A category by name or id; NumPy integers are ids too."""


def find(state: State, category: Which) -> int:
    """Return the id of a category."""
    number = state.find(category) if isinstance(category, str) else _whole(category)
    if number is None or number not in state.categories:
        names = [record.name for record in state.categories.values()]
        raise UnknownName("category", str(category), names)
    return number


def _whole(value: object) -> int | None:
    """Return a Python or NumPy integer as int; None for anything else."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        return None
    return operator.index(value)


def grouped(state: State, rows: Ints) -> tuple[Group, ...]:
    """Return images grouped by the category they are in."""
    parts = by_category(state.category, rows)
    return tuple(Group(category=category, rows=part) for category, part in parts.items())


def _rows(state: State, images: Iterable[str]) -> Ints:
    """Return the rows of some paths; a string is one path."""
    return state.rows([images] if isinstance(images, str) else images)


def decide(
    review: Review,
    kind: str,
    category: Which | None,
    images: Iterable[str] | None,
    *,
    by: str | None = None,
) -> Entry:
    """Confirm, reject or flag images, or the undecided ones of a category."""

    def make(state: State) -> Action:
        if category is not None and images is None:
            is_undecided = state.status == PREDICTED
            is_member = state.category == find(state, category)
            rows = np.flatnonzero(is_undecided & is_member)
        elif images is not None and category is None:
            rows = _rows(state, images)
        else:
            raise UsageError(f"{kind}: give either a category or images")
        return decision(state, kind, rows)

    return review.act(make, by=by)


def decision(state: State, kind: str, rows: Ints) -> Action:
    """Return the action that confirms, rejects or flags images in their present categories."""
    groups = grouped(state, rows)
    if not groups:
        raise UsageError(f"{kind}: there is no image left to {kind}")
    if kind != "flag" and groups[0].category == NO_CATEGORY:
        raise Conflict(f"{kind}: an image has no category; move it to one first")
    return Action(kind=kind, groups=groups)


def move(review: Review, images: Iterable[str], to: Which, *, by: str | None = None) -> Entry:
    """Move images to a category; a new name creates one."""

    def make(state: State) -> Action:
        rows = _rows(state, images)
        if not len(rows):
            raise UsageError(f"move: expected images to move to {to}")
        if isinstance(to, str) and state.find(to) is None:
            return create(state.next_id, checked_name(to), rows)
        return assign(find(state, to), rows)

    return review.act(make, by=by)


def rename(review: Review, category: Which, name: str, *, by: str | None = None) -> Entry:
    """Rename a category."""

    def make(state: State) -> Action:
        text = checked_name(name)
        return Action(kind="rename", category=find(state, category), name=text)

    return review.act(make, by=by)


def merge(
    review: Review,
    categories: Which | Sequence[Which],
    into: Which | None = None,
    *,
    by: str | None = None,
) -> Entry:
    """Merge categories into one of them, by default the first."""
    if isinstance(categories, str) or not isinstance(categories, Iterable):
        categories = [categories]
    listed = [*categories]
    if not listed:
        raise UsageError("merge: expected at least one category")

    def make(state: State) -> Action:
        ids = [find(state, category) for category in listed]
        target = ids[0] if into is None else find(state, into)
        others = tuple(category for category in dict.fromkeys(ids) if category != target)
        return Action(kind="merge", categories=others, category=target)

    return review.act(make, by=by)


def split(
    review: Review,
    category: Which,
    parts: SupportsIndex | Mapping[str, Iterable[str]],
    *,
    by: str | None = None,
) -> Entry:
    """Split a category into a number of parts along the run's tree, or into given parts by name."""

    def make(state: State) -> Action:
        source = find(state, category)
        if isinstance(parts, Mapping):
            named = {checked_name(name): _rows(state, images) for name, images in parts.items()}
            _check_parts(state, source, named)
        else:
            n_parts = _whole(parts)
            if n_parts is None:
                raise UsageError(
                    f"parts: found {str(parts)[:40]!r}, expected a number, or images by name"
                )
            proposed = proposed_split(state, source)
            if n_parts == 2 and proposed is not None:
                found = labeled_first(state, source, proposed)
            else:
                found = parts_of(review.run, state, source, n_parts)
            named = dict(zip(_part_names(state, source), found[1:], strict=False))
        groups = tuple(
            Group(category=number, rows=rows, name=name)
            for number, (name, rows) in enumerate(named.items(), start=state.next_id)
        )
        return Action(kind="split", category=source, groups=groups)

    return review.act(make, by=by)


def _check_parts(state: State, category: int, named: Mapping[str, Ints]) -> None:
    """Refuse parts without images, and a part with most of the given labels of the category."""
    if empty := [name for name, rows in named.items() if not len(rows)]:
        raise UsageError(f"split: no image is listed for {first_few(empty)}")
    members = state.members(category)
    staying = np.setdiff1d(members, np.concatenate([members[:0], *named.values()]))
    if labeled_first(state, category, [staying, *named.values()])[0] is not staying:
        name = state.records[category].name
        raise UsageError(
            f"split: most images labeled {name} would leave it, but the part with the given labels "
            f"keeps the name; split off the others instead, then rename {name}"
        )


def _part_names(state: State, category: int) -> Iterable[str]:
    """Yield default names for the parts of a category: 'gull (2)', 'gull (3)' and so on."""
    base = state.records[category].name
    taken = {record.name for record in state.categories.values()}
    names = (f"{base} ({number})" for number in itertools.count(2))
    return (name for name in names if name not in taken)
