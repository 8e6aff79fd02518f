"""Compute the change that an action makes, or raise if it is impossible; the state is not modified.

An action is refused if somebody else changed one of its images or categories after `base`, the last
action that its author had seen. An action can be undone or redone only if the values concerned are
still as it, or its undo, left them.
"""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError, folded
from shoal.review.actions import CONFIRMED, FLAGGED, MOVED, REJECTED, Action, Group
from shoal.review.state import Change, Record, State
from shoal.runs import NO_CATEGORY

STATUS_OF = {"confirm": CONFIRMED, "reject": REJECTED, "flag": FLAGGED}


def prepare(
    state: State, action: Action, base: int | None = None, *, is_new: bool = False
) -> Change:
    """Return the change that an action would make now; raise if the action is not possible.

    A new action may not give a category a name that differs from another one only in case, spaces,
    hyphens or underscores; older logs contain such names, and an undo may restore them.
    """
    if np.bincount(action.rows).max(initial=0) > 1:
        raise UsageError("images: an image is listed twice")
    has_images = bool(action.groups) and all(len(group.rows) for group in action.groups)
    if action.kind in ("assign", "refuse", "split") and not has_images:
        raise UsageError(f"{action.kind}: expected at least one image")
    change = EFFECTS[action.kind](state, action)
    _check_names(state, change, folded if is_new and not action.of else str)
    if base is not None:
        _check_base(state, change, action, base)
    return change


def _decide(state: State, action: Action) -> Change:
    for group in action.groups:
        if group.category != NO_CATEGORY or action.kind != "flag":
            state.existing(group.category)
        _check_inside(state, action, group)
    values = _decided(state, action, STATUS_OF[action.kind])
    if action.kind != "reject":
        return Change(rows=action.rows, values=values)
    values[0] = NO_CATEGORY
    rejected = _rejected(state, action, frozenset.union)
    return Change(rows=action.rows, values=values, rejected=rejected)


def _refuse(state: State, action: Action) -> Change:
    name = state.existing(action.category).name
    if (state.category[action.rows] == action.category).any():
        raise UsageError(f"refuse: an image is in {name} now; reject it instead")
    rejected = _rejected(state, action, frozenset.union)
    return Change(rows=action.rows, values=state.images[:, action.rows], rejected=rejected)


def _rejected(state: State, action: Action, changed: Callable[..., frozenset[int]]) -> Ints:
    """Return the new `Change.rejected` of the images of an action.

    `changed` takes the categories that an image was rejected from, and the category of its group.
    """
    parts = [np.zeros(0, np.int64)]
    for group in action.groups:
        before = state.rejected[group.rows]
        after = before.copy()
        for number in sorted(set(before.tolist())):
            rejected = changed(state.rejections[number], {group.category})
            after[before == number] = state.number_of(rejected)
        parts.append(after)
    return np.stack([action.rows, np.concatenate(parts)])


def _move(state: State, action: Action) -> Change:
    records: dict[int, Record | None] = {}
    if action.kind == "create":
        records[action.category] = _new(state, action.category, action.name)
    else:
        state.existing(action.category)
    # Moving an image to a category cancels an earlier rejection from that category.
    rejected = _rejected(state, action, frozenset.difference)
    rejected = rejected[:, state.is_rejected(action.rows, action.category)]
    values = _decided(state, action, MOVED)
    values[0] = action.category
    return Change(rows=action.rows, values=values, records=records, rejected=rejected)


def _rename(state: State, action: Action) -> Change:
    old = state.existing(action.category)
    if old.name == action.name:
        raise UsageError(f"{action.name}: the category already has this name")
    return Change(records={action.category: replace(old, name=action.name, is_named=True)})


def _merge(state: State, action: Action) -> Change:
    if not action.categories or action.category in action.categories:
        raise UsageError("merge: expected categories other than the target")
    into = state.existing(action.category)
    others = {category: state.existing(category) for category in action.categories}
    records: dict[int, Record | None] = {
        category: replace(old, merged_into=action.category) for category, old in others.items()
    }
    is_novel = into.is_novel and all(old.is_novel for old in others.values())
    notes = dict.fromkeys(record.note for record in (into, *others.values()))
    note = " ".join(filter(None, notes))
    records[action.category] = replace(into, is_novel=is_novel, note=note)
    rows = np.flatnonzero(np.isin(state.category, [*others]))
    values = state.images[:, rows]
    values[0] = action.category
    return Change(rows=rows, values=values, records=records)


def _split(state: State, action: Action) -> Change:
    source = state.existing(action.category)
    records: dict[int, Record | None] = {}
    for part in action.groups:
        _check_inside(state, action, replace(part, category=action.category))
        is_named = not is_numbered_part(part.name, source.name)
        records[part.category] = _new(state, part.category, part.name, is_named=is_named)
    values = state.images[:, action.rows]
    values[0] = np.repeat(
        [part.category for part in action.groups], [len(part.rows) for part in action.groups]
    )
    return Change(rows=action.rows, values=values, records=records)


