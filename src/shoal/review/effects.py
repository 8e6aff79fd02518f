"""What an action would change, or why it cannot be done. Nothing here changes anything.

An action is refused when it was chosen on a view (`base`, the seq that its author had seen) since
when somebody changed one of its images or categories, and undone only while nothing that counts has
been built on it.
"""

import itertools
import re

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review import actions as act
from shoal.review.actions import NO_CATEGORY, Action
from shoal.review.history import Window
from shoal.review.state import Blocked, Change, Conflict, Images, Record, State

NO_ROWS: Ints = np.zeros(0, np.int64)

DECIDES = {"confirm": act.CONFIRMED, "reject": act.REJECTED, "flag": act.FLAGGED}
"""The status that a decision gives."""


def prepare(state: State, action: Action, base: int | None = None) -> Change:
    """What an action would change as the next one, or an error that says why it cannot be done."""
    if action.kind == "undo":
        change = _undo(state, action.of)
    elif action.kind == "redo":
        change = _redo(state, action.of)
    else:
        change = _effect(state, action, state.seq + 1)
    if change.records:
        _check_names(state, change, action)
    if base is not None:
        _check_base(state, change, action, base)
    return change


def again(
    state: State, kind: str, by: str, window: Window | None = None, base: int | None = None
) -> tuple[int | None, list[int]]:
    """The latest action that a person can undo or redo, and later ones of theirs that cannot be.

    What was in nobody's way at `base` is not skipped: that person wants to undo or redo just this.
    """
    candidates = state.history.undone_by(by, window)
    if kind == "undo":
        candidates = state.history.done_by(by, window)
    skipped: list[int] = []
    for of in candidates:
        error = why_not(state, kind, of)
        if error is None:
            return of, skipped
        if base is not None and error.seq > base:
            raise error
        skipped.append(of)
    return None, skipped


def why_not(state: State, kind: str, of: int) -> Blocked | None:
    """Why an action cannot be undone or redone because of what was done later; None if it can."""
    try:
        prepare(state, Action(kind=kind, of=of))
    except Blocked as error:
        return error
    return None


def _effect(state: State, action: Action, seq: int) -> Change:
    """What an action other than undo and redo would change, as number `seq`."""
    if action.kind in DECIDES:
        return _decide(state, action, seq)
    if action.kind in ("assign", "create"):
        return _move(state, action, seq)
    if action.kind == "merge":
        return _merge(state, action, seq)
    if action.kind == "split":
        return _split(state, action, seq)
    unmoved = state.images.take(NO_ROWS)
    if action.kind == "rename":
        old = state.living(action.category)
        if old.name == action.name:
            raise UsageError(f"{action.name}: is the name already")
        new = Record(action.name, old.is_novel, True, None, seq)
        return Change(rows=NO_ROWS, values=unmoved, records={action.category: new})
    first, *others = sorted(set(action.categories)) or [NO_CATEGORY]  # of distinct
    if len(others) != 1:
        raise UsageError("distinct: expected two categories")
    pair = (first, others[0])
    names = " and ".join(state.living(category).name for category in pair)
    if pair in state.distinct:
        raise UsageError(f"{names}: somebody has said already that they are not the same")
    return Change(rows=NO_ROWS, values=unmoved, distinct={pair: True})


def _decide(state: State, action: Action, seq: int) -> Change:
    """The effect of confirm, reject and flag."""
    rows = _once(action.rows)
    for group in action.groups:
        if group.category != NO_CATEGORY or action.kind != "flag":
            state.living(group.category)
        elsewhere = group.rows[state.images.category[group.rows] != group.category]
        if len(elsewhere):
            path = state.paths[int(elsewhere[0])]
            raise Conflict(f"{path}: is not in {state.name(group.category)} any more; look again")
    status = DECIDES[action.kind]
    if action.kind != "reject":
        category = state.images.category[rows]
        return Change(rows=rows, values=_values(state, rows, seq, category, status))
    rejected = {
        row: state.rejected.get(row, frozenset()) | {group.category}
        for group in action.groups
        for row in group.rows.tolist()
    }
    nowhere = np.full(len(rows), NO_CATEGORY)
    values = _values(state, rows, seq, nowhere, status)
    return Change(rows=rows, values=values, rejected=rejected)


def _move(state: State, action: Action, seq: int) -> Change:
    """The effect of assign and create."""
    records: dict[int, Record | None] = {}
    if action.kind == "create":
        records[action.category] = _new(state, action.category, action.name, seq)
    else:
        state.living(action.category)
    rows = _once(action.rows)
    back = {
        row: state.rejected[row] - {action.category}
        for row in rows.tolist()
        if action.category in state.rejected.get(row, ())
    }
    values = _values(state, rows, seq, np.full(len(rows), action.category), act.MOVED)
    return Change(rows=rows, values=values, records=records, rejected=back)


def _merge(state: State, action: Action, seq: int) -> Change:
    into = state.living(action.category)
    others = {category: state.living(category) for category in action.categories}
    if not others or action.category in others:
        raise UsageError("merge: expected other categories than the one they go into")
    records: dict[int, Record | None] = {
        category: Record(old.name, old.is_novel, old.is_named, action.category, seq)
        for category, old in others.items()
    }
    is_novel = into.is_novel and all(old.is_novel for old in others.values())
    records[action.category] = Record(into.name, is_novel, into.is_named, None, seq)
    rows = np.flatnonzero(np.isin(state.images.category, [*others]))
    values = _values(state, rows, seq, np.full(len(rows), action.category))
    return Change(rows=rows, values=values, records=records)


