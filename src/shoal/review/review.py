"""The review of one run: its log and the resulting state. Several processes may share a review."""

import getpass
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.errors import DataError, UsageError
from shoal.review.actions import Action, encode, line_of, parse_action
from shoal.review.effects import prepare
from shoal.review.log import FILE, Line, Log
from shoal.review.state import State
from shoal.runs import TABLE, Run, reading
from shoal.words import shown

# The format of the log; a log of a later format is refused
FORMAT = 1

# Maximum number of characters in the name of a person
MAX_WHO = 80


class OtherResult(DataError):
    """A log that was written for another result than the run now holds."""


class Review:
    """The review of a run. Reading it writes nothing; the first action creates the log."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._table_version = table_version(run)
        self.state = State(run)
        self.log = Log(run.path / FILE)
        self.lock = threading.RLock()
        self.refresh()

    def refresh(self) -> None:
        """Apply the lines that other processes have added."""
        with self.lock:
            for line in self.log.read_new():
                if not self.log.n_lines:
                    if line["action"] != "start" or line.get("format") != FORMAT:
                        raise self.log.damaged(f"expected the start of a log of format {FORMAT}")
                    check_result(line, self.state)
                    continue
                try:
                    apply_line(self.state, line)
                except (UsageError, KeyError, TypeError) as error:
                    raise self.log.damaged(f"cannot be applied ({error})") from error

    def act(
        self,
        make: Callable[..., Action],
        *given: Any,
        by: str | None = None,
        base: int | None = None,
        window: str = "",
    ) -> Action:
        """Apply an action and write it to the log; on return it is on the disk.

        Parameters
        ----------
        make : callable
            Takes the current state and `given`, and returns the action.
        *given
            What it takes after the state.
        by : str, optional
            The person; the name of the account if not given.
        base : int, optional
            The last action that the person has seen. The action is refused if its images or
            categories have changed since. Not checked if not given.
        window : str, optional
            The page on which it was done.
        """
        who = checked_who(by)
        with self.lock, self.log.locked():
            if table_version(self.run) != self._table_version:
                raise UsageError(f"{self.run.path}: the run was overwritten; open its review again")
            self.refresh()
            action = make(self.state, *given)
            action = replace(action, seq=self.state.seq + 1, by=who, at=now(), window=window)
            change = prepare(self.state, action, base, is_new=True)
            line = line_of(action, self.state.encoded_paths)
            if self.log.n_lines:
                self.log.append(line)
            else:  # no file, or one without a complete first line
                self.log.write_new([start_line(self.state, who), line])
            self.state.commit(action, change)
            return action

    def undo(self, *, by: str | None = None) -> Action:
        return self.act(State.undo_or_redo, "undo", checked_who(by), by=by)

    def redo(self, *, by: str | None = None) -> Action:
        return self.act(State.undo_or_redo, "redo", checked_who(by), by=by)


def write_review(log: Log, state: State, by: str) -> None:
    """Replace a locked log by the actions of a state."""
    lines = [line_of(action, state.encoded_paths) for action in state.actions]
    log.write_new([start_line(state, by), *lines])


def check_result(line: Line, state: State) -> None:
    if line.get("result") != state.checksum:
        folder = state.run.path
        raise OtherResult(
            f"{folder / FILE}: was written for another result than {folder} now holds; "
            f"`shoal review {folder}` replays it and lists what could not be applied"
        )


def apply_line(state: State, line: Line) -> int:
    """Apply a line of the log as the next action; return its number.

    Raises UsageError if that is not possible, KeyError or TypeError if the line is damaged.
    """
    action = replace(
        parse_action(str(line["action"]), line, state.rows),
        seq=state.seq + 1,
        by=str(line["by"]),
        at=str(line["at"]),
        window=str(line.get("window", "")),
    )
    state.commit(action, prepare(state, action))
    return action.seq


def start_line(state: State, by: str) -> str:
    categories = [
        {
            "category": category.category_id,
            "name": category.category,
            "exemplars": category.exemplars,
        }
        for category in state.found.values()
    ]
    return encode(
        {
            "seq": 0,
            "action": "start",
            "by": by,
            "at": now(),
            "format": FORMAT,
            "result": state.checksum,
            "categories": categories,
        }
    )


def table_version(run: Run) -> int:
    """Return the time of the table of images, which changes when it is written."""
    file = run.path / TABLE
    with reading(file):
        return file.stat().st_mtime_ns


def checked_who(by: str | None) -> str:
    """Return the printable name of a person; the name of the account for None."""
    if by is None:
        try:
            by = getpass.getuser()
        except (OSError, KeyError):  # an account without a name
            by = "someone"
    text = shown(by.strip(), MAX_WHO)
    if not text:
        raise UsageError("by: expected the name of a person")
    return text


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def salvage(run: Run) -> tuple[list[str], Path | None]:
    """Rewrite the log of a run without the lines that cannot be read or applied.

    Returns what is dropped, line by line, and the copy of the damaged log; nothing is written, and
    the copy is None, if no line is dropped.
    """
    log = Log(run.path / FILE)
    if not run.has(FILE):
        raise UsageError(f"{log.file}: does not exist, so there is nothing to salvage")
    with log.locked():
        with reading(log.file):
            content = log.file.read_bytes()
        state = State(run)
        dropped = _apply_lines(content, state)
        if not dropped:
            return [], None
        copy = log.backup("review-damaged")
        write_review(log, state, checked_who(None))
    return dropped, copy


def _apply_lines(content: bytes, state: State) -> list[str]:
    """Apply the lines of a log to the state, numbered anew; return those that cannot be."""
    dropped = []
    seq_of: dict[object, int] = {}  # the new number of each action
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            line = json.loads(text)
            if line["action"] == "start":
                check_result(line, state)
                continue
            if "of" in line:
                line["of"] = seq_of.get(line["of"], 0)  # 0 is no action
            seq_of[line["seq"]] = apply_line(state, line)
        except OtherResult:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            dropped.append(f"line {number}: cannot be read or applied ({error})")
    return dropped
