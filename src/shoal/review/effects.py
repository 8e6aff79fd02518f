"""Compute the change that an action makes, or raise if it is impossible; the state is not modified.

An action is refused with a `Conflict` if somebody else changed one of its images or categories
after `base`, the last action that its author had seen. An action can be undone only if no later
action in effect depends on it.
"""

import itertools
import re
from dataclasses import replace
from functools import cache

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import CONFIRMED, FLAGGED, MOVED, REJECTED, Action
from shoal.review.state import Change, Conflict, Images, Record, State
from shoal.runs import NO_CATEGORY

NO_ROWS: Ints = np.zeros(0, np.int64)

STATUS_OF = {"confirm": CONFIRMED, "reject": REJECTED, "flag": FLAGGED}
"""The status that each kind of decision sets."""


def prepare(state: State, action: Action, base: int | None = None) -> Change:
    """Return the change that an action would make now; raise if the action is not possible."""
    if action.kind == "undo":
        change = _undo(state, action.of)
    elif action.kind == "redo":
        change = _redo(state, action.of)
    else:
        change = _effect(state, action, state.seq + 1)
    if change.records:
        _check_names(state, change)
    if base is not None:
        _check_base(state, change, action, base)
    return change


def _effect(state: State, action: Action, seq: int) -> Change:
    """Return the change that an action other than undo and redo makes as entry `seq`."""
    if action.kind in STATUS_OF:
        return _decide(state, action, seq)
    if action.kind in ("assign", "create"):
        return _move(state, action, seq)
    if action.kind == "merge":
        return _merge(state, action, seq)
    if action.kind == "split":
        return _split(state, action, seq)
    if action.kind == "refuse":
        return _refuse(state, action, seq)
    if action.kind == "note":
        return _note(state, action, seq)
    unchanged = state.images.take(NO_ROWS)
    if action.kind == "rename":
        old = state.existing(action.category)
        if old.name == action.name:
            raise UsageError(f"{action.name}: the category already has this name")
        new = replace(old, name=action.name, is_named=True, owner=seq)
        return Change(rows=NO_ROWS, values=unchanged, records={action.category: new})
    different = sorted(set(action.categories))  # the only kind left is "distinct"
    if len(different) != 2:
        raise UsageError("distinct: expected two categories")
    pair = (different[0], different[1])
    names = " and ".join(state.existing(category).name for category in pair)
    if pair in state.distinct:
        raise UsageError(f"{names}: already marked as distinct")
    return Change(rows=NO_ROWS, values=unchanged, distinct={pair: True})


def _decide(state: State, action: Action, seq: int) -> Change:
    """Return the change of confirm, reject and flag."""
    rows = _unique(action.rows)
    for group in action.groups:
        if group.category != NO_CATEGORY or action.kind != "flag":
            state.existing(group.category)
        elsewhere = group.rows[state.images.category[group.rows] != group.category]
        if len(elsewhere):
            path = state.paths[int(elsewhere[0])]
            raise Conflict(
                f"{path}: no longer in {state.name(group.category)}; check it and try again"
            )
    status = STATUS_OF[action.kind]
    if action.kind != "reject":
        category = state.images.category[rows]
        return Change(rows=rows, values=_values(state, rows, seq, category, status))
    rejected = {
        row: _with_rejected(state.rejected.get(row, frozenset()), group.category)
        for group in action.groups
        for row in group.rows.tolist()
    }
    category = np.full(len(rows), NO_CATEGORY)
    values = _values(state, rows, seq, category, status)
    return Change(rows=rows, values=values, rejected=rejected)


@cache
def _with_rejected(rejected: frozenset[int], category: int) -> frozenset[int]:
    """Return `rejected` with `category` added; cached, because many images share a few sets."""
    return rejected | {category}


