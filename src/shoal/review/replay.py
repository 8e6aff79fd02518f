"""A review carried over to another answer about the same images, with a list of what no longer fits.

Actions that count are done again in their order, on the categories that `replay_categories` finds. Whatever a person
said about an image holds, wherever the new answer has put it. An answer that was made by a discovery after the review
(`shoal.refine`) has kept ids and names: its categories are found by these, and are not named, made or split again.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.errors import DataError, UsageError
from shoal.files import atomic_file
from shoal.review.actions import (
    CONFIRMED,
    MOVED,
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
from shoal.review.replay_categories import Replay, find_categories
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
            raise UsageError(f"{log.file}: the run has a review of its own; move it away to replay another")
        answer = RunTables.read(run)
        entries, misfits = replayed(old, answer, ids)
        if is_own:
            with atomic_file(_free_name(run.path)) as kept:  # on the disk before the new log takes its place
                kept.write(old.read_bytes())
        start = start_line(answer, by, now())
        log.write_new([start, *(line_of(entry, answer) for entry in entries)])
    return entries, misfits


def replayed(file: Path, answer: RunTables, ids: Mapping[int, int] | None = None) -> tuple[list[Entry], list[Misfit]]:
    """The actions of a log as they are on another answer, and those that no longer fit; writes nothing."""
    lines, replay = list(_lines(file)), Replay(State(answer))
    if ids is not None:
        replay.ids, replay.kept = dict(ids), frozenset(ids)
    counting, misfits = _counting(lines[1:])
    try:
        find_categories(replay, lines[0].get("categories") or [] if lines else [], counting)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{file}, line 1: categories: {UNREADABLE}; put back a copy of the file") from error
    for line in counting:
        if reasons := [reason for part in _independent(line) for reason in _done_again(replay, part)]:
            misfits.append(Misfit(line["seq"], line["action"], line["by"], "; ".join(reasons)))
    return replay.state.entries, sorted(misfits, key=lambda misfit: misfit.seq)


def _independent(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """An action in parts, each of which may fit where another does not: a decision about several categories."""
    groups = line.get("groups") if line["action"] in ("confirm", "reject", "flag") else None
    return [{**line, "groups": [group]} for group in groups] if isinstance(groups, list) else [line]


def _done_again(replay: Replay, line: Mapping[str, Any]) -> list[str]:
    """Do an old action in the new state; what of it does not fit, in words."""
    replay.n_missing, replay.elsewhere, replay.notes, reasons = 0, [], [], []
    try:
        for action in itertools.chain(replay.make(line), _actions(replay, line)):
            change = replay.state.prepare(action)
            entry = Entry(seq=replay.state.seq + 1, by=line["by"], at=line["at"], action=action)
            replay.state.commit(entry, change)
    except UsageError as error:
        reasons.append(str(error))
    except (AttributeError, LookupError, TypeError):
        return [UNREADABLE]
    reasons += replay.notes
    if replay.n_missing:
        reasons.append(f"{replay.n_missing:,} of its images {plural(replay.n_missing, 'is')} not in this run")
    if replay.elsewhere:
        where = replay.state.records[replay.category(line["groups"][0]["category"])].name
        what = f"{count(len(replay.elsewhere), 'image')} ({first_few(replay.elsewhere)})"
        reasons.append(f"{what} not in {where} here, so not rejected")
    return reasons


def _actions(replay: Replay, line: Mapping[str, Any]) -> Iterator[Action]:
    """What an old action is in the new state."""
    kind, state = line["action"], replay.state
    if kind == "flag":  # of an image, wherever it is
        groups = grouped(state, replay.rows([path for group in line["groups"] for path in group["images"]]))
        if groups:
            yield Action(kind=kind, groups=groups)
    elif kind in ("confirm", "reject"):
        for group in line["groups"]:
            yield from _decided(replay, kind, group)
    elif kind == "assign":
        target, rows = replay.category(line["category"]), replay.rows(line["images"])
        if len(rows):
            how = checked_via(line.get("via", ""))
            yield Action(kind=kind, category=target, groups=(Group(category=target, rows=rows),), via=how)
    elif kind == "create" and line.get("between") and line["category"] not in replay.kept:  # or else it is none today
        yield from _between(replay, line, replay.rows(line["images"]))
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
            sorted({replay.category(old) for old in line["categories"] if replay.current_category(old) != target})
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


def _decided(replay: Replay, kind: str, group: Mapping[str, Any]) -> Iterator[Action]:
    """Confirm images, which may have to be put into the category first, or reject those that are in it.

    A rejection says nothing against another category. After a discovery that has heeded it, that is how it should be.
    """
    rows, state, target = replay.rows(group["images"]), replay.state, replay.category(group["category"])
    is_elsewhere = state.images.category[rows] != target
    if kind == "confirm" and is_elsewhere.any():
        yield Action(kind="assign", category=target, groups=(Group(category=target, rows=rows[is_elsewhere]),))
    if kind == "reject":
        if not replay.kept:
            replay.elsewhere = [shown(state.answer.paths[row]) for row in rows[is_elsewhere].tolist()]
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
    yield Action(kind="create", category=new, name=replay.free_name(name), groups=(Group(category=new, rows=rows),))


def _between(replay: Replay, line: Mapping[str, Any], rows: Ints) -> Iterator[Action]:
    """A category between others, or the one that is between these here; where they are one, that one.

    It is for images: where none of them is here, none is made, unless a later action needs it.
    """
    replay.lost[line["category"]] = str(line["name"])  # where one of the others is lost
    current, state = {replay.current_category(old) for old in line["between"]}, replay.state
    ids = sorted(current if len(current) == 1 else {replay.category(old) for old in line["between"]})
    there = ids[0] if len(ids) == 1 else state.find_between(ids)
    if there is None:
        name = state.joined(ids)
        if not len(rows) and line["category"] not in replay.decided | replay.needed:
            replay.lost[line["category"]] = name
            return
        new, name = state.next_id, replay.free_name(name)
        replay.ids[line["category"]] = new
        group = Group(category=new, rows=rows)
        yield Action(kind="create", category=new, name=name, groups=(group,), categories=tuple(ids))
        return
    replay.ids[line["category"]] = there
    if len(rows):
        yield Action(kind="assign", category=there, groups=(Group(category=there, rows=rows),))


def _part(replay: Replay, old_source: int, part: Mapping[str, Any]) -> Iterator[Action]:
    """A part of a split, which decides about no single image: what the new answer has put elsewhere stays there.

    Where the answer has the category already, only images that somebody decided on follow the split, as they are. A
    discovery that knew of the part and found no such category has it no more, which it says with what has changed.
    """
    state, old = replay.state, part["category"]
    rows, is_here = replay.rows(part["images"]), old_source in replay.ids or old_source in replay.within
    source = replay.current_category(old_source) if is_here else NO_CATEGORY
    name = _name_here(replay, old_source, source, checked_name(part["name"]))
    replay.lost[old] = name
    is_gone = old_source in replay.kept and old not in replay.kept
    there = replay.category(old) if old in replay.kept else None if is_gone else replay.called(name)
    if there is None and not is_gone and (there := _found_again(replay, rows, source)) is not None:
        yield Action(kind="rename", category=there, name=name)
    leaving = rows[state.images.category[rows] == source] if source not in (NO_CATEGORY, there) else rows[:0]
    if is_gone:  # but for images that people left between categories
        leaving = leaving[np.isin(state.images.status[leaving], (CONFIRMED, MOVED))]
    if there is not None:
        replay.ids[old], is_there = there, state.images.category[rows] == there
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
        replay.notes.append(f"{n_staying} of {shown(name)} not split off, because this run has put them otherwise")


def _found_again(replay: Replay, rows: Ints, source: int) -> int | None:
    """The novel category that is no other one and has mostly these images, which the new answer has parted itself."""
    state = replay.state
    votes = Counter(state.images.category[rows].tolist())
    best, n_votes = votes.most_common(1)[0] if votes else (NO_CATEGORY, 0)
    if best in (NO_CATEGORY, source, *replay.ids.values()) or not state.records[best].is_novel:
        return None
    return best if 2 * n_votes > max(len(rows), len(state.members(best))) else None


def _counting(lines: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Misfit]]:
    """The lines that were not undone, and those that undo or redo nothing."""
    undone: set[int] = set()
    counting, misfits = [], []
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
