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

from shoal.arrays import Bools, Ints
from shoal.errors import DataError, UsageError, count
from shoal.review.actions import (
    UNREADABLE,
    Action,
    Group,
    about_images,
    parse_action,
)
from shoal.review.effects import is_numbered_part, prepare
from shoal.review.review import FILE, Line, Log, write_review
from shoal.review.state import Change, State
from shoal.review.verbs import grouped
from shoal.runs import NO_CATEGORY, Run


def replay_review(
    source: Path, run: Run, *, by: str, ids: Mapping[int, int] | None = None
) -> tuple[list[Action], list[str]]:
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
    actions : list of Action
        The actions of the new log.
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
    return state.actions, problems


def replay_onto(state: State, file: Path, ids: Mapping[int, int] | None = None) -> list[str]:
    """Apply the actions of a log to another state; return what could not be applied."""
    start, *lines = [*Log(file).read_new()] or [{}]
    actions, problems = _actions_in_effect(lines, state)
    try:
        replay = Replay(state, actions, start, ids)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}, line 1: categories: {UNREADABLE}; restore a copy of the file"
        ) from error
    for action in actions:
        problems[action.seq] = [*replay.apply(action), *problems.get(action.seq, [])]
    return [
        f"{lines[seq - 1]['action']} by {lines[seq - 1]['by']} (action {seq}): {'; '.join(reasons)}"
        for seq, reasons in sorted(problems.items())
        if reasons
    ]


def _actions_in_effect(
    lines: Sequence[Line], state: State
) -> tuple[list[Action], dict[int, list[str]]]:
    """Return the actions that are not undone, with the rows of their images in this run, and
    problems by seq."""
    actions: dict[int, Action] = {}
    undone: set[int] = set()
    problems: dict[int, list[str]] = {}
    missing: list[str] = []

    def find_rows(paths: Sequence[str]) -> Ints:
        missing.extend(path for path in paths if path not in state.row_of)
        return state.rows(path for path in paths if path in state.row_of)

    for seq, line in enumerate(lines, start=1):
        missing.clear()
        try:
            action = parse_action(line["action"], line, find_rows)
        except (UsageError, KeyError, TypeError):
            problems[seq] = [UNREADABLE]
            continue
        if action.kind == "undo":
            undone.add(action.of)
        elif action.kind == "redo":
            undone.discard(action.of)
        else:
            actions[seq] = replace(action, seq=seq, by=line["by"], at=line["at"])
            if missing:
                problems[seq] = [f"{count(len(missing), 'image')} not in this run"]
    for seq in undone:
        actions.pop(seq, None)
        problems.pop(seq, None)
    in_effect: list[Action] = []
    for action in actions.values():
        single = action.actions or (action,)
        in_effect += [replace(each, seq=action.seq, by=action.by, at=action.at) for each in single]
    return in_effect, problems


