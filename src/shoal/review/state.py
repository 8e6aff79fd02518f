"""The state of a review: the log replayed over the answer of a run. Nothing here reads or writes a file.

`prepare` checks an action and says what it would change; `commit` makes it so. The same log gives the same state. An
action is refused when it was chosen on a view (`base`, the seq that its author had seen) since when somebody changed
one of its images or categories, and undone only while nothing that counts has been built on it.
"""

import itertools

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review import actions as act
from shoal.review.actions import NO_CATEGORY, Action, Entry
from shoal.review.answer import Answer
from shoal.review.changes import Change, Images, Record, Rejections, Values
from shoal.review.history import History, Window

NO_ROWS: Ints = np.zeros(0, np.int64)
FEW = 1_000
"""Images of an action up to which a look at each is faster than one at all images of the run."""


class Conflict(UsageError):
    """An action that does not fit what somebody else has done meanwhile."""


class Blocked(Conflict):
    """Something that cannot be undone or redone because of what was done later, at `seq` at the latest."""

    def __init__(self, reason: str, seq: int) -> None:
        super().__init__(reason)
        self.seq = seq


class State:
    """Images, categories and history of a review."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.images = Images(answer.category_ids)
        self.records = {c.category_id: Record(c.category, c.is_novel) for c in answer.categories}
        self.versions = dict.fromkeys(self.records, 0)
        """The last action that changed a category at all."""
        self.rejected = Rejections()
        self.distinct: frozenset[tuple[int, int]] = frozenset()
        """Pairs of categories, the lower id first, that people said are not the same."""
        self.distinct_versions: dict[tuple[int, int], int] = {}
        """The last action that changed whether that is said of a pair."""
        self.history = History()
        self._before: dict[int, Change] = {}
        """By action, the values that undoing it puts back."""
        self.next_id = max([NO_CATEGORY, *self.records]) + 1
        """An id that no category ever had."""

    @property
    def entries(self) -> list[Entry]:
        """The entry with seq i is entries[i - 1]."""
        return self.history.entries

    @property
    def seq(self) -> int:
        """The number of the last action; 0 for none."""
        return len(self.entries)

    @property
    def categories(self) -> dict[int, Record]:
        """The categories that have not ended, by id."""
        return {category: record for category, record in self.records.items() if record.merged_into is None}

    def members(self, category: int) -> Ints:
        """The rows of a category, ascending."""
        return np.flatnonzero(self.images.category == category)

    def sizes(self) -> dict[int, int]:
        """How many images each category has, and how many have none."""
        found = np.bincount(self.images.category + 1, minlength=self.next_id + 1)
        return {category: int(found[category + 1]) for category in (NO_CATEGORY, *self.categories)}

    def today(self, category: int) -> int:
        """The category in which one goes on that may have been merged, more than once perhaps."""
        while (into := self.records[category].merged_into) is not None:
            category = into
        return category

    def find(self, name: str) -> int | None:
        """The id of the category with this name."""
        return next((category for category, record in self.categories.items() if record.name == name), None)

    def entry(self, seq: int) -> Entry:
        """The entry with this number."""
        return self.history.entry(seq)

    def prepare(self, action: Action, base: int | None = None) -> Change:
        """What an action would change, or an error that says why it cannot be done; changes nothing."""
        seq = self.seq + 1
        if action.kind == "undo":
            change = self._undo(action.of)
        elif action.kind == "redo":
            change = self._redo(action.of)
        else:
            change = _PREPARE[action.kind](self, action, seq)
        if change.records:
            self._check_names(change, action)
        if base is not None:
            self._check_base(change, action, base)
        return change

    def again(
        self, kind: str, by: str, window: Window | None = None, base: int | None = None
    ) -> tuple[int | None, list[Blocked]]:
        """The latest action that a person can undo or redo, and why later ones of theirs cannot be.

        What was in nobody's way at `base` is not skipped: that person wants to undo or redo just this.
        """
        skipped: list[Blocked] = []
        for of in (self.history.done_by if kind == "undo" else self.history.undone_by)(by, window):
            if of == (self.entries[-1].action.of or self.seq):  # the last thing done: nothing can rest on it
                return of, skipped
            try:
                self.prepare(Action(kind=kind, of=of))
            except Blocked as error:
                if base is not None and error.seq > base:
                    raise
                skipped.append(error)
            else:
                return of, skipped
        return None, skipped

    def commit(self, entry: Entry, change: Change) -> None:
        """Let an entry count, with the change that `prepare` gave."""
        assert entry.seq == self.seq + 1
        before = Change(
            rows=change.rows,
            values=self.images.values(change.rows),
            records={category: self.records.get(category) for category in change.records},
            rejects=change.readmits,
            readmits=change.rejects,
            distinct=change.alike,
            alike=change.distinct,
        )
        if counts := self.history.add(entry):
            self._before[counts] = before
        self._put(change, entry.seq)

    def _put(self, change: Change, seq: int) -> None:
        self.images.put(change.rows, change.values, seq)
        self.rejected.put(change)
        self.distinct = self.distinct - change.alike | change.distinct
        self.distinct_versions |= dict.fromkeys(change.alike | change.distinct, seq)
        for category, record in change.records.items():
            self.versions[category] = seq
            if record is None:
                del self.records[category]
            else:
                self.records[category] = record
                self.next_id = max(self.next_id, category + 1)

    def _counts(self, entry: Entry) -> bool:
        return entry.action.kind not in ("undo", "redo") and entry.seq not in self.history.undone

    # What each kind of action changes.

    def _decide(self, action: Action, seq: int) -> Change:
        """Of confirm, reject and flag."""
        status = {"confirm": act.CONFIRMED, "reject": act.REJECTED, "flag": act.FLAGGED}[action.kind]
        rows = self._once(action.rows)
        for group in action.groups:
            if group.category != NO_CATEGORY or action.kind != "flag":
                self._living(group.category)
            elsewhere = self.images.category[group.rows] != group.category
            if elsewhere.any():
                path = self.answer.paths[int(group.rows[elsewhere][0])]
                raise Conflict(f"{path}: is not in {self._name(group.category)} any more; look again")
        category = self.images.category[rows]
        if action.kind != "reject":
            return Change(rows=rows, values=self._values(rows, seq, category, status))
        values = self._values(rows, seq, np.full(len(rows), NO_CATEGORY), status)
        return Change(rows=rows, values=values, rejects=self.rejected.parted(rows, category)[0])

    def _assign(self, action: Action, seq: int) -> Change:
        self._living(action.category)
        return self._moved(action, seq, {})

    def _create(self, action: Action, seq: int) -> Change:
        record = self._new(action.category, action.name, seq)
        return self._moved(action, seq, {action.category: record})

    def _moved(self, action: Action, seq: int, records: dict[int, Record | None]) -> Change:
        rows = self._once(action.rows)
        values = self._values(rows, seq, np.full(len(rows), action.category), act.MOVED)
        back = self.rejected.parted(rows, action.category)[1]
        return Change(rows=rows, values=values, records=records, readmits=back)

    def _rename(self, action: Action, seq: int) -> Change:
        old = self._living(action.category)
        if old.name == action.name:
            raise UsageError(f"{action.name}: is the name already")
        new = Record(action.name, old.is_novel, True, None, seq)
        return Change(rows=NO_ROWS, values=self.images.values(NO_ROWS), records={action.category: new})

    def _distinct(self, action: Action, seq: int) -> Change:
        pair = tuple(sorted(set(action.categories)))
        if len(pair) != 2:
            raise UsageError("distinct: expected two categories")
        one, other = (self._living(category).name for category in pair)
        if pair in self.distinct:
            raise UsageError(f"{one} and {other}: somebody has said already that they are not the same")
        return Change(rows=NO_ROWS, values=self.images.values(NO_ROWS), distinct=frozenset({pair}))

    def _merge(self, action: Action, seq: int) -> Change:
        into, others = self._living(action.category), dict.fromkeys(action.categories)
        if not others or action.category in others:
            raise UsageError("merge: expected other categories than the one they go into")
        old = {category: self._living(category) for category in others}
        rows = np.flatnonzero(np.isin(self.images.category, [*others]))
        records: dict[int, Record | None] = {
            category: Record(record.name, record.is_novel, record.is_named, action.category, seq)
            for category, record in old.items()
        }
        is_novel = into.is_novel and all(record.is_novel for record in old.values())
        records[action.category] = Record(into.name, is_novel, into.is_named, None, seq)
        return Change(rows=rows, values=self._values(rows, seq, np.full(len(rows), action.category)), records=records)

    def _split(self, action: Action, seq: int) -> Change:
        self._living(action.category)
        rows = self._once(action.rows)
        if not action.groups or (self.images.category[rows] != action.category).any():
            raise Conflict(f"split: an image is not in {self._name(action.category)} any more; look again")
        records: dict[int, Record | None] = {}
        for part in action.groups:
            records[part.category] = self._new(part.category, part.name, seq)
        if len(records) < len(action.groups) or len({part.name for part in action.groups}) < len(action.groups):
            raise UsageError("split: two parts have the same id or name")
        category = np.concatenate([np.full(len(part.rows), part.category) for part in action.groups])
        return Change(rows=rows, values=self._values(rows, seq, category), records=records)

    def _undo(self, of: int) -> Change:
        entry = self.entry(of)
        if not self._counts(entry):
            raise UsageError(
                f"action {of}: is undone already" if of in self.history.undone else f"action {of}: undoes another"
            )
        change = self._before[of]
        owners = np.append(self.images.owner[change.rows], [self.records[c].owner for c in change.records])
        later, since = owners[owners != of], self._last_change(change, entry.action)
        if not len(later) and change.vanishing:
            is_guest = np.isin(self.images.category, change.vanishing)
            is_guest[change.rows] = False
            later, since = self.images.owner[is_guest], int(self.images.version[is_guest].max(initial=0))
        if len(later):
            last = self.in_words(int(later.max()))
            raise Blocked(f"undo of {self.in_words(of)}: {last} rests on it; undo that first", since)
        return change

    def _redo(self, of: int) -> Change:
        entry = self.entry(of)
        if of not in self.history.undone:
            raise UsageError(f"action {of}: is not undone")
        before = self._before[of]
        owners = {c: record.owner for c, record in before.records.items() if record is not None}
        now = {c: self.records[c].owner for c in owners if c in self.records}
        is_same = np.array_equal(self.images.owner[before.rows], before.values.owner) and owners == now
        last = self._last_change(before, entry.action)
        if not is_same:
            raise Blocked(f"redo of {self.in_words(of)}: its images or categories have changed since", last)
        try:
            return _PREPARE[entry.action.kind](self, entry.action, of)
        except UsageError as error:  # such as a category that has ended
            raise Blocked(f"redo of {self.in_words(of)}: {error}", last) from error

    # What they are made of.

    def _living(self, category: int) -> Record:
        record = self.records.get(category)
        if record is None:
            raise Conflict(f"category {category}: there is none")
        if record.merged_into is not None:
            raise Conflict(f"{record.name}: was merged into {self._name(record.merged_into)} (action {record.owner})")
        return record

    def _new(self, category: int, name: str, seq: int) -> Record:
        if category in self.records or category < 0:
            raise Conflict(f"category {category}: the id is taken")
        if category > self.next_id + len(self.answer):  # in a log that was not written here; sizes are counted by id
            raise UsageError(f"category {category}: expected an id near {self.next_id}, the next one")
        return Record(name, True, True, None, seq)

    def _once(self, rows: Ints) -> Ints:
        if len(rows) < FEW:
            n_named = len({*rows.tolist()})
        else:
            is_named = np.zeros(len(self.answer), bool)
            is_named[rows] = True
            n_named = int(np.count_nonzero(is_named))
        if n_named != len(rows):
            raise UsageError("images: one is named twice; name each once")
        return rows

    def _values(self, rows: Ints, seq: int, category: Ints, status: int | None = None) -> Values:
        owner = np.full(len(rows), seq)
        if status is None:
            kept = self.images.values(rows)
            return Values(category=category, status=kept.status, decided=kept.decided, owner=owner)
        return Values(category=category, status=np.full(len(rows), status), decided=owner, owner=owner)

    def _check_names(self, change: Change, action: Action) -> None:
        """Refuse a change after which two categories have one name."""
        names = {record.name: c for c, record in self.categories.items() if c not in change.records}
        there = {c: record for c, record in change.records.items() if record and record.merged_into is None}
        for category, record in there.items():
            if (other := names.setdefault(record.name, category)) != category:
                reason = f"{record.name}: another category has this name; merge them, or choose another"
                raise Blocked(reason, self.versions.get(other, 0)) if action.of else UsageError(reason)

    def _check_base(self, change: Change, action: Action, base: int) -> None:
        """Refuse what was chosen before somebody else changed it, or on a view that this review never had."""
        if base > self.seq:
            raise Conflict(f"{action.kind}: chosen after action {base}, but the last one is {self.seq}; look again")
        done = self.entry(action.of).action if action.of else action
        last = self._last_change(change, action)
        if done.kind == "merge" and action.kind != "undo":
            last = max(last, self._last_parted(done))
        if last > base:
            what = self.in_words(last)
            raise Conflict(f"{action.kind}: {what} has changed this meanwhile; look at it and try again")

    def _last_change(self, change: Change, action: Action) -> int:
        """The last action that has changed one of the images or categories that another is about."""
        touched = {*change.records, *(group.category for group in action.groups), action.category, *action.categories}
        versions = (self.versions[category] for category in touched if category in self.versions)
        return max(int(self.images.version[change.rows].max(initial=0)), *versions, 0)

    def _last_parted(self, merge: Action) -> int:
        """The last action by which two categories of a merge were said not to be the same."""
        pairs = itertools.combinations(sorted({merge.category, *merge.categories}), 2)
        return max((self.distinct_versions[pair] for pair in pairs if pair in self.distinct), default=0)

    def in_words(self, seq: int) -> str:
        """An action and who did it."""
        if seq < 1:
            return "the run"
        entry = self.entry(seq)
        return f"{entry.action.kind} by {entry.by} (action {seq})"

    def _name(self, category: int) -> str:
        record = self.records.get(category)
        return f"category {category}" if record is None else record.name


_PREPARE = {
    **dict.fromkeys(("confirm", "reject", "flag"), State._decide),
    **{"assign": State._assign, "create": State._create, "rename": State._rename},
    **{"merge": State._merge, "split": State._split, "distinct": State._distinct},
}
