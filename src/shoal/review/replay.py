"""Apply a review to another result for the same images, and list what could not be applied.

The last decision about an image is applied, whatever category the new result assigns it to; only a
rejection needs the image to be in the matching category. Old categories are matched with those of
the new result as follows:

- known categories by name, and novel ones if a person gave them the name of a known category;
- other novel categories by their exemplars, with the category that contains most of them, unless
  that one is already matched;
- a category that a person named and that has no match is created, for the images that people moved
  to it or confirmed in it.

A merge or split is not a decision about its images: those that the new result assigns to another
category stay there.

A run made by `shoal.refine` has the ids and names of the old run. Its categories are matched by id,
and are not renamed, created or split.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shoal.arrays import Ints
from shoal.errors import DataError, UsageError
from shoal.review.actions import (
    UNREADABLE,
    Action,
    Entry,
    Group,
    assign,
    create,
    parse_action,
)
from shoal.review.effects import is_numbered_part, prepare
from shoal.review.log import FILE, Line, Log
from shoal.review.review import write_review
from shoal.review.state import Change, State
from shoal.review.verbs import grouped
from shoal.runs import NO_CATEGORY, Run
from shoal.words import count, plural


def replay_review(
    source: Path, run: Run, *, by: str, ids: Mapping[int, int] | None = None
) -> tuple[list[Entry], list[str]]:
    """Replay a review on a run, and write it as the review of that run.

    If `source` is the log of the run itself, it is first saved as review-1.jsonl, review-2.jsonl
    and so on.

    Parameters
    ----------
    source : Path
        The log, or the run folder that holds it.
    run : Run
        The run with the new result.
    by : str
        The person who starts the new log.
    ids : mapping, optional
        The id in the run of each old category, for a run made by `shoal.refine`.

    Returns
    -------
    entries : list of Entry
        The entries of the new log.
    problems : list of str
        What could not be applied.
    """
    old = source / FILE if source.is_dir() else source
    if not old.is_file():
        raise UsageError(f"{old}: found no review to replay")
    log = Log(run.path / FILE)
    with log.locked():
        is_same_file = log.file.is_file() and old.samefile(log.file)
        if log.file.is_file() and not is_same_file:
            raise UsageError(
                f"{log.file}: the run already has a review; move it away to replay another"
            )
        state = State(run)
        problems = replay_onto(state, old, ids)
        if is_same_file:
            log.backup("review")  # before the log is replaced
        write_review(log, state, by)
    return state.entries, problems


def replay_onto(state: State, file: Path, ids: Mapping[int, int] | None = None) -> list[str]:
    """Apply the actions of a log to another state; return what could not be applied."""
    start, *lines = [*Log(file).read_new()] or [{}]
    entries, problems = _actions_in_effect(lines, state)
    replay = Replay(state, entries, ids)
    try:
        replay.match_categories(start)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}, line 1: categories: {UNREADABLE}; restore a copy of the file"
        ) from error
    for entry in entries:
        problems[entry.seq] = [*replay.apply(entry), *problems.get(entry.seq, [])]
    return [
        f"{lines[seq - 1]['action']} by {lines[seq - 1]['by']} (action {seq}): {'; '.join(reasons)}"
        for seq, reasons in sorted(problems.items())
        if reasons
    ]


def _actions_in_effect(
    lines: Sequence[Line], state: State
) -> tuple[list[Entry], dict[int, list[str]]]:
    """Return the actions that are not undone, with the rows of their images in this run, and
    problems by seq."""
    entries: dict[int, Entry] = {}
    undone: set[int] = set()
    problems: dict[int, list[str]] = {}
    n_missing = 0

    def find_rows(paths: Sequence[str]) -> Ints:
        nonlocal n_missing
        present = [path for path in paths if path in state.row_of]
        n_missing += len(paths) - len(present)
        return state.rows(present)

    for seq, line in enumerate(lines, start=1):
        n_missing = 0
        try:
            action = parse_action(str(line["action"]), line, find_rows)
        except UsageError as error:
            problems[seq] = [str(error)]
            continue
        except (KeyError, TypeError):
            problems[seq] = [UNREADABLE]
            continue
        if action.kind == "undo":
            undone.add(action.of)
        elif action.kind == "redo":
            undone.discard(action.of)
        else:
            entries[seq] = Entry(seq=seq, by=str(line["by"]), at=str(line["at"]), action=action)
            if n_missing:
                problems[seq] = [
                    f"{n_missing:,} of its images {plural(n_missing, 'is')} not in this run"
                ]
    for seq in undone:
        entries.pop(seq, None)
        problems.pop(seq, None)
    return [*entries.values()], problems


class Replay:
    """Applies the actions of an old log to the state of a run.

    "Old" categories are those in the log; `entries` are its actions that are not undone.
    """

    def __init__(
        self, state: State, entries: Sequence[Entry], ids: Mapping[int, int] | None
    ) -> None:
        self.state = state
        self.has_ids = ids is not None
        self.ids = dict(ids or {})
        """The id in this run of each old category that has a match."""
        self.names: dict[int, str] = {}
        """The final name of each old category."""
        self.named: set[int] = set()
        """Old categories that people named or created."""
        self.merged_into: dict[int, int] = {}
        self.placed: dict[int, tuple[int, int]] = {}
        """By row, the action that last confirmed, moved or rejected the image, and the old category
        that the image is in at the end."""
        self.decided: dict[int, int] = {}
        """By row, the last action that set the status of the image."""
        self.entry = Entry(seq=0, by="", at="", action=Action(kind="start"))
        """The entry being applied."""
        for entry in entries:
            self._collect(entry)

    def _collect(self, entry: Entry) -> None:
        """Record the final names, merges and decisions."""
        action = entry.action
        if action.kind in ("rename", "create"):
            self.names[action.category] = action.name
            self.named.add(action.category)
        elif action.kind == "merge":
            self.merged_into |= dict.fromkeys(action.categories, action.category)
        for group in action.groups:
            if action.kind in ("refuse", "note"):
                continue
            if action.kind == "split":
                self.names[group.category] = group.name
                self.named.add(group.category)
            for row in group.rows.tolist():
                if action.kind == "split":
                    if row in self.placed:  # a split changes the category, not the decision
                        self.placed[row] = (self.placed[row][0], group.category)
                    continue
                self.decided[row] = entry.seq
                if action.kind == "reject":
                    self.placed[row] = (entry.seq, NO_CATEGORY)
                elif action.kind != "flag":
                    self.placed[row] = (entry.seq, group.category)

    def match_categories(self, start: Line) -> None:
        """Match the categories of the old run, listed in the first line of its log."""
        listed = start.get("categories") or []
        assert isinstance(listed, list)
        exemplars = {int(old["category"]): list(old["exemplars"]) for old in listed}
        found_names = {int(old["category"]): str(old["name"]) for old in listed}
        given_names = {old: self.names[old] for old in found_names if old in self.names}
        self.names = found_names | self.names
        if self.has_ids:
            return
        known = {c.category: c.category_id for c in self.state.found if not c.is_novel}
        for names in (found_names, given_names):
            for old, name in names.items():
                is_free = known.get(name) not in (None, *self.ids.values())
                if old not in self.ids and is_free:
                    self.ids[old] = known[name]
        votes = []  # number of exemplars, old category, category of this run
        for old, paths in exemplars.items():
            rows = [self.state.row_of[path] for path in paths if path in self.state.row_of]
            counts = Counter(self.state.category_ids[rows].tolist()).most_common(1)
            for number, n_votes in counts:
                if number != NO_CATEGORY and 2 * n_votes > len(rows):
                    votes.append((n_votes, old, number))
        for _, old, number in sorted(votes, key=lambda vote: -vote[0]):
            # A category that a person named is not matched with a known one of another name.
            is_renamed = number in known.values() and old in given_names
            if old not in self.ids and number not in self.ids.values() and not is_renamed:
                self.ids[old] = number

    def apply(self, entry: Entry) -> list[str]:
        """Apply an old action; return what could not be applied."""
        self.entry = entry
        action = entry.action
        problems: list[str] = []
        steps = [action]
        if len(action.groups) > 1:  # apply what is possible, even if some groups are not
            steps = [replace(action, groups=(group,)) for group in action.groups]
        for step in steps:
            try:
                self._apply(step, problems)
            except UsageError as error:
                problems.append(str(error))
        return problems

    def _apply(self, action: Action, problems: list[str]) -> None:
        if action.kind == "flag":
            self._commit_flag(action)
        elif action.kind == "reject":
            self._reject(action, problems)
        elif action.kind in ("confirm", "assign", "create"):
            self._place(action)
        elif action.kind == "refuse":
            self._refuse(action)
        elif action.kind == "rename":
            self._rename(action)
        elif action.kind == "note":
            self._note(action)
        elif action.kind == "merge":
            self._merge(action)
        elif action.kind == "split":
            self._split(action, problems)
        elif len({self._final(old) for old in action.categories}) == 2:
            # The action is "distinct", and the two categories were not merged later.
            pair = tuple(sorted({self._match(old) for old in action.categories}))
            if len(pair) == 1:
                raise UsageError(f"both are {self.state.name(pair[0])} in this run")
            if pair not in self.state.distinct:
                self._commit(Action(kind="distinct", categories=pair))

    def _commit(self, action: Action) -> None:
        """Apply an action to the state, with the author and time of the current entry."""
        change = prepare(self.state, action)
        self.state.commit(replace(self.entry, seq=self.state.seq + 1, action=action), change)

    def _final(self, old: int) -> int:
        """Return the old category that an old one was merged into, or itself if it was not."""
        while old in self.merged_into:
            old = self.merged_into[old]
        return old

    def _match(self, old: int) -> int:
        """Return the category of this run that matches an old one."""
        number = self.ids.get(self._final(old), self.ids.get(old))
        if number is None:
            raise UsageError(
                f"no category of this run matches {self.names.get(old, f'category {old}')}"
            )
        return self.state.today(number)

    def _match_or_create(self, old: int) -> int:
        """Return the category of this run that matches an old one; create it if people named it."""
        final = self._final(old)
        if final not in self.ids and final in self.named and not self.has_ids:
            name = self.names[final]
            number = self.state.find(name)
            # A default name such as novel-003 means different categories in different runs.
            if number is not None and self._has_default_name(number):
                number = None
                name = self.state.free_name(name)
            if number is None:
                number = self.state.next_id
                self._commit(create(number, name, Change().rows))
            self.ids[final] = number
        return self._match(old)

    def _has_default_name(self, number: int) -> bool:
        record = self.state.records[number]
        return record.is_novel and not record.is_named

    def _commit_flag(self, action: Action) -> None:
        rows = [row for row in action.rows.tolist() if self.decided[row] == self.entry.seq]
        if rows:
            self._commit(Action(kind="flag", groups=grouped(self.state, np.array(rows))))

    def _place(self, action: Action) -> None:
        """Confirm or move the images that were not moved or rejected later."""
        if action.kind == "create" and not len(action.rows) and not self.has_ids:
            self._match_or_create(action.category)
        by_category: dict[int, list[int]] = {}
        for row in action.rows.tolist():
            seq, old = self.placed[row]
            if seq == self.entry.seq:
                by_category.setdefault(old, []).append(row)
        for old, listed in by_category.items():
            target = self._match_or_create(old)
            rows = np.array(listed)
            if action.kind != "confirm":
                self._commit(assign(target, rows, action.via))
                continue
            elsewhere = rows[self.state.category[rows] != target]
            if len(elsewhere):
                self._commit(assign(target, elsewhere))
            self._commit(Action(kind="confirm", groups=(Group(category=target, rows=rows),)))

    def _reject(self, action: Action, problems: list[str]) -> None:
        """Reject the images that are in the matching category of this run."""
        target = self._match(action.groups[0].category)
        last = [row for row in action.rows.tolist() if self.placed[row][0] == self.entry.seq]
        rows = np.array(last, dtype=np.int64)
        is_inside = self.state.category[rows] == target
        n_outside = int((~is_inside).sum())
        if n_outside and not self.has_ids:
            images = f"{count(n_outside, 'image')} {plural(n_outside, 'is')}"
            problems.append(f"{images} not in {self.state.name(target)} in this run")
        if is_inside.any():
            group = Group(category=target, rows=rows[is_inside])
            self._commit(Action(kind="reject", groups=(group,)))

    def _refuse(self, action: Action) -> None:
        """Refuse images for the matching category; reject them if this run put them there."""
        target = self._match(action.category)
        is_inside = self.state.category[action.rows] == target
        if not is_inside.all():
            group = Group(category=target, rows=action.rows[~is_inside])
            self._commit(Action(kind="refuse", category=target, groups=(group,)))
        found = [row for row in action.rows[is_inside].tolist() if row not in self.placed]
        if found:
            group = Group(category=target, rows=np.array(found))
            self._commit(Action(kind="reject", groups=(group,)))

    def _rename(self, action: Action) -> None:
        old = action.category
        is_final = self.names[old] == action.name and old not in self.merged_into
        if self.has_ids or not is_final:
            return
        if old not in self.ids and any(self._final(c) == old for _, c in self.placed.values()):
            return  # `_match_or_create` creates it with this name, for the images placed in it
        target = self._match(old)
        if self.state.name(target) != action.name:
            self._commit(Action(kind="rename", category=target, name=action.name))

    def _note(self, action: Action) -> None:
        if action.category != NO_CATEGORY:
            self._commit(replace(action, category=self._match(action.category), groups=()))
        elif len(action.rows):
            self._commit(action)

    def _merge(self, action: Action) -> None:
        into = self._final(action.category)
        matched = {self.state.today(self.ids[c]) for c in action.categories if c in self.ids}
        if into not in self.ids and matched:
            self.ids[into] = min(matched)
        if into in self.ids:
            target = self._match(into)
            if others := tuple(sorted(matched - {target})):
                self._commit(Action(kind="merge", categories=others, category=target))

    def _split(self, action: Action, problems: list[str]) -> None:
        """Split off the images of a part that are in the matching category of this run."""
        (part,) = action.groups
        final = self._final(part.category)
        if self.has_ids or final in self.ids:
            return
        source = self._match(action.category)
        name = part.name
        old_name = self.names.get(action.category, "")
        if is_numbered_part(name, old_name):
            name = self.state.name(source) + name.removeprefix(old_name)
            self.names[part.category] = name
        number = self.state.find(name)
        if number is not None and not self._has_default_name(number):
            self.ids[final] = number  # the part exists already
            return
        rows = part.rows[self.state.category[part.rows] == source]
        if len(rows) < len(part.rows):
            n = len(part.rows) - len(rows)
            images = f"{n:,} of {count(len(part.rows), 'image')} {plural(n, 'is')}"
            problems.append(f"{images} not in {self.state.name(source)} in this run")
        if not len(rows):
            return  # created later if people decided about one of its images
        if number is not None:
            name = self.state.free_name(name)
        self.ids[final] = self.state.next_id
        group = Group(category=self.state.next_id, rows=rows, name=name)
        self._commit(Action(kind="split", category=source, groups=(group,)))
