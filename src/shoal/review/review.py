"""The review of one run: its log, the file `review.jsonl`, and the resulting state.

Lines are only ever appended to the log; `shoal.review.actions` describes them. A line is on the
disk before the action counts. A process that is killed while it writes may leave an incomplete last
line: its action was never acknowledged, so the line is ignored, reported by `note`, and overwritten
by the next line. A last line that lacks only its line break counts. Several processes may share a
review; they append to its log one at a time.
"""

import contextlib
import getpass
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.errors import DataError, UsageError, shown
from shoal.files import atomic_file, writing
from shoal.review.actions import Action, encode, line_of, parse_action
from shoal.review.effects import prepare
from shoal.review.state import State
from shoal.runs import TABLE, Run, locked_file, reading

# The log in a run folder
FILE = "review.jsonl"

# Seconds to wait for another process that appends a line
WAIT_S = 10.0

# Number of last bytes that are compared before appending, to detect a replaced file
END_BYTES = 512

Line = Mapping[str, Any]

# The format of the log; a log of a later format is refused
FORMAT = 1

# Maximum number of characters in the name of a person
MAX_WHO = 80


class Log:
    """The lines of a log, read incrementally."""

    def __init__(self, file: Path) -> None:
        if file.is_dir():
            raise DataError(f"{file}: is a folder, expected the log of a review; move it away")
        self.file = file
        # A message about an incomplete last line; empty if there is none
        self.note = ""
        self._offset = 0
        self.n_lines = 0
        # The last bytes read or written
        self._end = b""

    @property
    def has_more(self) -> bool:
        """Whether the file has changed in length since it was read, or is gone."""
        try:
            return self.file.stat().st_size != self._offset
        except FileNotFoundError:
            return self._offset > 0

    def read_new(self) -> Iterator[Line]:
        """Yield the lines added since the last call.

        Raises UsageError if the file no longer contains what was read before.
        """
        content = b""
        with contextlib.suppress(FileNotFoundError), self.file.open("rb") as file:
            file.seek(self._offset - len(self._end))
            content = file.read()
        if not content.startswith(self._end):
            raise UsageError(
                f"{self.file}: was moved or replaced while its review was open; put it back, or "
                "open the review again"
            )
        self.note = ""
        for line in content[len(self._end) :].splitlines(keepends=True):
            if line.strip():  # empty: the line break that the last line lacked
                try:
                    parsed = self._parse(line)
                except DataError:
                    if line.endswith(b"\n"):
                        raise
                    self.note = (
                        f"note: ignoring an incomplete last line in {self.file}; its action was "
                        "never saved"
                    )
                    return
                yield parsed
                # Counted after the caller has accepted the line: nothing is appended behind a
                # line that cannot be used.
                self.n_lines += 1
            self._advance(line)

    def _advance(self, data: bytes) -> None:
        self._offset += len(data)
        self._end = (self._end + data)[-END_BYTES:]

    def append(self, line: str) -> None:
        """Append a line to a locked log that was read to its end, and sync it to the disk."""
        data = f"{line}\n".encode()
        if not self._end.endswith(b"\n"):
            data = b"\n" + data
        with writing(self.file), self.file.open("r+b", buffering=0) as file:
            try:
                file.truncate(self._offset)  # removes an incomplete last line
                file.seek(self._offset)
                rest = data
                while rest:
                    rest = rest[os.write(file.fileno(), rest) :]
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(self._offset)  # part of the line, on a full disk
                raise
        self.n_lines += 1
        self._advance(data)

    def write_new(self, lines: Sequence[str]) -> None:
        content = "".join(f"{line}\n" for line in lines).encode()
        with atomic_file(self.file) as file:
            file.write(content)
        self._offset = len(content)
        self.n_lines = len(lines)
        self._end = content[-END_BYTES:]

    def backup(self, stem: str) -> Path:
        """Copy the log to the first free name: `stem`-1.jsonl, `stem`-2.jsonl and so on."""
        names = (self.file.with_name(f"{stem}-{number}.jsonl") for number in itertools.count(1))
        copy = next(file for file in names if not file.exists())
        with atomic_file(copy) as file:
            file.write(self.file.read_bytes())
        return copy

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Lock the log for appending; another process holds the lock for milliseconds."""
        return locked_file(self.file, WAIT_S)

    def damaged(self, reason: str) -> DataError:
        return DataError(
            f"{self.file}, line {self.n_lines + 1}: {reason}; restore a copy of the file, or keep "
            f"the other lines with `shoal review {self.file.parent} --salvage`"
        )

    def _parse(self, line: bytes) -> Line:
        try:
            entry: Line = json.loads(line)
            texts = (entry["action"], entry["by"], entry["at"])
            is_valid = entry["seq"] == self.n_lines and all(isinstance(text, str) for text in texts)
        except (ValueError, TypeError, KeyError, RecursionError):
            is_valid = False
        if not is_valid:
            raise self.damaged(f"expected JSON with seq {self.n_lines}, action, by and at")
        return entry


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
