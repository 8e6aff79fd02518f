"""Compute the change that an action makes, or raise if it is impossible; the state is not modified.

An action is refused if somebody else changed one of its images or categories
after `base`, the last action that its author had seen. An action can be undone only if no later
action in effect depends on it.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import CONFIRMED, FLAGGED, MOVED, REJECTED, Action
from shoal.review.state import Change, Record, State
from shoal.runs import NO_CATEGORY

STATUS_OF = {"confirm": CONFIRMED, "reject": REJECTED, "flag": FLAGGED}
"""The status that each kind of decision sets."""


def prepare(state: State, action: Action, base: int | None = None) -> Change:
    """Return the change that an action would make now; raise if the action is not possible."""
    if np.bincount(action.rows).max(initial=0) > 1:
        raise UsageError("images: an image is listed twice")
    if action.kind in ("assign", "refuse", "split") and not _has_images(action):
        raise UsageError(f"{action.kind}: expected at least one image")
    change = EFFECTS[action.kind](state, action, state.seq + 1)
    _check_names(state, change)
    if base is not None:
        _check_base(state, change, action, base)
    return change


def _has_images(action: Action) -> bool:
    """Return whether there are groups, and each has images."""
    return bool(action.groups) and all(len(group.rows) for group in action.groups)


def _decide(state: State, action: Action, seq: int) -> Change:
    """Return the change of confirm, reject and flag."""
    for group in action.groups:
        if group.category != NO_CATEGORY or action.kind != "flag":
            state.existing(group.category)
        if (state.category[group.rows] != group.category).any():
            name = state.name(group.category)
            raise UsageError(
                f"{action.kind}: an image is no longer in {name}; check it and try again"
            )
    values = _values(state, action.rows, seq, status=STATUS_OF[action.kind])
    if action.kind != "reject":
        return Change(rows=action.rows, values=values)
    values[0] = NO_CATEGORY
    return Change(rows=action.rows, values=values, rejected=_rejected(state, action))


def _refuse(state: State, action: Action, seq: int) -> Change:
    """Return the change of refuse: rule out a category for images that are not in it."""
    name = state.existing(action.category).name
    if (state.category[action.rows] == action.category).any():
        raise UsageError(f"refuse: an image is in {name} now; reject it instead")
    values = _values(state, action.rows, seq)
    return Change(rows=action.rows, values=values, rejected=_rejected(state, action))


def _rejected(state: State, action: Action) -> dict[int, frozenset[int]]:
    """Return by row the categories that each image is rejected from after reject or refuse."""
    return {
        row: state.rejected.get(row, frozenset()) | {group.category}
        for group in action.groups
        for row in group.rows.tolist()
    }


def _move(state: State, action: Action, seq: int) -> Change:
    """Return the change of assign and create."""
    records: dict[int, Record | None] = {}
    if action.kind == "create":
        records[action.category] = _new(state, action.category, action.name, seq)
    else:
        state.existing(action.category)
    rows = action.rows
    # Moving an image to a category cancels an earlier rejection from that category.
    rejected = {
        row: state.rejected[row] - {action.category}
        for row in rows.tolist()
        if action.category in state.rejected.get(row, ())
    }
    values = _values(state, rows, seq, action.category, MOVED)
    return Change(rows=rows, values=values, records=records, rejected=rejected)


def _rename(state: State, action: Action, seq: int) -> Change:
    old = state.existing(action.category)
    if old.name == action.name:
        raise UsageError(f"{action.name}: the category already has this name")
    new = replace(old, name=action.name, is_named=True, owner=seq)
    return Change(records={action.category: new})


def _merge(state: State, action: Action, seq: int) -> Change:
    if not action.categories or action.category in action.categories:
        raise UsageError("merge: expected categories other than the target")
    into = state.existing(action.category)
    others = {category: state.existing(category) for category in action.categories}
    records: dict[int, Record | None] = {
        category: replace(old, merged_into=action.category, owner=seq)
        for category, old in others.items()
    }
    is_novel = into.is_novel and all(old.is_novel for old in others.values())
    notes = dict.fromkeys(record.note for record in (into, *others.values()))
    note = " ".join(filter(None, notes))
    records[action.category] = replace(into, is_novel=is_novel, owner=seq, note=note)
    rows = np.flatnonzero(np.isin(state.category, [*others]))
    return Change(rows=rows, values=_values(state, rows, seq, action.category), records=records)


def _split(state: State, action: Action, seq: int) -> Change:
    source = state.existing(action.category)
    if (state.category[action.rows] != action.category).any():
        raise UsageError(f"split: an image is no longer in {source.name}; try again")
    records: dict[int, Record | None] = {}
    for part in action.groups:
        is_named = not is_numbered_part(part.name, source.name)
        records[part.category] = _new(state, part.category, part.name, seq, is_named=is_named)
    sizes = [len(part.rows) for part in action.groups]
    category = np.repeat([part.category for part in action.groups], sizes)
    values = _values(state, action.rows, seq, category)
    return Change(rows=action.rows, values=values, records=records)


def is_numbered_part(name: str, base: str) -> bool:
    """Return whether `name` is a default name for a part of `base`, such as 'novel-001 (2)'."""
    return bool(re.fullmatch(re.escape(base) + r" \(\d+\)", name))


def _mark_distinct(state: State, action: Action, _seq: int) -> Change:
    different = sorted(set(action.categories))
    if len(different) != 2:
        raise UsageError("distinct: expected two categories")
    pair = (different[0], different[1])
    names = " and ".join(state.existing(category).name for category in pair)
    if pair in state.distinct:
        raise UsageError(f"{names}: already marked as distinct")
    return Change(distinct={pair: True})


def _note(state: State, action: Action, seq: int) -> Change:
    """Return the change that sets the note on images or on a category."""
    rows = action.rows.tolist()
    if (action.category == NO_CATEGORY) != bool(rows):
        raise UsageError("note: expected either images or a category")
    if rows:
        return Change(notes=dict.fromkeys(rows, action.text))
    record = replace(state.existing(action.category), note=action.text, owner=seq)
    return Change(records={action.category: record})


def _new(state: State, category: int, name: str, seq: int, *, is_named: bool = True) -> Record:
    """Return the record of a new category; a very large id can only come from an edited log."""
    if category in state.records or not 0 <= category <= state.next_id + len(state):
        raise UsageError(f"category {category}: expected an id near {state.next_id}, the next one")
    return Record(name, is_novel=True, is_named=is_named, owner=seq)


def _values(
    state: State,
    rows: Ints,
    seq: int,
    category: Ints | int | None = None,
    status: int | None = None,
) -> Ints:
    """Return the values of images that are given a category and a status, unless None."""
    values: Ints = state.images[:, rows]
    if category is not None:
        values[0] = category
    if status is not None:
        values[1] = status
        values[2] = seq
    values[3] = seq
    return values


def _undo(state: State, action: Action, _seq: int) -> Change:
    of = action.of
    undone = state.action(of)
    if of in state.undone:
        raise UsageError(f"action {of}: already undone")
    if undone.of:
        raise UsageError(f"action {of}: an undo or redo cannot be undone")
    change = state.before(of)
    if any(state.notes[row] != undone.text for row in change.notes):
        raise UsageError(f"undo of {state.describe(of)}: a note has changed since")
    # A category that the undo removes may contain images that were moved there later.
    removed = [category for category, record in change.records.items() if record is None]
    is_inside = np.isin(state.category, removed)
    owners = [state.records[category].owner for category in change.records]
    later = np.concatenate([state.owner[change.rows], state.owner[is_inside], owners])
    last = int(later.max(initial=of))
    if last > of:
        raise UsageError(
            f"undo of {state.describe(of)}: {state.describe(last)} depends on it; undo that first"
        )
    return change


def _redo(state: State, action: Action, _seq: int) -> Change:
    of = action.of
    undone = state.action(of)
    if of not in state.undone:
        raise UsageError(f"action {of}: not undone, so it cannot be redone")
    before = state.before(of)
    is_same = (
        np.array_equal(state.owner[before.rows], before.values[3])
        and all(state.notes[row] == text for row, text in before.notes.items())
        and all(state.records.get(c) == record for c, record in before.records.items())
    )
    if not is_same:
        raise UsageError(
            f"redo of {state.describe(of)}: its images or categories have changed since"
        )
    return EFFECTS[undone.kind](state, undone, of)


EFFECTS: dict[str, Callable[[State, Action, int], Change]] = {
    "confirm": _decide,
    "reject": _decide,
    "flag": _decide,
    "refuse": _refuse,
    "assign": _move,
    "create": _move,
    "rename": _rename,
    "merge": _merge,
    "split": _split,
    "distinct": _mark_distinct,
    "note": _note,
    "undo": _undo,
    "redo": _redo,
}
"""By kind of action, the function that returns its change as action `seq`."""


def _check_names(state: State, change: Change) -> None:
    """Refuse a change that would give two categories the same name."""
    present = (state.records | change.records).values()
    counts = Counter(r.name for r in present if r is not None and r.merged_into is None)
    for record in change.records.values():
        if record is not None and counts[record.name] > 1:
            raise UsageError(
                f"{record.name}: another category has this name; merge them, or choose another"
            )


def _check_base(state: State, change: Change, action: Action, base: int) -> None:
    """Refuse an action if its images or categories were changed after `base`."""
    if base > state.seq:  # somebody replaced the log with an older copy
        raise UsageError(
            f"{action.kind}: the page has seen action {base}, but the last one is {state.seq}; "
            "reload the page"
        )
    groups = [group.category for group in action.groups]
    categories = {*change.records, *groups, action.category, *action.categories}
    for seq, later in enumerate(state.changes[base:], start=base + 1):
        if (
            np.isin(change.rows, later.rows).any()
            or not categories.isdisjoint(later.records)
            or not change.notes.keys().isdisjoint(later.notes)
            # a merge of categories that somebody has marked as distinct
            or any(
                change.records.keys() >= {*pair} for pair in state.distinct & later.distinct.keys()
            )
        ):
            raise UsageError(
                f"{action.kind}: {state.describe(seq)} changed this in the meantime; check it and "
                "try again"
            )
