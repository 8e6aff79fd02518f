"""The state of a review: the log replayed over the answer of a run. Nothing here reads or writes a file.

`prepare` checks an action and says what it would change; `commit` makes it so. The same log gives the same state. An
action is refused when it was chosen on a view (`base`, the seq that its author had seen) since when somebody changed
one of its images or categories, and undone only while nothing that counts has been built on it.
"""

import itertools

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import NO_CATEGORY, Action, Entry, composed
from shoal.review.effects import effect
from shoal.review.history import History, Window
from shoal.review.run_tables import RunTables
from shoal.review.state_tables import Change, Conflict, Tables


class Blocked(Conflict):
    """Something that cannot be undone or redone because of what was done later, at `seq` at the latest."""

    def __init__(self, reason: str, seq: int) -> None:
        super().__init__(reason)
        self.seq = seq


class State(Tables):
    """Images, categories and history of a review."""

    def __init__(self, answer: RunTables) -> None:
        super().__init__(answer)
        self.versions = dict.fromkeys(self.records, 0)
        """The last action that changed a category at all."""
        self.distinct_versions: dict[tuple[int, int], int] = {}
        """The last action that changed whether that is said of a pair."""
        self.history = History()
        self._before: dict[int, Change] = {}
        """By action, the values that undoing it puts back."""

    @property
    def entries(self) -> list[Entry]:
        """The entry with seq i is entries[i - 1]."""
        return self.history.entries

    @property
    def seq(self) -> int:
        """The number of the last action; 0 for none."""
        return len(self.entries)

    def entry(self, seq: int) -> Entry:
        """The entry with this number."""
        return self.history.entry(seq)

    def before(self, seq: int) -> Change:
        """What an action that neither undoes nor redoes has changed, as it was before."""
        return self._before[seq]

    def prepare(self, action: Action, base: int | None = None) -> Change:
        """What an action would change, or an error that says why it cannot be done; changes nothing."""
        seq = self.seq + 1
        if action.kind == "undo":
            change = self._undo(action.of)
        elif action.kind == "redo":
            change = self._redo(action.of)
        else:
            change = effect(self, action, seq)
        if change.records:
            self._check_names(change, action)
        if base is not None:
            self._check_base(change, action, base)
        return change

    def again(
        self, kind: str, by: str, window: Window | None = None, base: int | None = None
    ) -> tuple[int | None, list[int]]:
        """The latest action that a person can undo or redo, and later ones of theirs that cannot be: see `why_not`.

        What was in nobody's way at `base` is not skipped: that person wants to undo or redo just this.
        """
        skipped: list[int] = []
        # Thousands may be blocked by one merge: counts of what each still owns tell without a look at its images.
        owned = self._owned() if kind == "undo" and base in (None, self.seq) else None
        for of in (self.history.done_by if kind == "undo" else self.history.undone_by)(by, window):
            if of == (
                self.entries[-1].action.of or self.seq
            ):  # the last thing done: nothing can rest on it
                return of, skipped
            if owned is None or owned[of] == len(self._before[of].rows) + len(
                self._before[of].records
            ):
                error = self.why_not(kind, of)
                if error is None:
                    return of, skipped
                if base is not None and error.seq > base:
                    raise error
            skipped.append(of)
        return None, skipped

    def why_not(self, kind: str, of: int) -> Blocked | None:
        """Why an action cannot be undone or redone because of what was done later; None where it can be."""
        try:
            self.prepare(Action(kind=kind, of=of))
        except Blocked as error:
            return error
        return None

    def named_today(self) -> dict[str, int]:
        """The category that each name of the run, and so each given label, stands for today.

        That is the category itself, renamed perhaps, or what it was merged into; but where people have given another
        name to it and the old one to a part of it, that part.
        """
        origin: dict[int, int] = {}  # of each part, the category that was split first
        for entry in self.entries:
            if entry.action.kind == "split":
                source = entry.action.category
                for group in entry.action.groups:
                    origin[group.category] = origin.get(source, source)
        by_name = {composed(record.name): number for number, record in self.categories.items()}
        named = {}
        for category in self.answer.categories:
            number = self.today(category.category_id)
            part = by_name.get(composed(category.category))
            if part is not None and origin.get(part) == category.category_id:
                number = part
            named[category.category] = number
        return named

    def given_labels(self) -> Ints:
        """(N,) the category that the label of each image stands for today; -1 for an image without one."""
        named = self.named_today()
        given = self.answer.columns["label_given"]
        return np.array([named.get(name, NO_CATEGORY) for name in given], dtype=np.int64)

    def _owned(self) -> Ints:
        """(seq + 1,) by action, how many images and categories are as it left them."""
        owners = np.array([record.owner for record in self.records.values()], np.int64)
        images: Ints = np.bincount(self.images.owner, minlength=self.seq + 1)
        return images + np.bincount(owners, minlength=self.seq + 1)

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

    def _undo(self, of: int) -> Change:
        entry = self.entry(of)
        if not self._counts(entry):
            raise UsageError(
                f"action {of}: is undone already"
                if of in self.history.undone
                else f"action {of}: undoes another"
            )
        change = self._before[of]
        owners = np.append(
            self.images.owner[change.rows], [self.records[c].owner for c in change.records]
        )
        later = owners[owners != of]
        since = self._last_change(change, entry.action)
        if not len(later) and change.vanishing:
            is_guest = np.isin(self.images.category, change.vanishing)
            is_guest[change.rows] = False
            later = self.images.owner[is_guest]
            since = int(self.images.version[is_guest].max(initial=0))
        if len(later):
            last = self.in_words(int(later.max()))
            raise Blocked(
                f"undo of {self.in_words(of)}: {last} rests on it; undo that first", since
            )
        return change

    def _redo(self, of: int) -> Change:
        entry = self.entry(of)
        if of not in self.history.undone:
            raise UsageError(f"action {of}: is not undone")
        before = self._before[of]
        owners = {c: record.owner for c, record in before.records.items() if record is not None}
        now = {c: self.records[c].owner for c in owners if c in self.records}
        is_same = (
            np.array_equal(self.images.owner[before.rows], before.values.owner) and owners == now
        )
        last = self._last_change(before, entry.action)
        if not is_same:
            raise Blocked(
                f"redo of {self.in_words(of)}: its images or categories have changed since", last
            )
        try:
            return effect(self, entry.action, of)
        except UsageError as error:  # such as a category that has ended
            raise Blocked(f"redo of {self.in_words(of)}: {error}", last) from error

    def _check_names(self, change: Change, action: Action) -> None:
        """Refuse a change after which two categories have one name."""
        names = {record.name: c for c, record in self.categories.items() if c not in change.records}
        there = {
            c: record
            for c, record in change.records.items()
            if record and record.merged_into is None
        }
        for category, record in there.items():
            if (other := names.setdefault(record.name, category)) != category:
                reason = (
                    f"{record.name}: another category has this name; merge them, or choose another"
                )
                raise (
                    Blocked(reason, self.versions.get(other, 0))
                    if action.of
                    else UsageError(reason)
                )

    def _check_base(self, change: Change, action: Action, base: int) -> None:
        """Refuse what was chosen before somebody else changed it, or on a view that this review never had."""
        if base > self.seq:
            raise Conflict(
                f"{action.kind}: chosen after action {base}, but the last one is {self.seq}; look again"
            )
        done = self.entry(action.of).action if action.of else action
        last = self._last_change(change, action)
        if done.kind == "merge" and action.kind != "undo":
            last = max(last, self._last_parted(done))
        if last > base:
            what = self.in_words(last)
            raise Conflict(
                f"{action.kind}: {what} has changed this meanwhile; look at it and try again"
            )

    def _last_change(self, change: Change, action: Action) -> int:
        """The last action that has changed one of the images or categories that another is about."""
        touched = {
            *change.records,
            *(group.category for group in action.groups),
            action.category,
            *action.categories,
        }
        versions = (self.versions[category] for category in touched if category in self.versions)
        return max(int(self.images.version[change.rows].max(initial=0)), *versions, 0)

    def _last_parted(self, merge: Action) -> int:
        """The last action by which two categories of a merge were said not to be the same."""
        pairs = itertools.combinations(sorted({merge.category, *merge.categories}), 2)
        return max(
            (self.distinct_versions[pair] for pair in pairs if pair in self.distinct), default=0
        )

    def in_words(self, seq: int) -> str:
        """An action and who did it."""
        if seq < 1:
            return "the run"
        entry = self.entry(seq)
        return f"{entry.action.kind} by {entry.by} (action {seq})"