def _split(state: State, action: Action, seq: int) -> Change:
    source = state.living(action.category)
    if not action.groups:
        raise UsageError(f"split: expected one part or more to leave {source.name}")
    rows = _once(action.rows)
    if (state.images.category[rows] != action.category).any():
        raise Conflict(f"split: an image is not in {source.name} any more; look again")
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
    """Whether a part has the name that it gets when nobody gives it one: 'novel-001 (2)'."""
    return name.startswith(base) and bool(re.fullmatch(r" \(\d+\)", name.removeprefix(base)))


def _new(state: State, category: int, name: str, seq: int, *, is_named: bool = True) -> Record:
    if category in state.records or category < 0:
        raise Conflict(f"category {category}: the id is taken")
    if category > state.next_id + len(state):  # in a log that was not written here
        raise UsageError(f"category {category}: expected an id near {state.next_id}, the next one")
    return Record(name, True, is_named, None, seq)


def _once(rows: Ints) -> Ints:
    if len(np.unique(rows)) < len(rows):
        raise UsageError("images: one is named twice; name each once")
    return rows


def _values(
    state: State, rows: Ints, seq: int, category: Ints, status: int | None = None
) -> Images:
    """New values of images that an action moves and, with a status, decides about."""
    owner = np.full(len(rows), seq)
    kept = state.images.take(rows)
    if status is None:
        return Images(category, kept.status, kept.decided, owner, kept.version)
    return Images(category, np.full(len(rows), status), owner, owner, kept.version)


def _undo(state: State, of: int) -> Change:
    action = state.entry(of).action
    if of in state.history.undone:
        raise UsageError(f"action {of}: is undone already")
    if action.kind in ("undo", "redo"):
        raise UsageError(f"action {of}: undoes another")
    change = state.before(of)
    owners = [state.records[category].owner for category in change.records]
    later = np.append(state.images.owner[change.rows], owners)
    later = later[later != of]
    since = _last_change(state, change, action)
    vanishing = [category for category, record in change.records.items() if record is None]
    if not len(later) and vanishing:
        is_guest = np.isin(state.images.category, vanishing)
        is_guest[change.rows] = False
        later = state.images.owner[is_guest]
        since = int(state.images.version[is_guest].max(initial=0))
    if len(later):
        last = state.in_words(int(later.max()))
        reason = f"undo of {state.in_words(of)}: {last} rests on it; undo that first"
        raise Blocked(reason, since)
    return change


def _redo(state: State, of: int) -> Change:
    action = state.entry(of).action
    if of not in state.history.undone:
        raise UsageError(f"action {of}: is not undone")
    before = state.before(of)
    owners = {c: record.owner for c, record in before.records.items() if record is not None}
    now = {c: state.records[c].owner for c in owners if c in state.records}
    is_same = np.array_equal(state.images.owner[before.rows], before.values.owner)
    last = _last_change(state, before, action)
    if not is_same or owners != now:
        reason = f"redo of {state.in_words(of)}: its images or categories have changed since"
        raise Blocked(reason, last)
    try:
        return _effect(state, action, of)
    except UsageError as error:  # such as a category that has ended
        raise Blocked(f"redo of {state.in_words(of)}: {error}", last) from error


def _check_names(state: State, change: Change, action: Action) -> None:
    """Refuse a change after which two categories have one name."""
    names = {record.name: c for c, record in state.categories.items() if c not in change.records}
    for category, record in change.records.items():
        if record is None or record.merged_into is not None:
            continue
        other = names.setdefault(record.name, category)
        if other == category:
            continue
        reason = f"{record.name}: another category has this name; merge them, or choose another"
        if action.of:
            raise Blocked(reason, state.versions.get(other, 0))
        raise UsageError(reason)


def _check_base(state: State, change: Change, action: Action, base: int) -> None:
    """Refuse what was chosen before somebody else changed it, or on a view that never was."""
    if base > state.seq:
        raise Conflict(
            f"{action.kind}: chosen after action {base}, but the last one is {state.seq}; look "
            "again"
        )
    last = _last_change(state, change, action)
    done = state.entry(action.of).action if action.of else action
    if done.kind == "merge" and action.kind != "undo":
        together = sorted({done.category, *done.categories})
        parted = state.distinct.intersection(itertools.combinations(together, 2))
        last = max([last, *(state.distinct_versions[pair] for pair in parted)])
    if last > base:
        what = state.in_words(last)
        raise Conflict(
            f"{action.kind}: {what} has changed this meanwhile; look at it and try again"
        )


def _last_change(state: State, change: Change, action: Action) -> int:
    """The last action that has changed an image or category that another is about."""
    of_groups = [group.category for group in action.groups]
    touched = {*change.records, *of_groups, action.category, *action.categories}
    versions = [state.versions.get(category, 0) for category in touched]
    return max(int(state.images.version[change.rows].max(initial=0)), *versions)