def _check_inside(state: State, action: Action, group: Group) -> None:
    if (state.category[group.rows] != group.category).any():
        raise UsageError(
            f"{action.kind}: an image is no longer in {state.name(group.category)}; check it and "
            "try again"
        )


def is_numbered_part(name: str, base: str) -> bool:
    """Return whether `name` is a default name for a part of `base`, such as 'novel-001 (2)'."""
    return bool(re.fullmatch(re.escape(base) + r" \(\d+\)", name))


def _mark_distinct(state: State, action: Action) -> Change:
    different = sorted(set(action.categories))
    if len(different) != 2:
        raise UsageError("distinct: expected two categories")
    pair = (different[0], different[1])
    names = " and ".join(state.existing(category).name for category in pair)
    if pair in state.distinct:
        raise UsageError(f"{names}: already marked as different")
    return Change(distinct=frozenset({pair}))


def _note(state: State, action: Action) -> Change:
    rows = action.rows.tolist()
    if (action.category == NO_CATEGORY) != bool(rows):
        raise UsageError("note: expected either images or a category")
    if rows:
        return Change(notes=dict.fromkeys(rows, action.text))
    return Change(
        records={action.category: replace(state.existing(action.category), note=action.text)}
    )


def _batch(state: State, action: Action) -> Change:
    changes = [EFFECTS[each.kind](state, each) for each in action.actions]
    records: dict[int, Record | None] = {}
    for change in changes:
        if not records.keys().isdisjoint(change.records):
            raise UsageError("batch: expected actions on different categories")
        records |= change.records
    if not records:
        raise UsageError("batch: expected at least one action")
    rows = np.concatenate([change.rows for change in changes])
    values = np.concatenate([change.values for change in changes], axis=1)
    return Change(rows=rows, values=values, records=records)


def _new(state: State, category: int, name: str, *, is_named: bool = True) -> Record:
    """Return the record of a new category; a very large id can only come from an edited log."""
    if category in state.records or not 0 <= category <= state.next_id + len(state):
        raise UsageError(f"category {category}: expected an id near {state.next_id}, the next one")
    return Record(name, is_novel=True, is_named=is_named)


def _decided(state: State, action: Action, status: int) -> Ints:
    """Return the values of the images of an action, with the status that it sets."""
    values: Ints = state.images[:, action.rows]
    values[1] = status
    values[2] = action.seq
    return values


def _undo(state: State, action: Action) -> Change:
    of = action.of
    if of in state.undone or state.action(of).of:
        raise UsageError(f"action {of}: already undone, or itself an undo or redo")
    before = state.before[of]
    # A category that the undo removes may contain images that were moved there later.
    removed = [category for category, record in before.records.items() if record is None]
    inside = np.flatnonzero(np.isin(state.category, removed))
    if not np.isin(inside, before.rows).all():
        raise UsageError(f"undo of {state.describe(of)}: a later action depends on it")
    _check_unchanged(state, action, state.after[of])
    return before


def _redo(state: State, action: Action) -> Change:
    undone = state.action(action.of)
    if action.of not in state.undone:
        raise UsageError(f"action {action.of}: not undone, so it cannot be redone")
    _check_unchanged(state, action, state.before[action.of])
    return EFFECTS[undone.kind](state, undone)


def _check_unchanged(state: State, action: Action, change: Change) -> None:
    now = state.current_values(change)
    if (
        not np.array_equal(now.values, change.values)
        or not np.array_equal(now.rejected, change.rejected)
        or (now.records, now.notes) != (change.records, change.notes)
    ):
        raise UsageError(
            f"{action.kind} of {state.describe(action.of)}: a later action depends on it"
        )


EFFECTS: dict[str, Callable[[State, Action], Change]] = {
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
    "batch": _batch,
    "undo": _undo,
    "redo": _redo,
}


def _check_names(state: State, change: Change, same: Callable[[str], str]) -> None:
    before = {number: record.name for number, record in state.categories.items()}
    after = {
        number: record.name
        for number, record in (state.records | change.records).items()
        if record is not None and record.merged_into is None
    }
    given = dict(after.items() - before.items())
    if not given:
        return
    taken = {same(name): name for number, name in after.items() if number not in given}
    for name in given.values():
        if other := taken.get(same(name)):
            raise UsageError(
                f"{name}: another category is called {other}; merge them, or choose another name"
            )
        taken[same(name)] = name


def _check_base(state: State, change: Change, action: Action, base: int) -> None:
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
            or any(change.records.keys() >= {*pair} for pair in state.distinct & later.distinct)
        ):
            raise UsageError(
                f"{action.kind}: {state.describe(seq)} changed this in the meantime; check it and "
                "try again"
            )
