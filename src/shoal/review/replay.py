"""A review carried over to another answer about the same images, with a list of what no longer
fits.

Actions that count are done again in their order. Whatever a person said about an image holds,
wherever the new answer has put it. Known categories are found by their name, and so is a novel one
by the name that a person gave it, where labels gave the new answer that name. Other novel ones are
found by their exemplars: the category in which most of those are now, unless that is another one's,
or is known by another name than a person gave. One that a person named and that is not found is
made anew with its name for the images that people put or confirmed there.

An answer that was made by a discovery after the review (`shoal.refine`) has kept ids and names: its
categories are found by these, and are not named, made or split again.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shoal.arrays import Ints
from shoal.errors import DataError, UsageError
from shoal.files import atomic_file
from shoal.review.actions import (
    NO_CATEGORY,
    PREDICTED,
    UNREADABLE,
    Action,
    Entry,
    Group,
    action_of,
    assign,
    checked_name,
    create,
)
from shoal.review.effects import DECIDES, is_numbered_part, prepare
from shoal.review.log import FILE, Line, Log
from shoal.review.review import line_of, start_line
from shoal.review.state import State
from shoal.review.verbs import grouped
from shoal.runs import Run
from shoal.text import shown
from shoal.words import count, first_few, plural

NO_ROWS: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Misfit:
    """An action of the old log that could not be done, or not wholly."""

    seq: int
    action: str
    by: str
    reason: str

    def in_words(self) -> str:
        """For a person to read."""
        return f"{self.action} by {self.by} (action {self.seq}): {self.reason}"


def replay_review(
    source: Path, run: Run, *, by: str, ids: Mapping[int, int] | None = None
) -> tuple[list[Entry], list[Misfit]]:
    """Write the log of `source`, a log or a run folder, anew for a run; and what no longer fits.

    The run's own log may be the source: the old one is then kept beside it as review-1.jsonl, -2, …
    `ids` says which category each old one is, of a run that has kept them.
    """
    old = source / FILE if source.is_dir() else source
    if not old.is_file():
        raise UsageError(f"{old}: there is no review to replay")
    log = Log(run.path / FILE)
    with log.held():
        is_own = log.file.is_file() and old.samefile(log.file)
        if log.file.is_file() and not is_own:
            raise UsageError(
                f"{log.file}: the run has a review of its own; move it away to replay another"
            )
        state = State(run)
        misfits = replay_onto(state, old, ids)
        if is_own:  # on the disk before the new log takes its place
            with atomic_file(_free_file(run.path)) as kept:
                kept.write(old.read_bytes())
        log.write_new([start_line(state, by), *(line_of(one, state) for one in state.entries)])
    return state.entries, misfits


def replay_onto(state: State, file: Path, ids: Mapping[int, int] | None = None) -> list[Misfit]:
    """Do the actions of a log on another state; returns those that no longer fit."""
    start, *lines = [*Log(file).read_on()] or [{}]
    entries, reasons = _counting(lines, state)
    replay = Replay(state, ids or {})
    try:
        replay.find_categories(start, [entry.action for entry in entries])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}, line 1: categories: {UNREADABLE}; put back a copy of the file"
        ) from error
    for entry in entries:
        reasons[entry.seq] = [*replay.do(entry), *reasons.get(entry.seq, [])]
    return [
        Misfit(seq, str(lines[seq - 1]["action"]), str(lines[seq - 1]["by"]), "; ".join(told))
        for seq, told in sorted(reasons.items())
        if told
    ]


def _counting(lines: Sequence[Line], state: State) -> tuple[list[Entry], dict[int, list[str]]]:
    """The actions that were not undone, with the rows of their images here and old categories.

    And, by seq, what could not be read or is not here.
    """
    entries: dict[int, Entry] = {}
    undone: set[int] = set()
    reasons: dict[int, list[str]] = {}
    missing: list[object] = []

    def rows_here(paths: Iterable[object]) -> Ints:
        listed = list(paths)
        missing.extend(path for path in listed if path not in state.row_of)
        return state.rows(path for path in listed if path in state.row_of)

    for seq, line in enumerate(lines, start=1):
        missing.clear()
        try:
            action = action_of(str(line["action"]), line, rows_here)
        except UsageError as error:
            reasons[seq] = [str(error)]
            continue
        except (KeyError, TypeError, ValueError):
            reasons[seq] = [UNREADABLE]
            continue
        if action.kind == "undo":
            undone.add(action.of)
        elif action.kind == "redo":
            undone.discard(action.of)
        else:
            entries[seq] = Entry(seq=seq, by=str(line["by"]), at=str(line["at"]), action=action)
            if missing:
                n = len(missing)
                reasons[seq] = [f"{n:,} of its images {plural(n, 'is')} not in this run"]
    for seq in undone:
        entries.pop(seq, None)
        reasons.pop(seq, None)
    return [*entries.values()], reasons


def _free_file(folder: Path) -> Path:
    files = (folder / f"review-{number}.jsonl" for number in itertools.count(1))
    return next(file for file in files if not file.exists())


class Replay:
    """A state as it grows by old actions, and what old categories are in it."""

    def __init__(self, state: State, kept: Mapping[int, int]) -> None:
        self.state = state
        self.kept = frozenset(kept)
        """Old categories that the new answer has with the name they have in the end."""
        self.ids = dict(kept)
        """The category that each old one is here."""
        self.within: dict[int, int] = {}
        """Old ones whose images are in one that is another: there they cannot be told apart."""
        self.names: dict[int, str] = {}
        """What the old ones that the answer has not kept are called."""
        self.to_make: dict[int, str] = {}
        """Lost ones that are made anew when an action is about them, with the name people gave."""
        self.decided: set[int] = set()
        """Old ones to which people gave images that are here."""
        self.notes: list[str] = []
        """What of an action does not fit."""

    def find_categories(self, start: Line, actions: Sequence[Action]) -> None:
        """Say which category of the new answer each of the old one is; `start` lists those."""
        listed = start.get("categories") or []
        assert isinstance(listed, list)
        exemplars: dict[int, list[str]] = {}
        for one in listed:
            number = int(one["category"])
            exemplars[number] = list(one["exemplars"])
            if number not in self.kept:
                self.names[number] = str(one["name"])
        named = {one.category: one.name for one in actions if one.kind == "rename"}
        if not self.kept:
            self._find_by_name(named)
            self._find_by_exemplars(exemplars, named)
        for action in actions:
            if action.kind in ("confirm", "assign"):
                self.decided |= {group.category for group in action.groups if len(group.rows)}
        for number in self.names.keys() & named.keys() & self.decided:
            if number not in self.ids:
                self.to_make[number] = named[number]

    def _find_by_name(self, named: Mapping[int, str]) -> None:
        known = {one.category: one.category_id for one in self.state.found if not one.is_novel}
        self.ids = {number: known[name] for number, name in self.names.items() if name in known}
        for number in self.names:
            there = known.get(named.get(number, ""))
            if number not in self.ids and there not in (None, *self.ids.values()):
                self.ids[number] = known[named[number]]

    def _find_by_exemplars(
        self, exemplars: Mapping[int, Sequence[str]], named: Mapping[int, str]
    ) -> None:
        known = {one.category_id for one in self.state.found if not one.is_novel}
        claims = []  # votes, old category, new one
        for number, paths in exemplars.items():
            rows = [self.state.row_of[path] for path in paths if path in self.state.row_of]
            best, n_votes = _most_common(self.state.category_ids[rows])
            if number not in self.ids and best != NO_CATEGORY and 2 * n_votes > len(rows):
                claims.append((n_votes, number, best))
        for _, number, best in sorted(claims, key=lambda claim: -claim[0]):
            if best in self.ids.values() or (best in known and number in named):
                self.within[number] = best
            else:
                self.ids[number] = best

    def do(self, entry: Entry) -> list[str]:
        """Do an old action here; what of it does not fit, in words."""
        self.notes = []
        parts = [entry.action]
        if entry.action.kind in DECIDES:  # one group may fit where another does not
            parts = [replace(entry.action, groups=(group,)) for group in entry.action.groups]
        for part in parts:
            try:
                for action in itertools.chain(self._made_anew(part), self._here(part)):
                    change = prepare(self.state, action)
                    seq = self.state.seq + 1
                    self.state.commit(replace(entry, seq=seq, action=action), change)
            except UsageError as error:
                self.notes.append(str(error))
        return self.notes

    def category(self, old: int) -> int:
        """The category that an old one is now."""
        if old in self.ids:
            return self.state.today(self.ids[old])
        reason = f"there is no category for {self.names.get(old, f'category {old}')} any more"
        if old in self.within:
            reason += f"; its images are in {self.state.name(self.place(old))} here"
        raise UsageError(reason)

    def place(self, old: int) -> int:
        """The category in which the images of an old one are now."""
        if old in self.within:
            return self.state.today(self.within[old])
        return self.category(old)

    def called(self, name: str) -> int | None:
        """The category of this name, from labels or people; one that the run made up is no
        other."""
        category = self.state.find(name)
        if category is None:
            return None
        record = self.state.records[category]
        return category if record.is_named or not record.is_novel else None

    def free_name(self, name: str) -> str:
        """A name for a new category: the wanted one unless another has it."""
        text = checked_name(name)
        if self.state.find(text) is None:
            return text
        free = self.state.free_name(text)
        self.notes.append(f"called {free} here, where another category has the name {text}")
        return free

    def _made_anew(self, action: Action) -> Iterator[Action]:
        """Make the lost categories that an action gives images or a name."""
        about: list[int] = []
        if action.kind in ("rename", "assign", "merge"):
            about = [*action.categories, action.category]
        elif action.kind == "confirm":
            about = [group.category for group in action.groups]
        for old in about:
            if old in self.to_make:
                name = self.to_make.pop(old)
                if action.kind == "rename":
                    name = action.name
                self.within.pop(old, None)
                self.ids[old] = self.state.next_id
                yield create(self.state.next_id, self.free_name(name), NO_ROWS)

    def _here(self, action: Action) -> Iterator[Action]:
        """What an old action is in the new state."""
        if action.kind == "flag":  # of an image, wherever it is
            if groups := grouped(self.state, action.rows):
                yield Action(kind="flag", groups=groups)
        elif action.kind in ("confirm", "reject"):
            yield from self._decision(action)
        elif action.kind == "assign":
            target = self.category(action.category)
            if len(action.rows):
                yield assign(target, action.rows, action.via)
        elif action.kind == "create":
            yield from self._new(action)
        elif action.kind == "rename":
            yield from self._rename(action)
        elif action.kind == "merge":
            yield from self._merge(action)
        elif action.kind == "distinct":
            pair = tuple(sorted({self.category(old) for old in action.categories}))
            if len(pair) == 1:
                raise UsageError(f"they are one here, {self.state.name(pair[0])}")
            if pair not in self.state.distinct:
                yield Action(kind="distinct", categories=pair)
        elif action.kind == "split":
            for part in action.groups:
                yield from self._part(action.category, part)

    def _decision(self, action: Action) -> Iterator[Action]:
        """Confirm images, put into the category first where need be, or reject those in it.

        A rejection says nothing against another category. After a discovery that has heeded it,
        that is how it should be.
        """
        target = self.category(action.groups[0].category)
        rows = action.rows
        is_elsewhere = self.state.images.category[rows] != target
        elsewhere = rows[is_elsewhere]
        if action.kind == "confirm" and len(elsewhere):
            yield assign(target, elsewhere)
        if action.kind == "reject":
            rows = rows[~is_elsewhere]
            if len(elsewhere) and not self.kept:
                paths = [shown(self.state.paths[row]) for row in elsewhere.tolist()]
                images = f"{count(len(paths), 'image')} ({first_few(paths)})"
                name = self.state.name(target)
                self.notes.append(f"{images} not in {name} here, so not rejected")
        if len(rows):
            yield Action(kind=action.kind, groups=(Group(category=target, rows=rows),))

    def _rename(self, action: Action) -> Iterator[Action]:
        try:
            target = self.category(action.category)
        except UsageError:
            self.names[action.category] = action.name  # from now on told of by this name
            raise
        # Another run may know it by this name.
        if action.category not in self.kept and self.state.name(target) != action.name:
            yield Action(kind="rename", category=target, name=checked_name(action.name))

    def _merge(self, action: Action) -> Iterator[Action]:
        target = self.place(action.category)
        others = {self.category(old) for old in action.categories if self.place(old) != target}
        if others:
            into = self.category(action.category)
            yield Action(kind="merge", categories=tuple(sorted(others)), category=into)
        else:  # they are one here
            self.within.pop(action.category, None)
            self.ids[action.category] = target

    def _new(self, action: Action) -> Iterator[Action]:
        """A new category, or the one that is it by now, or has its name."""
        old = action.category
        is_kept = old in self.kept
        there = self.category(old) if is_kept else self.called(action.name)
        if there is None:
            self.ids[old] = self.state.next_id
            yield create(self.state.next_id, self.free_name(action.name), action.rows)
            return
        self.ids[old] = there
        if len(action.rows):
            yield assign(there, action.rows)
        elif not is_kept:
            raise UsageError(f"a category {action.name} is there already")

    def _part(self, old_source: int, part: Group) -> Iterator[Action]:
        """A part of a split, which decides about no single image.

        What the new answer has put elsewhere stays there. Where the answer has the category
        already, only images that somebody decided on follow the split, as they are. A discovery
        that knew of the part and found no such category has it no more, which it says with what has
        changed.
        """
        state = self.state
        old = part.category
        source = NO_CATEGORY
        if old_source in self.ids or old_source in self.within:
            source = self.place(old_source)
        name = self._name_here(old_source, source, checked_name(part.name))
        self.names[old] = name
        is_gone = old_source in self.kept and old not in self.kept
        there = None
        if old in self.kept:
            there = self.category(old)
        elif not is_gone:
            there = self.called(name)
            if there is None:
                there = self._found_again(part.rows, source)
                if there is not None:
                    yield Action(kind="rename", category=there, name=name)
        leaving = NO_ROWS
        if not is_gone and source not in (NO_CATEGORY, there):
            leaving = part.rows[state.images.category[part.rows] == source]
        if there is not None:
            self.ids[old] = there
            leaving = leaving[state.images.status[leaving] != PREDICTED]
            n_there = int((state.images.category[part.rows] == there).sum())
            self._note_staying(name, len(part.rows), n_there + len(leaving))
            if len(leaving):
                new = Group(category=state.next_id, rows=leaving, name=state.free_name(name))
                yield Action(kind="split", category=source, groups=(new,))
                yield Action(kind="merge", categories=(new.category,), category=there)
            return
        self._note_staying(name, len(part.rows), len(leaving))
        if len(leaving):
            new = Group(category=state.next_id, rows=leaving, name=self.free_name(name))
            self.ids[old] = new.category
            yield Action(kind="split", category=source, groups=(new,))
        elif old in self.decided:
            self.to_make[old] = name

    def _name_here(self, old_source: int, source: int, name: str) -> str:
        """The name of a part; one that only numbers the parts of its category goes by that's
        here."""
        before = self.names.get(old_source, "")
        if source == NO_CATEGORY or not is_numbered_part(name, before):
            return name
        return self.state.name(source) + name.removeprefix(before)

    def _note_staying(self, name: str, n_images: int, n_following: int) -> None:
        """Say how many images do not follow a split, of an answer that has not heeded it."""
        if n_following < n_images and not self.kept:
            n_staying = f"{n_images - n_following:,} of {count(n_images, 'image')}"
            self.notes.append(
                f"{n_staying} of {shown(name)} not split off, because this run has put them "
                "otherwise"
            )

    def _found_again(self, rows: Ints, source: int) -> int | None:
        """The novel category that is no other and has mostly these images: parted by the answer."""
        best, n_votes = _most_common(self.state.images.category[rows])
        if best in (NO_CATEGORY, source, *self.ids.values()):
            return None
        is_mostly = 2 * n_votes > max(len(rows), len(self.state.members(best)))
        return best if is_mostly and self.state.records[best].is_novel else None


def _most_common(categories: Ints) -> tuple[int, int]:
    """The most common category, the first of several, and how often it is there."""
    counts = Counter(categories.tolist()).most_common(1)
    return counts[0] if counts else (NO_CATEGORY, 0)
