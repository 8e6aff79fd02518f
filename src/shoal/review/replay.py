"""A review carried over to another answer about the same images, with a list of what no longer fits.

Actions that count are done again in their order. Whatever a person said about an image holds, wherever the new answer
has put it. Known categories are found by their name, and so is a novel one by the name that a person gave it, where
labels gave the new answer that name. Other novel ones are found by their exemplars: the category in which most of those
are now, unless that is another one's, or is known by another name than a person gave. One that a person named and that
is not found is made anew with its name for the images that people put or confirmed there.

An answer that was made by a discovery after the review
(`shoal.refine`) has kept ids and names: its categories are found by these, and are not named, made or split again.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    checked_name,
    checked_via,
)
from shoal.review.effects import is_numbered_part
from shoal.review.log import FILE, Log
from shoal.review.review import line_of, now, start_line
from shoal.review.run_tables import RunTables
from shoal.review.state import State
from shoal.review.verbs import grouped
from shoal.runs import RunView
from shoal.text import shown
from shoal.words import count, first_few, plural


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


@dataclass
class Replay:
    """The new state as it grows, and how old categories are called in it."""

    state: State
    ids: dict[int, int] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    within: dict[int, int] = field(default_factory=dict)
    """Lost categories whose images are in one that is another old one: there they cannot be told apart."""
    to_make: dict[int, str] = field(default_factory=dict)
    """Lost categories that are made anew when an action is about them, with the name that people gave them."""
    n_missing: int = 0
    """Images of an action that are not here."""
    elsewhere: list[str] = field(default_factory=list)
    """Images of a rejection that are not in its category here."""
    notes: list[str] = field(default_factory=list)
    """What else is not as it was: a name that the run has made up for another category; images of a split that stay."""
    decided: set[int] = field(default_factory=set)
    """Old categories to which people gave images that are here."""
    kept: frozenset[int] = frozenset()
    """Old categories that the new answer has with the name they have in the end."""

    def rows(self, paths: list[str]) -> Ints:
        """The rows of the images that are here; counts the others."""
        rows = [row for path in paths if (row := self.state.answer.row_of.get(path)) is not None]
        self.n_missing += len(paths) - len(rows)
        return np.array(rows, dtype=np.int64)

    def category(self, old: int) -> int:
        """The category that an old one is now."""
        if old in self.ids:
            return self.state.today(self.ids[old])
        where = ""
        if old in self.within:
            name = self.state.records[self.current_category(old)].name
            where = f"; its images are in {name} here"
        raise UsageError(
            f"there is no category for {self.lost.get(old, f'category {old}')} any more{where}"
        )

    def renamed(self, old: int, name: str) -> int:
        """The category that an old one is now, of a rename; one that is lost is told of by its new name later on."""
        try:
            return self.category(old)
        except UsageError:
            self.lost[old] = str(name)
            raise

    def current_category(self, old: int) -> int:
        """The category in which the images of an old one are now."""
        return self.state.today(self.within[old]) if old in self.within else self.category(old)

    def called(self, name: str) -> int | None:
        """The category of this name, from labels or people; that the run has made up the same name means nothing."""
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

    def make(self, line: Mapping[str, Any]) -> Iterator[Action]:
        """Make the categories anew that an action is about."""
        for old in _mentioned(line):
            if old in self.to_make:
                name = self.to_make.pop(old)
                name = line["name"] if line["action"] == "rename" else name
                new = self.ids[old] = self.state.next_id
                self.within.pop(old, None)
                none = np.zeros(0, np.int64)
                group = Group(category=new, rows=none)
                yield Action(
                    kind="create", category=new, name=self.free_name(name), groups=(group,)
                )


def replay_review(
    source: Path, run: RunView, *, by: str, ids: Mapping[int, int] | None = None
) -> tuple[list[Entry], list[Misfit]]:
    """Write the log of `source`, a log or a run folder, anew for a run, and say what no longer fits.

    The run's own log may be the source: the old one is then kept beside it as review-1.jsonl, -2, … `ids` says which
    category each old one is, of a run that has kept them.
    """
    old = source / FILE if source.is_dir() else source
    if not old.is_file():
        raise UsageError(f"{old}: there is no review to replay")
    log = Log(run.path)
    is_own = log and old.samefile(log.file)
    with log.held():
        if log and not is_own:
            raise UsageError(
                f"{log.file}: the run has a review of its own; move it away to replay another"
            )
        answer = RunTables.read(run)
        entries, misfits = replayed(old, answer, ids)
        if is_own:
            with atomic_file(
                _free_name(run.path)
            ) as kept:  # on the disk before the new log takes its place
                kept.write(old.read_bytes())
        start = start_line(answer, by, now())
        log.write_new([start, *(line_of(entry, answer) for entry in entries)])
    return entries, misfits


def replayed(
    file: Path, answer: RunTables, ids: Mapping[int, int] | None = None
) -> tuple[list[Entry], list[Misfit]]:
    """The actions of a log as they are on another answer, and those that no longer fit; writes nothing."""
    lines = list(_lines(file))
    replay = Replay(State(answer))
    if ids is not None:
        replay.ids = dict(ids)
        replay.kept = frozenset(ids)
    counting, misfits = _counting(lines[1:])
    try:
        find_categories(replay, lines[0].get("categories") or [] if lines else [], counting)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}, line 1: categories: {UNREADABLE}; put back a copy of the file"
        ) from error
    for line in counting:
        if reasons := [
            reason for part in _independent(line) for reason in _done_again(replay, part)
        ]:
            misfits.append(Misfit(line["seq"], line["action"], line["by"], "; ".join(reasons)))
    return replay.state.entries, sorted(misfits, key=lambda misfit: misfit.seq)


def _independent(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """An action in parts, each of which may fit where another does not: a decision about several categories."""
    groups = line.get("groups")
    if line["action"] not in ("confirm", "reject", "flag") or not isinstance(groups, list):
        return [line]
    return [{**line, "groups": [group]} for group in groups]


def _done_again(replay: Replay, line: Mapping[str, Any]) -> list[str]:
    """Do an old action in the new state; what of it does not fit, in words."""
    replay.n_missing = 0
    replay.elsewhere = []
    replay.notes = []
    reasons = []
    try:
        for action in itertools.chain(replay.make(line), actions_here(replay, line)):
            change = replay.state.prepare(action)
            entry = Entry(seq=replay.state.seq + 1, by=line["by"], at=line["at"], action=action)
            replay.state.commit(entry, change)
    except UsageError as error:
        reasons.append(str(error))
    except (AttributeError, LookupError, TypeError):
        return [UNREADABLE]
    reasons += replay.notes
    if replay.n_missing:
        reasons.append(
            f"{replay.n_missing:,} of its images {plural(replay.n_missing, 'is')} not in this run"
        )
    if replay.elsewhere:
        where = replay.state.records[replay.category(line["groups"][0]["category"])].name
        what = f"{count(len(replay.elsewhere), 'image')} ({first_few(replay.elsewhere)})"
        reasons.append(f"{what} not in {where} here, so not rejected")
    return reasons


def _counting(lines: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Misfit]]:
    """The lines that were not undone, and those that undo or redo nothing."""
    undone: set[int] = set()
    counting = []
    misfits = []
    for line in lines:
        if line["action"] not in ("undo", "redo"):
            counting.append(line)
        elif not isinstance(line.get("of"), int):
            misfits.append(Misfit(line["seq"], line["action"], line["by"], UNREADABLE))
        elif line["action"] == "undo":
            undone.add(line["of"])
        else:
            undone.discard(line["of"])
    return [line for line in counting if line["seq"] not in undone], misfits


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    log = Log(file.parent)
    log.file = file
    yield from log.read_on()


def _free_name(folder: Path) -> Path:
    number = 1
    while (folder / f"review-{number}.jsonl").exists():
        number += 1
    return folder / f"review-{number}.jsonl"


def find_categories(
    replay: Replay, categories: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]
) -> None:
    """Say which category of the new answer each of the old answer is; `lines` are the actions that count."""
    renames = [
        line
        for line in lines
        if line["action"] == "rename" and isinstance(line.get("category"), int)
    ]
    names = {line["category"]: str(line.get("name")) for line in renames}
    old = {int(category.get("category", NO_CATEGORY)): category for category in categories}
    replay.lost |= {
        number: str(category.get("name"))
        for number, category in old.items()
        if number not in replay.kept
    }
    if not replay.kept:
        _find_by_name(replay, old, names)
        _find_by_exemplars(replay, old, names)
    replay.decided = _decided(replay, lines)
    lost = [number for number in replay.lost if number not in replay.ids]
    replay.to_make = {
        number: names[number] for number in lost if number in names and number in replay.decided
    }


def _find_by_name(
    replay: Replay, old: Mapping[int, Mapping[str, Any]], names: Mapping[int, str]
) -> None:
    known = {c.category: c.category_id for c in replay.state.answer.categories if not c.is_novel}
    replay.ids |= {
        number: known[name] for number in old if (name := str(old[number].get("name"))) in known
    }
    for number in old:
        there = known.get(names.get(number, ""))
        if number not in replay.ids and there is not None and there not in replay.ids.values():
            replay.ids[number] = there


def _find_by_exemplars(
    replay: Replay, old: Mapping[int, Mapping[str, Any]], names: Mapping[int, str]
) -> None:
    # (votes, old category, new one)
    answer = replay.state.answer
    claims = []
    known = {c.category_id for c in answer.categories if not c.is_novel}
    for number, category in old.items():
        rows = [
            answer.row_of[path] for path in category.get("exemplars") or () if path in answer.row_of
        ]
        votes = Counter(int(answer.category_ids[row]) for row in rows)
        best, n_votes = votes.most_common(1)[0] if votes else (NO_CATEGORY, 0)
        if number not in replay.ids and best != NO_CATEGORY and 2 * n_votes > len(rows):
            claims.append((n_votes, number, best))
    for _, number, best in sorted(claims, key=lambda claim: -claim[0]):
        is_another = best in replay.ids.values() or (best in known and number in names)
        (replay.within if is_another else replay.ids)[number] = best


def _decided(replay: Replay, lines: Sequence[Mapping[str, Any]]) -> set[int]:
    """The old categories to which people gave images that are here."""
    return {category for line in lines for category in _given_images(replay, line)}


def _given_images(replay: Replay, line: Mapping[str, Any]) -> list[int]:
    here = replay.state.answer.row_of
    try:
        groups = []
        if line["action"] == "confirm":
            groups = line["groups"]
        elif line["action"] == "assign":
            groups = [line]
        return [
            int(group["category"])
            for group in groups
            if any(path in here for path in group["images"])
        ]
    except (KeyError, TypeError, ValueError):  # told of when it is its turn
        return []


def _mentioned(line: Mapping[str, Any]) -> list[int]:
    """The categories that an action gives images or a name."""
    kind = line["action"]
    if kind in ("rename", "assign"):
        return [line["category"]]
    if kind == "merge":
        return [*line["categories"], line["into"]]
    if kind == "confirm":
        return [group["category"] for group in line["groups"]]
    return []


def actions_here(replay: Replay, line: Mapping[str, Any]) -> Iterator[Action]:
    """What an old action is in the new state."""
    kind = line["action"]
    state = replay.state
    if kind == "flag":  # of an image, wherever it is
        groups = grouped(
            state, replay.rows([path for group in line["groups"] for path in group["images"]])
        )
        if groups:
            yield Action(kind=kind, groups=groups)
    elif kind in ("confirm", "reject"):
        for group in line["groups"]:
            yield from _decided_again(replay, kind, group)
    elif kind == "assign":
        target = replay.category(line["category"])
        rows = replay.rows(line["images"])
        if len(rows):
            how = checked_via(line.get("via", ""))
            yield Action(
                kind=kind, category=target, groups=(Group(category=target, rows=rows),), via=how
            )
    elif kind == "create":
        yield from _new(replay, line["category"], line["name"], replay.rows(line["images"]))
    elif kind == "rename":
        target = replay.renamed(line["category"], line["name"])
        is_done = line["category"] in replay.kept or state.records[target].name == line["name"]
        if not is_done:  # another run may know it by this name
            yield Action(kind=kind, category=target, name=checked_name(line["name"]))
    elif kind == "merge":
        target = replay.current_category(line["into"])
        others = tuple(
            sorted(
                {
                    replay.category(old)
                    for old in line["categories"]
                    if replay.current_category(old) != target
                }
            )
        )
        if others:
            yield Action(kind=kind, categories=others, category=replay.category(line["into"]))
        else:  # they are one here
            replay.within.pop(line["into"], None)
            replay.ids[line["into"]] = target
    elif kind == "distinct":
        pair = tuple(sorted({replay.category(old) for old in line["categories"]}))
        if len(pair) < 2:
            raise UsageError(f"they are one here, {state.records[pair[0]].name}")
        if pair not in state.distinct:
            yield Action(kind=kind, categories=pair)
    elif kind == "split":
        for part in line["parts"]:
            yield from _part(replay, line["category"], part)


def _decided_again(replay: Replay, kind: str, group: Mapping[str, Any]) -> Iterator[Action]:
    """Confirm images, which may have to be put into the category first, or reject those that are in it.

    A rejection says nothing against another category. After a discovery that has heeded it, that is how it should be.
    """
    rows = replay.rows(group["images"])
    state = replay.state
    target = replay.category(group["category"])
    is_elsewhere = state.images.category[rows] != target
    if kind == "confirm" and is_elsewhere.any():
        yield Action(
            kind="assign",
            category=target,
            groups=(Group(category=target, rows=rows[is_elsewhere]),),
        )
    if kind == "reject":
        if not replay.kept:
            replay.elsewhere = [
                shown(state.answer.paths[row]) for row in rows[is_elsewhere].tolist()
            ]
        rows = rows[~is_elsewhere]
    if len(rows):
        yield Action(kind=kind, groups=(Group(category=target, rows=rows),))


def _new(replay: Replay, old: int, name: str, rows: Ints) -> Iterator[Action]:
    """A new category, or the one that is it by now, or has its name."""
    is_kept = old in replay.kept
    there = replay.category(old) if is_kept else replay.called(name)
    if there is not None:
        replay.ids[old] = there
        if len(rows):
            yield Action(kind="assign", category=there, groups=(Group(category=there, rows=rows),))
        elif not is_kept:
            raise UsageError(f"a category {name} is there already")
        return
    new = replay.state.next_id
    replay.ids[old] = new
    yield Action(
        kind="create",
        category=new,
        name=replay.free_name(name),
        groups=(Group(category=new, rows=rows),),
    )


def _part(replay: Replay, old_source: int, part: Mapping[str, Any]) -> Iterator[Action]:
    """A part of a split, which decides about no single image: what the new answer has put elsewhere stays there.

    Where the answer has the category already, only images that somebody decided on follow the split, as they are. A
    discovery that knew of the part and found no such category has it no more, which it says with what has changed.
    """
    state = replay.state
    old = part["category"]
    rows = replay.rows(part["images"])
    is_here = old_source in replay.ids or old_source in replay.within
    source = replay.current_category(old_source) if is_here else NO_CATEGORY
    name = _name_here(replay, old_source, source, checked_name(part["name"]))
    replay.lost[old] = name
    is_gone = old_source in replay.kept and old not in replay.kept
    there = None
    if old in replay.kept:
        there = replay.category(old)
    elif not is_gone:
        there = replay.called(name)
        if there is None:
            there = _found_again(replay, rows, source)
            if there is not None:
                yield Action(kind="rename", category=there, name=name)
    leaving = rows[:0]
    if not is_gone and source not in (NO_CATEGORY, there):
        leaving = rows[state.images.category[rows] == source]
    if there is not None:
        replay.ids[old] = there
        is_there = state.images.category[rows] == there
        leaving = leaving[state.images.status[leaving] != PREDICTED]
        _note_staying(replay, name, len(rows), int(is_there.sum()) + len(leaving))
        if len(leaving):
            new = Group(category=state.next_id, rows=leaving, name=state.free_name(name))
            yield Action(kind="split", category=source, groups=(new,))
            yield Action(kind="merge", categories=(new.category,), category=there)
        return
    _note_staying(replay, name, len(rows), len(leaving))
    if len(leaving):
        new = Group(category=state.next_id, rows=leaving, name=replay.free_name(name))
        replay.ids[old] = new.category
        yield Action(kind="split", category=source, groups=(new,))
    elif old in replay.decided:
        replay.to_make[old] = name


def _name_here(replay: Replay, old_source: int, source: int, name: str) -> str:
    """The name of a part; one that only numbers the parts of its category goes by what that one is called here."""
    before = replay.lost.get(old_source, "")
    is_numbered = source != NO_CATEGORY and is_numbered_part(name, before)
    return replay.state.records[source].name + name.removeprefix(before) if is_numbered else name


def _note_staying(replay: Replay, name: str, n_images: int, n_following: int) -> None:
    """Say how many images do not follow a split, of an answer that has not heeded it."""
    if n_following < n_images and not replay.kept:
        n_staying = f"{n_images - n_following:,} of {count(n_images, 'image')}"
        replay.notes.append(
            f"{n_staying} of {shown(name)} not split off, because this run has put them otherwise"
        )


def _found_again(replay: Replay, rows: Ints, source: int) -> int | None:
    """The novel category that is no other one and has mostly these images, which the new answer has parted itself."""
    state = replay.state
    votes = Counter(state.images.category[rows].tolist())
    best, n_votes = votes.most_common(1)[0] if votes else (NO_CATEGORY, 0)
    if best in (NO_CATEGORY, source, *replay.ids.values()) or not state.records[best].is_novel:
        return None
    return best if 2 * n_votes > max(len(rows), len(state.members(best))) else None