class Replay:
    """Applies the actions of an old log to the state of a run.

    "Old" categories are those in the log; `actions` are those that are not undone, and `start` is
    its first line.
    """

    def __init__(
        self, state: State, actions: Sequence[Action], start: Line, ids: Mapping[int, int] | None
    ) -> None:
        self.state = state
        self.has_ids = ids is not None
        # The id in this run of each old category that has a match
        self.ids = dict(ids or {})
        # The final names of the old categories that people named or created
        self.named: dict[int, str] = {}
        self.merged_into: dict[int, int] = {}
        # By row, the action that last confirmed, moved or rejected the image, and the old category
        # that the image is in at the end
        self.placed: dict[int, tuple[int, int]] = {}
        self.action = Action(kind="start")
        # What could not be applied of `action`
        self.problems: list[str] = []
        for action in actions:
            self._collect(action)
        self._match_categories(start)

    def _collect(self, action: Action) -> None:
        if action.kind in ("rename", "create"):
            self.named[action.category] = action.name
        elif action.kind == "merge":
            self.merged_into |= dict.fromkeys(action.categories, action.category)
        for group in action.groups:
            rows = group.rows.tolist()
            if action.kind == "split":
                self.named[group.category] = group.name
                for row in self.placed.keys() & rows:
                    # a split changes the category, not the decision
                    self.placed[row] = (self.placed[row][0], group.category)
            elif action.kind == "reject":
                self.placed |= dict.fromkeys(rows, (action.seq, NO_CATEGORY))
            elif action.kind in ("confirm", "assign", "create"):
                self.placed |= dict.fromkeys(rows, (action.seq, group.category))

    def _match_categories(self, start: Line) -> None:
        """Match the categories of the old run, listed in the first line of its log."""
        listed = start.get("categories") or []
        exemplars = {int(old["category"]): list(old["exemplars"]) for old in listed}
        found_names = {int(old["category"]): str(old["name"]) for old in listed}
        given_names = {old: self.named[old] for old in found_names if old in self.named}
        # The final name of each old category
        self.names = found_names | self.named
        if self.has_ids:
            return
        known = {c.category: c.category_id for c in self.state.found.values() if not c.is_novel}
        for old, name in (*found_names.items(), *given_names.items()):
            is_free = known.get(name) not in (None, *self.ids.values())
            if old not in self.ids and is_free:
                self.ids[old] = known[name]
        votes = []  # number of exemplars, old category, category of this run
        for old, paths in exemplars.items():
            rows = [self.state.row_of[path] for path in paths if path in self.state.row_of]
            counts = Counter(self.state.category_ids[rows].tolist())
            for number, n_votes in counts.items():
                if number != NO_CATEGORY and 2 * n_votes > len(rows):
                    votes.append((n_votes, old, number))
        for _, old, number in sorted(votes, key=lambda vote: -vote[0]):
            # A category that a person named is not matched with a known one of another name.
            is_renamed = number in known.values() and old in given_names
            if old not in self.ids and number not in self.ids.values() and not is_renamed:
                self.ids[old] = number

    def apply(self, action: Action) -> list[str]:
        """Apply an old action; return what could not be applied."""
        self.action = action
        self.problems = []
        apply = {
            "confirm": self._place,
            "assign": self._place,
            "create": self._place,
            "reject": self._reject,
            "flag": self._flag,
            "refuse": self._refuse,
            "rename": self._rename,
            "merge": self._merge,
            "split": self._split,
            "distinct": self._mark_distinct,
            "note": self._note,
        }[action.kind]
        # What is possible is applied, even if some groups are not.
        steps = [replace(action, groups=(group,)) for group in action.groups] or [action]
        for step in steps:
            try:
                apply(step)
            except UsageError as error:
                self.problems.append(str(error))
        return self.problems

    def _commit(self, action: Action) -> None:
        """Apply an action to the state, with the author and time of the current old one."""
        action = replace(action, seq=self.state.seq + 1, by=self.action.by, at=self.action.at)
        self.state.commit(action, prepare(self.state, action))

    def _commit_group(self, kind: str, category: int, rows: Ints) -> None:
        if len(rows):
            self._commit(about_images(kind, category, rows))

    def _final(self, old: int) -> int:
        """Return the old category that an old one was merged into, or itself if it was not."""
        while old in self.merged_into:
            old = self.merged_into[old]
        return old

    def _match(self, old: int) -> int:
        number = self.ids.get(self._final(old), self.ids.get(old))
        if number is None:
            raise UsageError(
                f"no category of this run matches {self.names.get(old, f'category {old}')}"
            )
        return self.state.current(number)

    def _match_or_create(self, old: int) -> int:
        """Return the category of this run that matches an old one; create it if people named it."""
        final = self._final(old)
        if final not in self.ids and final in self.named and not self.has_ids:
            number = self.state.find(self.names[final])
            if number is None:
                number = self.state.next_id
                self._commit(about_images("create", number, Change().rows, self.names[final]))
            self.ids[final] = number
        return self._match(old)

    def _is_inside(self, rows: Ints, target: int) -> Bools:
        """Return whether each image is in a category of this run; list it as a problem if not."""
        is_inside = self.state.category[rows] == target
        n_outside = int((~is_inside).sum())
        if n_outside and not self.has_ids:
            self.problems.append(
                f"{count(n_outside, 'image')} not in {self.state.name(target)} in this run"
            )
        return is_inside

    def _last_decided(self, action: Action) -> Ints:
        """Return the images about which no later action decides."""
        rows = [row for row in action.rows.tolist() if self.placed[row][0] == self.action.seq]
        return np.array(rows, dtype=np.int64)

    def _flag(self, action: Action) -> None:
        if len(action.rows):
            self._commit(Action(kind="flag", groups=grouped(self.state, action.rows)))

    def _place(self, action: Action) -> None:
        """Confirm or move the images that were not moved or rejected later."""
        if action.kind == "create" and not len(action.rows) and not self.has_ids:
            self._match_or_create(action.category)
        rows = self._last_decided(action)
        olds = np.array([self.placed[row][1] for row in rows.tolist()])
        for old in np.unique(olds).tolist():
            target = self._match_or_create(old)
            placed = rows[olds == old]
            if action.kind == "confirm":
                self._commit_group("assign", target, placed[self.state.category[placed] != target])
                self._commit_group("confirm", target, placed)
            else:
                self._commit_group("assign", target, placed)

    def _reject(self, action: Action) -> None:
        """Reject the images that are in the matching category of this run."""
        target = self._match(action.groups[0].category)
        rows = self._last_decided(action)
        self._commit_group("reject", target, rows[self._is_inside(rows, target)])

    def _refuse(self, action: Action) -> None:
        """Rule out the matching category for images; reject those that this run put in it."""
        target = self._match(action.category)
        is_inside = self.state.category[action.rows] == target
        is_found = np.array([row not in self.placed for row in action.rows.tolist()], dtype=bool)
        self._commit_group("refuse", target, action.rows[~is_inside])
        self._commit_group("reject", target, action.rows[is_inside & is_found])

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
        matched = {self.state.current(self.ids[c]) for c in action.categories if c in self.ids}
        if into not in self.ids and matched:
            self.ids[into] = min(matched)
        if into in self.ids:
            target = self._match(into)
            if others := tuple(sorted(matched - {target})):
                self._commit(Action(kind="merge", categories=others, category=target))

    def _split(self, action: Action) -> None:
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
        if number is not None:
            self.ids[final] = number  # the part exists already
            return
        rows = part.rows[self._is_inside(part.rows, source)]
        # otherwise `_match_or_create` creates the part if one of its images was confirmed or moved
        if len(rows):
            self.ids[final] = self.state.next_id
            group = Group(category=self.state.next_id, rows=rows, name=name)
            self._commit(Action(kind="split", category=source, groups=(group,)))

    def _mark_distinct(self, action: Action) -> None:
        if len({self._final(old) for old in action.categories}) == 2:  # not merged later
            pair = tuple(self._match(old) for old in action.categories)
            self._commit(Action(kind="distinct", categories=pair))
