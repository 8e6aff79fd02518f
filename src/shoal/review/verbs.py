"""The verbs of a review for Python callers: categories by name or id, images by path."""

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UnknownName, UsageError
from shoal.review.actions import (
    NO_CATEGORY,
    PREDICTED,
    Action,
    Entry,
    Group,
    assign,
    checked_name,
    create,
)
from shoal.review.parts import labeled_first, parts_of
from shoal.review.review import Review
from shoal.review.state import State
from shoal.words import first_few

Which = str | SupportsIndex
"""A category by its name or its id, numpy's numbers too."""


def find(state: State, category: Which) -> int:
    """The id of a category."""
    number = state.find(category) if isinstance(category, str) else _whole(category)
    if number is None or number not in state.categories:
        names = [record.name for record in state.categories.values()]
        raise UnknownName("category", str(category), names)
    return number


def _whole(value: object) -> int | None:
    """A whole number, of numpy's too; None for anything else."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        return None
    return operator.index(value)


def grouped(state: State, rows: Ints) -> tuple[Group, ...]:
    """Images by the category they are in."""
    rows = rows[np.argsort(state.images.category[rows], kind="stable")]
    categories, starts = np.unique(state.images.category[rows], return_index=True)
    parts = np.split(rows, starts[1:])
    return tuple(
        Group(category=category, rows=part)
        for category, part in zip(categories.tolist(), parts, strict=False)
    )


def _rows(state: State, images: Iterable[str]) -> Ints:
    """Images by path; one path alone is one image, not its letters."""
    return state.rows([images] if isinstance(images, str) else images)


def decide(
    review: Review,
    kind: str,
    category: Which | None,
    images: Iterable[str] | None,
    *,
    by: str | None = None,
) -> Entry:
    """Confirm, reject or flag some images, or the undecided ones of a whole category."""

    def make(state: State) -> Action:
        if category is not None and images is None:
            is_undecided = state.images.status == PREDICTED
            is_member = state.images.category == find(state, category)
            rows = np.flatnonzero(is_undecided & is_member)
        elif images is not None and category is None:
            rows = _rows(state, images)
        else:
            raise UsageError(f"{kind}: give a category or images, one of them")
        groups = grouped(state, rows)
        if not groups:
            raise UsageError(f"{kind}: there is no image left to {kind}")
        if kind != "flag" and any(group.category == NO_CATEGORY for group in groups):
            raise UsageError(f"{kind}: an image has no category; assign it to one first")
        return Action(kind=kind, groups=groups)

    return review.act(make, by=by)


def move(review: Review, images: Iterable[str], to: Which, *, by: str | None = None) -> Entry:
    """Put images into a category; a name that no category has makes a new one."""

    def make(state: State) -> Action:
        rows = _rows(state, images)
        if not len(rows):
            raise UsageError(f"move: no image is named for {to}; name some")
        if isinstance(to, str) and state.find(to) is None:
            return create(state.next_id, checked_name(to), rows)
        return assign(find(state, to), rows)

    return review.act(make, by=by)


def rename(review: Review, category: Which, name: str, *, by: str | None = None) -> Entry:
    """Give a category another name."""

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
    """Merge categories into one of them, the first if not said; a name alone is one category."""
    if isinstance(categories, str) or not isinstance(categories, Iterable):
        categories = [categories]
    named = [*categories]

    def make(state: State) -> Action:
        ids = [find(state, category) for category in named]
        target = ids[0] if into is None else find(state, into)
        others = tuple(category for category in dict.fromkeys(ids) if category != target)
        return Action(kind="merge", categories=others, category=target)

    if not named:
        raise UsageError("merge: expected one category or more")
    return review.act(make, by=by)


def split(
    review: Review,
    category: Which,
    parts: SupportsIndex | Mapping[str, Iterable[str]],
    *,
    by: str | None = None,
) -> Entry:
    """Split a category: into a number of parts, as the tree of the run does, or images by name."""

    def make(state: State) -> Action:
        target = find(state, category)
        if isinstance(parts, Mapping):
            named = {checked_name(name): _rows(state, images) for name, images in parts.items()}
            _check_parts(state, target, named)
        else:
            number = _whole(parts)
            if number is None:
                raise UsageError(
                    f"parts: found {str(parts)[:40]!r}, expected a number, or images by name"
                )
            leaving = parts_of(review.run, state, target, number)[1:]
            named = dict(zip(_free_names(state, target), leaving, strict=False))
        groups = tuple(
            Group(category=number, rows=rows, name=name)
            for number, (name, rows) in enumerate(named.items(), start=state.next_id)
        )
        return Action(kind="split", category=target, groups=groups)

    return review.act(make, by=by)


def _check_parts(state: State, category: int, named: Mapping[str, Ints]) -> None:
    """Refuse parts without images, and those that take the given labels with them."""
    if empty := [name for name, rows in named.items() if not len(rows)]:
        raise UsageError(
            f"split: no image is named for {first_few(empty)}; leave it out, or name some"
        )
    members = state.members(category)
    staying = np.setdiff1d(members, np.concatenate([members[:0], *named.values()]))
    if labeled_first(state, category, [staying, *named.values()])[0] is not staying:
        name = state.records[category].name
        raise UsageError(
            f"split: most images labeled {name} would leave it, and the part with the given labels "
            f"keeps the name; split off the others instead, then rename {name}"
        )


def _free_names(state: State, category: int) -> Iterable[str]:
    """Names for the parts of a category that nobody has named: 'gull (2)', 'gull (3)' and so on."""
    base = state.records[category].name
    taken = {record.name for record in state.categories.values()}
    names = (f"{base} ({number})" for number in itertools.count(2))
    return (name for name in names if name not in taken)
