"""What each kind of action changes, or why it cannot be done. Nothing here changes anything."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review import actions as act
from shoal.review.actions import NO_CATEGORY, Action
from shoal.review.state_tables import Change, Conflict, Record, Tables, Values

NO_ROWS: Ints = np.zeros(0, np.int64)
FEW = 1_000
"""Images of an action up to which a look at each is faster than one at all images of the run."""


def effect(tables: Tables, action: Action, seq: int) -> Change:
    """What an action other than undo and redo would change, as number `seq`."""
    return _EFFECTS[action.kind](tables, action, seq)


def _decide(tables: Tables, action: Action, seq: int) -> Change:
    """The effect of confirm, reject and flag."""
    status = {"confirm": act.CONFIRMED, "reject": act.REJECTED, "flag": act.FLAGGED}[action.kind]
    rows = _once(tables, action.rows)
    for group in action.groups:
        if group.category != NO_CATEGORY or action.kind != "flag":
            tables.living(group.category)
        elsewhere = tables.images.category[group.rows] != group.category
        if elsewhere.any():
            path = tables.answer.paths[int(group.rows[elsewhere][0])]
            raise Conflict(f"{path}: is not in {tables.name(group.category)} any more; look again")
    category = tables.images.category[rows]
    if action.kind != "reject":
        return Change(rows=rows, values=_values(tables, rows, seq, category, status))
    values = _values(tables, rows, seq, np.full(len(rows), NO_CATEGORY), status)
    return Change(rows=rows, values=values, rejects=tables.rejected.parted(rows, category)[0])


def _assign(tables: Tables, action: Action, seq: int) -> Change:
    tables.living(action.category)
    return _moved(tables, action, seq, {})


def _create(tables: Tables, action: Action, seq: int) -> Change:
    record = _new(tables, action.category, action.name, seq)
    return _moved(tables, action, seq, {action.category: record})


def _moved(tables: Tables, action: Action, seq: int, records: dict[int, Record | None]) -> Change:
    rows = _once(tables, action.rows)
    values = _values(tables, rows, seq, np.full(len(rows), action.category), act.MOVED)
    back = tables.rejected.parted(rows, action.category)[1]
    return Change(rows=rows, values=values, records=records, readmits=back)


def _rename(tables: Tables, action: Action, seq: int) -> Change:
    old = tables.living(action.category)
    if old.name == action.name:
        raise UsageError(f"{action.name}: is the name already")
    new = Record(action.name, old.is_novel, True, None, seq)
    return Change(
        rows=NO_ROWS, values=tables.images.values(NO_ROWS), records={action.category: new}
    )


def _distinct(tables: Tables, action: Action, seq: int) -> Change:
    pair = tuple(sorted(set(action.categories)))
    if len(pair) != 2:
        raise UsageError("distinct: expected two categories")
    one, other = (tables.living(category).name for category in pair)
    if pair in tables.distinct:
        raise UsageError(f"{one} and {other}: somebody has said already that they are not the same")
    return Change(rows=NO_ROWS, values=tables.images.values(NO_ROWS), distinct=frozenset({pair}))


def _merge(tables: Tables, action: Action, seq: int) -> Change:
    into = tables.living(action.category)
    others = dict.fromkeys(action.categories)
    if not others or action.category in others:
        raise UsageError("merge: expected other categories than the one they go into")
    old = {category: tables.living(category) for category in others}
    rows = np.flatnonzero(np.isin(tables.images.category, [*others]))
    records: dict[int, Record | None] = {
        category: Record(record.name, record.is_novel, record.is_named, action.category, seq)
        for category, record in old.items()
    }
    is_novel = into.is_novel and all(record.is_novel for record in old.values())
    records[action.category] = Record(into.name, is_novel, into.is_named, None, seq)
    return Change(
        rows=rows,
        values=_values(tables, rows, seq, np.full(len(rows), action.category)),
        records=records,
    )


def _split(tables: Tables, action: Action, seq: int) -> Change:
    source = tables.living(action.category)
    rows = _once(tables, action.rows)
    if not action.groups:
        raise UsageError(f"split: expected one part or more to leave {source.name}")
    if (tables.images.category[rows] != action.category).any():
        raise Conflict(
            f"split: an image is not in {tables.name(action.category)} any more; look again"
        )
    records: dict[int, Record | None] = {}
    for part in action.groups:
        new = _new(tables, part.category, part.name, seq)
        if is_numbered_part(part.name, source.name):
            new = replace(new, is_named=False)
        records[part.category] = new
    if len(records) < len(action.groups) or len({part.name for part in action.groups}) < len(
        action.groups
    ):
        raise UsageError("split: two parts have the same id or name")
    category = np.concatenate([np.full(len(part.rows), part.category) for part in action.groups])
    return Change(rows=rows, values=_values(tables, rows, seq, category), records=records)


def is_numbered_part(name: str, base: str) -> bool:
    """Whether a part of a category has the name that it gets when nobody gives it one: 'novel-001 (2)'."""
    return name.startswith(base) and bool(re.fullmatch(r" \(\d+\)", name.removeprefix(base)))


def _new(tables: Tables, category: int, name: str, seq: int) -> Record:
    if category in tables.records or category < 0:
        raise Conflict(f"category {category}: the id is taken")
    if category > tables.next_id + len(
        tables.answer
    ):  # in a log that was not written here; sizes are counted by id
        raise UsageError(f"category {category}: expected an id near {tables.next_id}, the next one")
    return Record(name, True, True, None, seq)


def _once(tables: Tables, rows: Ints) -> Ints:
    if len(rows) < FEW:
        n_named = len({*rows.tolist()})
    else:
        is_named = np.zeros(len(tables.answer), bool)
        is_named[rows] = True
        n_named = int(np.count_nonzero(is_named))
    if n_named != len(rows):
        raise UsageError("images: one is named twice; name each once")
    return rows


def _values(
    tables: Tables, rows: Ints, seq: int, category: Ints, status: int | None = None
) -> Values:
    owner = np.full(len(rows), seq)
    if status is None:
        kept = tables.images.values(rows)
        return Values(category=category, status=kept.status, decided=kept.decided, owner=owner)
    return Values(category=category, status=np.full(len(rows), status), decided=owner, owner=owner)


_EFFECTS: dict[str, Callable[[Tables, Action, int], Change]] = {
    **dict.fromkeys(("confirm", "reject", "flag"), _decide),
    **{"assign": _assign, "create": _create, "rename": _rename},
    **{"merge": _merge, "split": _split, "distinct": _distinct},
}
