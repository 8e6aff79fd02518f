"""A review carried over to another answer about the same images, with a list of what no longer fits.

Actions that count are done again in their order, on the categories that `replay_categories` finds. Whatever a person
said about an image holds, wherever the new answer has put it. An answer that was made by a discovery after the review
(`shoal.refine`) has kept ids and names: its categories are found by these, and are not named, made or split again.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import DataError, UsageError
from shoal.files import atomic_file
from shoal.review.actions import (
    UNREADABLE,
    Entry,
)
from shoal.review.log import FILE, Log
from shoal.review.replay_actions import actions_here
from shoal.review.replay_categories import Replay, find_categories
from shoal.review.review import line_of, now, start_line
from shoal.review.run_tables import RunTables
from shoal.review.state import State
from shoal.runs import RunView
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
    groups = line.get("groups") if line["action"] in ("confirm", "reject", "flag") else None
    return [{**line, "groups": [group]} for group in groups] if isinstance(groups, list) else [line]


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