def _refuse(state: State, action: Action, seq: int) -> Change:
    """Return the change of refuse: rule out a category for images that are not in it."""
    name = state.existing(action.category).name
    rows = _unique(action.rows)
    category = state.images.category[rows]
    if (category == action.category).any():
        raise Conflict(f"refuse: an image is in {name} now; reject it instead")
    rejected = {
        row: _with_rejected(state.rejected.get(row, frozenset()), action.category)
        for row in rows.tolist()
    }
    return Change(rows=rows, values=_values(state, rows, seq, category), rejected=rejected)


def _move(state: State, action: Action, seq: int) -> Change:
    """Return the change of assign and create."""
    records: dict[int, Record | None] = {}
    if action.kind == "create":
        records[action.category] = _new(state, action.category, action.name, seq)
    else:
        state.existing(action.category)
    rows = _unique(action.rows)
    # Moving an image to a category cancels an earlier rejection from that category.
    rejected = {
        row: state.rejected[row] - {action.category}
        for row in rows.tolist()
        if action.category in state.rejected.get(row, ())
    }
    values = _values(state, rows, seq, np.full(len(rows), action.category), MOVED)
    return Change(rows=rows, values=values, records=records, rejected=rejected)


def _merge(state: State, action: Action, seq: int) -> Change:
    into = state.existing(action.category)
    others = {category: state.existing(category) for category in action.categories}
    if not others or action.category in others:
        raise UsageError("merge: expected categories other than the target")
    records: dict[int, Record | None] = {
        category: replace(old, merged_into=action.category, owner=seq)
        for category, old in others.items()
    }
    is_novel = into.is_novel and all(old.is_novel for old in others.values())
    notes = dict.fromkeys(record.note for record in (into, *others.values()))
    note = " ".join(filter(None, notes))
    records[action.category] = replace(into, is_novel=is_novel, owner=seq, note=note)
    rows = np.flatnonzero(np.isin(state.images.category, [*others]))
    values = _values(state, rows, seq, np.full(len(rows), action.category))
    return Change(rows=rows, values=values, records=records)


def _note(state: State, action: Action, seq: int) -> Change:
    """Return the change that sets the note on images or on a category."""
    unchanged = state.images.take(NO_ROWS)
    rows = _unique(action.rows)
    if (action.category == NO_CATEGORY) != bool(len(rows)):
        raise UsageError("note: expected either images or a category")
    if len(rows):
        return Change(
            rows=NO_ROWS, values=unchanged, notes=dict.fromkeys(rows.tolist(), action.text)
        )
    record = replace(state.existing(action.category), note=action.text, owner=seq)
    return Change(rows=NO_ROWS, values=unchanged, records={action.category: record})


def _split(state: State, action: Action, seq: int) -> Change:
    source = state.existing(action.category)
    if not action.groups:
        raise UsageError(f"split: expected at least one part of {source.name}")
    rows = _unique(action.rows)
    if (state.images.category[rows] != action.category).any():
        raise Conflict(f"split: an image is no longer in {source.name}; try again")
    records: dict[int, Record | None] = {}
    for part in action.groups:
        is_named = not is_numbered_part(part.name, source.name)
        records[part.category] = _new(state, part.category, part.name, seq, is_named=is_named)
    if len(records) < len(action.groups):
        raise UsageError("split: two parts have the same id")
    sizes = [len(part.rows) for part in action.groups]
    category = np.repeat([part.category for part in action.groups], sizes)
    return Change(rows=rows, values=_values(state, rows, seq, category), records=records)


def is_numbered_part(name: str, base: str) -> bool:
    """Return whether `name` is a default name for a part of `base`, such as 'novel-001 (2)'."""
    return name.startswith(base) and bool(re.fullmatch(r" \(\d+\)", name.removeprefix(base)))


def _new(state: State, category: int, name: str, seq: int, *, is_named: bool = True) -> Record:
    if category in state.records or category < 0:
        raise Conflict(f"category {category}: the id is taken")
    # An id this large can only come from an edited log.
    if category > state.next_id + len(state):
        raise UsageError(f"category {category}: expected an id near {state.next_id}, the next one")
    return Record(name, True, is_named, None, seq)


