"""The verbs of a review for Python callers: categories by name or id, images by path."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UnknownName, UsageError
from shoal.review.actions import NO_CATEGORY, PREDICTED, Action, Entry, Group, checked_name
from shoal.review.parts import parts_of
from shoal.review.review import Review
from shoal.review.state import State
from shoal.words import first_few

Which = str | SupportsIndex
"""A category by its name or its id, numpy's numbers too."""


def find(state: State, category: Which) -> int:
    """The id of a category."""
    number = state.find(category) if isinstance(category, str) else whole(category)
    if number is None or number not in state.categories:
        raise UnknownName(
            "category", str(category), [record.name for record in state.categories.values()]
        )
    return number


def whole(value: Any) -> int | None:
    """A whole number, of numpy's too; None for anything else."""
    return (
        operator.index(value)
        if isinstance(value, SupportsIndex) and not isinstance(value, bool)
        else None
    )


def grouped(state: State, rows: Ints) -> tuple[Group, ...]:
    """Images by the category they are in."""
    keys = state.images.category[rows] - NO_CATEGORY
    keys = keys.astype(
        np.min_scalar_type(keys.max(initial=0))
    )  # short numbers are sorted in a tenth of the time
    order = np.argsort(keys, kind="stable")
    rows, categories = rows[order], state.images.category[rows[order]]
    starts = np.flatnonzero(np.diff(categories, prepend=NO_CATEGORY - 1))
    return tuple(
        Group(category=int(categories[start]), rows=part)
        for start, part in zip(starts.tolist(), np.split(rows, starts[1:]), strict=False)
    )


def _paths(images: Iterable[str]) -> list[str]:
    """Images by path; one path alone is one image, not its letters."""
    return [images] if isinstance(images, str) else list(images)


def undecided(state: State, category: int) -> Ints:
    """The images of a category that nobody has decided about or flagged."""
    return np.flatnonzero((state.images.status == PREDICTED) & (state.images.category == category))


def decide(
    review: Review,
    kind: str,
    category: Which | None,
    images: Iterable[str] | None,
    *,
    by: str | None = None,
) -> Entry:
    """Confirm, reject or flag some images, or the undecided ones of a whole category."""
    if (category is None) == (images is None):
        raise UsageError(f"{kind}: give a category or images, one of them")

    def make(state: State) -> Action:
        if category is not None:
            rows = undecided(state, find(state, category))
        else:
            rows = review.answer.rows(_paths(images or ()))
        groups = grouped(state, rows)
        if not groups:
            raise UsageError(f"{kind}: there is no image left to {kind}")
        if kind != "flag" and any(group.category == NO_CATEGORY for group in groups):
            raise UsageError(f"{kind}: an image has no category; assign it to one first")
        return Action(kind=kind, groups=groups)

    return review.act(make, by=by)


def move(review: Review, images: Iterable[str], to: Which, *, by: str | None = None) -> Entry:
    """Put images into a category; a name that no category has makes a new one."""
    rows = review.answer.rows(_paths(images))
    if not len(rows):
        raise UsageError(f"move: no image is named for {to}; name some")

    def make(state: State) -> Action:
        there = state.find(to) if isinstance(to, str) else whole(to)
        if isinstance(to, str) and there is None:
            group = Group(category=state.next_id, rows=rows)
            return Action(
                kind="create", category=group.category, name=checked_name(to), groups=(group,)
            )
        target = find(state, to)
        return Action(kind="assign", category=target, groups=(Group(category=target, rows=rows),))

    return review.act(make, by=by)


def rename(review: Review, category: Which, name: str, *, by: str | None = None) -> Entry:
    """Give a category another name."""
    text = checked_name(name)
    return review.act(
        lambda state: Action(kind="rename", category=find(state, category), name=text), by=by
    )


def merge(
    review: Review,
    categories: Which | Sequence[Which],
    into: Which | None = None,
    *,
    by: str | None = None,
) -> Entry:
    """Merge categories into one of them, the first if not said; a name alone is one category, not its letters."""
    if isinstance(categories, str) or not isinstance(categories, Iterable):
        categories = [categories]

    def make(state: State) -> Action:
        ids = [find(state, category) for category in categories]
        target = ids[0] if into is None and ids else find(state, into if into is not None else "")
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
    """Split a category: into a number of parts, as the tree of the run parts it, or into images by name."""

    def make(state: State) -> Action:
        target = find(state, category)
        if not isinstance(parts, Mapping):
            return split_action(state, target, parts_of(review.run, state, target, _n_parts(parts)))
        named = {
            checked_name(name): review.answer.rows(_paths(images)) for name, images in parts.items()
        }
        if empty := [name for name, rows in named.items() if not len(rows)]:
            raise UsageError(
                f"split: no image is named for {first_few(empty)}; leave it out, or name some"
            )
        groups = [
            Group(category=state.next_id + at, rows=rows, name=n)
            for at, (n, rows) in enumerate(named.items())
        ]
        return Action(kind="split", category=target, groups=tuple(groups))

    return review.act(make, by=by)


def _n_parts(parts: Any) -> int:
    number = whole(parts)
    if number is None:
        raise UsageError(
            f"parts: found {str(parts)[:40]!r}, expected a number of parts, or images by name"
        )
    return number


def split_action(state: State, category: int, parts: Sequence[Ints]) -> Action:
    """The split in which the first of some parts stays, and every other gets a name of its own."""
    base = state.records[category].name
    taken = {record.name for record in state.categories.values()}
    free = (
        name
        for number in range(2, len(taken) + len(parts) + 3)
        if (name := f"{base} ({number})") not in taken
    )
    groups = tuple(
        Group(category=state.next_id + at, rows=rows, name=next(free))
        for at, rows in enumerate(parts[1:])
    )
    return Action(kind="split", category=category, groups=groups)
