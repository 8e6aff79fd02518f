"""The review of one run: its log and the state that it gives. Several processes may share one."""

import getpass
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from shoal.errors import DataError, UsageError
from shoal.review.actions import UNREADABLE, Action, Entry, action_of, fields_of
from shoal.review.effects import again, prepare, why_not
from shoal.review.history import Window
from shoal.review.log import FILE, Line, Log
from shoal.review.state import Blocked, State
from shoal.runs import Run, reading, table_files
from shoal.text import shown

FORMAT = 1
"""The format of the log; one of a later version is refused."""

MAX_WHO = 80
"""Characters of a person's name."""


class OtherAnswer(DataError):
    """A log that was made on another answer than the run now holds."""


class Review:
    """What people decided about a run. Reading one writes nothing; the first action makes the
    log."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._table = _stamp(run)
        self.state = State(run)
        self.log = Log(run.path / FILE)
        self.lock = threading.RLock()
        self._is_open = False
        self.refresh()

    def refresh(self) -> bool:
        """Take in what others have added; says whether there was anything."""
        with self.lock:
            n_before = self.state.seq
            for line in self.log.read_on():
                if self._is_open:
                    self._replay(line)
                else:
                    self._check_start(line)
                    self._is_open = True
            return self.state.seq > n_before

    def act(
        self,
        make: Callable[[State], Action],
        *,
        by: str | None = None,
        base: int | None = None,
        window: str = "",
    ) -> Entry:
        """Do one thing: `make` is given the state as it is and returns the action.

        It is on the disk on return.

        Args:
            by: who; the name of the account if not given. base: the seq its author had seen; what
            somebody changed since is refused. None: no check. window: the page of theirs that it
            was done on.
        """
        who = checked_who(by)
        with self.lock, self.log.held():
            if _stamp(self.run) != self._table:
                raise UsageError(
                    f"{self.run.path}: the run was written anew meanwhile; open its review again"
                )
            self.refresh()
            action = make(self.state)
            change = prepare(self.state, action, base)
            seq = self.state.seq + 1
            entry = Entry(seq=seq, by=who, at=now(), action=action, window=window)
            line = line_of(entry, self.state)
            if self._is_open:
                self.log.append(line)
            else:  # no file, or one without a whole first line
                self.log.write_new([start_line(self.state, who), line])
                self._is_open = True
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
        """Undo or redo the latest action of a person, in a window if given, that nobody built on.

        Returns what was done, and why later actions of that person were skipped.
        """
        who = checked_who(by)
        skipped: list[Blocked] = []

        def make(state: State) -> Action:
            of, blocked = again(state, kind, who, window, base)
            skipped.extend(reason for one in blocked if (reason := why_not(state, kind, one)))
            if of is None and skipped:
                raise skipped[0]
            if of is None:
                where = " in this window" if window else ""
                raise UsageError(f"{kind}: {who} has nothing to {kind}{where}")
            return Action(kind=kind, of=of)

        name = window.name if window else ""
        return self.act(make, by=who, base=base, window=name), skipped

    def _check_start(self, line: Line) -> None:
        if line["action"] != "start" or line.get("format") != FORMAT:
            raise self.log.damage(f"expected the start of a log of format {FORMAT}")
        if line.get("answer") != self.state.checksum:
            raise OtherAnswer(
                f"{self.log.file}: is about another answer than {self.run.path} now holds; "
                f"`shoal review {self.run.path}` replays it onto this one and says what no longer "
                "fits"
            )

    def _replay(self, line: Line) -> None:
        try:
            action = action_of(str(line["action"]), line, self.state.rows)
            change = prepare(self.state, action)
        except UsageError as error:
            raise self.log.damage(f"does not fit what comes before it ({error})") from error
        except (KeyError, TypeError, ValueError) as error:
            raise self.log.damage(UNREADABLE) from error
        entry = Entry(
            seq=self.state.seq + 1,
            by=str(line["by"]),
            at=str(line["at"]),
            action=action,
            window=str(line.get("window", "")),
        )
        self.state.commit(entry, change)


def line_of(entry: Entry, state: State) -> Line:
    """An entry as its line in the log."""
    line: dict[str, object] = {
        "seq": entry.seq,
        "action": entry.action.kind,
        "by": entry.by,
        "at": entry.at,
    }
    if entry.window:
        line["window"] = entry.window
    return line | fields_of(entry.action, state.paths)


def start_line(state: State, by: str) -> Line:
    """The first line of a log."""
    categories = [
        {
            "category": one.category_id,
            "name": one.category,
            "is_novel": one.is_novel,
            "exemplars": list(one.exemplars),
        }
        for one in state.found
    ]
    return {
        "seq": 0,
        "action": "start",
        "by": by,
        "at": now(),
        "format": FORMAT,
        "n_images": len(state),
        "answer": state.checksum,
        "categories": categories,
    }


def _stamp(run: Run) -> tuple[int, int]:
    """Changes whenever the table of a run's images is written."""
    file = table_files(run.path)[-1]
    with reading(file):
        status = file.stat()
    return status.st_mtime_ns, status.st_size


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