def _unique(rows: Ints) -> Ints:
    if np.bincount(rows).max(initial=0) > 1:
        raise UsageError("images: an image is listed twice")
    return rows


def _values(
    state: State, rows: Ints, seq: int, category: Ints, status: int | None = None
) -> Images:
    """Return the values of images that are given a category and, unless None, a status."""
    owner = np.full(len(rows), seq)
    old = state.images.take(rows)
    if status is None:
        return Images(category, old.status, old.decided, owner, old.version)
    return Images(category, np.full(len(rows), status), owner, owner, old.version)


def _undo(state: State, of: int) -> Change:
    action = state.entry(of).action
    if of in state.undone:
        raise UsageError(f"action {of}: already undone")
    if action.of:
        raise UsageError(f"action {of}: an undo or redo cannot be undone")
    change = state.before(of)
    if any(state.notes[row] != action.text for row in change.notes):
        raise Conflict(f"undo of {state.describe(of)}: a note has changed since")
    owners = [state.records[category].owner for category in change.records]
    later = np.append(state.images.owner[change.rows], owners)
    # A category that the undo removes may contain images that were moved there later.
    removed = [category for category, record in change.records.items() if record is None]
    is_inside = np.isin(state.images.category, removed)
    later = np.append(later, state.images.owner[is_inside])
    later = later[later != of]
    if len(later):
        last = state.describe(int(later.max()))
        raise Conflict(f"undo of {state.describe(of)}: {last} depends on it; undo that first")
    return change


def _redo(state: State, of: int) -> Change:
    action = state.entry(of).action
    if of not in state.undone:
        raise UsageError(f"action {of}: not undone, so it cannot be redone")
    before = state.before(of)
    owners = {c: record.owner for c, record in before.records.items() if record is not None}
    now = {c: state.records[c].owner for c in owners if c in state.records}
    is_same = np.array_equal(state.images.owner[before.rows], before.values.owner)
    is_same &= all(state.notes[row] == text for row, text in before.notes.items())
    if not is_same or owners != now:
        raise Conflict(f"redo of {state.describe(of)}: its images or categories have changed since")
    return _effect(state, action, of)


def _check_names(state: State, change: Change) -> None:
    """Refuse a change that would give two categories the same name."""
    names = {record.name: c for c, record in state.categories.items() if c not in change.records}
    for category, record in change.records.items():
        if record is None or record.merged_into is not None:
            continue
        if names.setdefault(record.name, category) != category:
            raise UsageError(
                f"{record.name}: another category has this name; merge them, or choose another"
            )


def _check_base(state: State, change: Change, action: Action, base: int) -> None:
    """Refuse an action if its images or categories were changed after `base`."""
    if base > state.seq:  # somebody replaced the log with an older copy
        raise Conflict(
            f"{action.kind}: the page has seen action {base}, but the last one is {state.seq}; "
            "reload the page"
        )
    last = _last_change(state, change, action)
    done = state.entry(action.of).action if action.of else action
    # A merge, or its redo, also conflicts with marking two of its categories as distinct.
    if done.kind == "merge" and action.kind != "undo":
        merged = sorted({done.category, *done.categories})
        distinct = state.distinct.intersection(itertools.combinations(merged, 2))
        last = max([last, *(state.distinct_versions[pair] for pair in distinct)])
    if last > base:
        raise Conflict(
            f"{action.kind}: {state.describe(last)} changed this in the meantime; check it and try "
            "again"
        )


def _last_change(state: State, change: Change, action: Action) -> int:
    """Return the number of the last action that changed an image or category of this one."""
    group_categories = [group.category for group in action.groups]
    touched = {*change.records, *group_categories, action.category, *action.categories}
    versions = [state.versions.get(category, 0) for category in touched]
    versions += [state.note_versions.get(row, 0) for row in change.notes]
    return max(int(state.images.version[change.rows].max(initial=0)), *versions)
