"""The review of one run: its answer, its log and the state that both give. Several processes may share one."""

import getpass
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.errors import DataError, UsageError
from shoal.review.actions import UNREADABLE, Action, Entry, action_of, fields_of
from shoal.review.history import Window
from shoal.review.log import FILE, Log
from shoal.review.run_tables import RunTables
from shoal.review.state import Blocked, State
from shoal.runs import RunView, reading, table_files
from shoal.text import shown

FORMAT = 1
"""The format of the log; one of a later version is refused."""

MAX_WHO = 80
"""Characters of a person's name."""


class OtherAnswer(DataError):
    """A log that was made on another answer than the run now holds."""


class Review:
    """What people decided about a run. Reading one writes nothing; the first action makes the log."""

    def __init__(self, run: RunView) -> None:
        self.run = run
        self._table = _stamp(run)
        self.answer = RunTables.read(run)
        self.state = State(self.answer)
        self.log = Log(run.path)
        self.lock = threading.RLock()
        self._is_open = False
        self.refresh()

    def refresh(self) -> bool:
        """Take in what others have added; says whether there was anything."""
        with self.lock:
            return self._read_on(mends=False)

    def mend(self) -> bool:
        """Drop half a line that a killed process has left at the end of the log; says whether there was one."""
        if not self.log or not self.log.has_more:
            return False
        with self.lock, self.log.held():
            self._read_on(mends=True)
        return bool(self.log.dropped)

    def act(
        self,
        make: Callable[[State], Action],
        *,
        by: str | None = None,
        base: int | None = None,
        at: str | None = None,
        window: str = "",
    ) -> Entry:
        """Do one thing: `make` is given the state as it is and returns the action. It is on the disk on return.

        Args:
            by: who; the name of the account if not given.
            base: the seq its author had seen; what somebody else changed since then is refused. None: no check.
            at: when; now if not given.
            window: the page of theirs that it was done on.
        """
        who = checked_who(by)
        with self.lock, self.log.held():
            if _stamp(self.run) != self._table:
                raise UsageError(
                    f"{self.run.path}: the run was written anew meanwhile; open its review again"
                )
            self._read_on(mends=True)
            is_new = not self._is_open  # no file, or one without a whole first line
            action = make(self.state)
            change = self.state.prepare(action, base)
            entry = Entry(
                seq=self.state.seq + 1, by=who, at=at or now(), action=action, window=window
            )
            self._add(line_of(entry, self.answer), who, is_new=is_new)
            self.state.commit(entry, change)
            return entry

    def again(
        self,
        kind: str,
        *,
        by: str | None = None,
        base: int | None = None,
        window: Window | None = None,
    ) -> tuple[Entry, list[Blocked]]:
        """Undo or redo the latest action of a person, in a window if one is given, that nobody has built on.

        Returns what was done, and why later actions of that person were skipped.
        """
        skipped: list[Blocked] = []

        def make(state: State) -> Action:
            of, actions = state.again(kind, checked_who(by), window, base)
            reasons = [reason for one in actions if (reason := state.why_not(kind, one))]
            if of is None:
                where = " in this window" if window else ""
                raise (
                    reasons[0]
                    if reasons
                    else UsageError(f"{kind}: {checked_who(by)} has nothing to {kind}{where}")
                )
            skipped.extend(reasons)
            return Action(kind=kind, of=of)

        return self.act(make, by=by, base=base, window=window.name if window else ""), skipped

    def _add(self, line: Mapping[str, Any], by: str, *, is_new: bool) -> None:
        """Write a line; the first one with the start of the log, so that what is refused leaves no log behind."""
        if not is_new:
            self.log.append(line)
            return
        self.log.write_new([start_line(self.answer, by, now()), line])
        self._is_open = True

    def _read_on(self, *, mends: bool) -> bool:
        n_before = self.state.seq
        for line in self.log.read_on(mends=mends):
            if not self._is_open:
                self._check_start(line)
                self._is_open = True
                continue
            self._replay(line)
        return self.state.seq > n_before

    def _check_start(self, line: Mapping[str, Any]) -> None:
        if line["action"] != "start" or line.get("format") != FORMAT:
            raise self.log.damage(f"expected the start of a log of format {FORMAT}")
        if line.get("answer") != self.answer.checksum:
            raise OtherAnswer(
                f"{self.log.file}: is about another answer than {self.run.path} now holds; `shoal review "
                f"{self.run.path}` replays it onto this one and says what no longer fits"
            )

    def _replay(self, line: Mapping[str, Any]) -> None:
        try:
            action = action_of(line["action"], line, self.answer.rows)
            change = self.state.prepare(action)
        except UsageError as error:
            raise self.log.damage(f"does not fit what comes before it ({error})") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self.log.damage(UNREADABLE) from error
        who = {"by": line["by"], "at": line["at"], "window": str(line.get("window", ""))}
        self.state.commit(Entry(seq=self.state.seq + 1, action=action, **who), change)


def line_of(entry: Entry, answer: RunTables) -> dict[str, Any]:
    """An entry as its line in the log."""
    fields = fields_of(entry.action, answer.listed)
    window = {"window": entry.window} if entry.window else {}
    return {
        "seq": entry.seq,
        "action": entry.action.kind,
        "by": entry.by,
        "at": entry.at,
        **window,
        **fields,
    }


def start_line(answer: RunTables, by: str, at: str) -> dict[str, Any]:
    """The first line of a log."""
    categories = [
        {
            "category": c.category_id,
            "name": c.category,
            "is_novel": c.is_novel,
            "exemplars": list(c.exemplars),
        }
        for c in answer.categories
    ]
    what = {
        "format": FORMAT,
        "n_images": len(answer),
        "answer": answer.checksum,
        "categories": categories,
    }
    return {"seq": 0, "action": "start", "by": by, "at": at, **what}


def _stamp(run: RunView) -> tuple[int, int]:
    """Changes whenever the table of a run's images is written."""
    file = table_files(run.path)[-1]
    with reading(file):
        state = file.stat()
    return state.st_mtime_ns, state.st_size


def checked_who(by: str | None) -> str:
    """The name of a person, fit to be written down."""
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
    """The time, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def has_review(folder: Path) -> bool:
    """Whether somebody has decided anything about a run."""
    return (folder / FILE).is_file()
