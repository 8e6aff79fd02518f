"""The history of a review: which action a person can undo or redo.

A person may have several pages of the review open. What is undone in one of them was done there, under whatever name,
or by that person before the page was opened: never what the same person did in another one meanwhile.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.review.actions import Entry


@dataclass(frozen=True, slots=True)
class Window:
    """A page that somebody has open."""

    name: str
    opened: int
    """The last action before it was opened."""


class History:
    """The entries of a log, in their order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """The entry with seq i is entries[i - 1]."""
        self.undone: set[int] = set()
        self._done: list[int] = []
        """The actions that count, in the order in which they were done or redone."""
        self._undoings: list[Entry] = []
        """The entries that undo what is undone."""
        self._acted: dict[tuple[str, str], int] = {}
        """By person and window, the last action that neither undoes nor redoes."""

    def entry(self, seq: int) -> Entry:
        """The entry with this number."""
        if not 1 <= seq <= len(self.entries):
            raise UsageError(f"action {seq}: there is none; the last is {len(self.entries)}")
        return self.entries[seq - 1]

    def add(self, entry: Entry) -> int:
        """Take in an entry; returns the action that counts from now on, 0 where one no longer does."""
        self.entries.append(entry)
        of = entry.action.of
        if entry.action.kind == "undo":
            self.undone.add(of)
            self._done.remove(of)
            self._undoings.append(entry)
            return 0
        if entry.action.kind == "redo":
            self.undone.discard(of)
            self._undoings = [undoing for undoing in self._undoings if undoing.action.of != of]
        else:
            of = entry.seq
            self._acted[entry.by, entry.window] = of
        self._done.append(of)
        return of

    def done_by(self, by: str, window: Window | None = None) -> Iterator[int]:
        """The actions that a person can undo wherever they were done, or in a window; the last one first."""
        for of in reversed(self._done):
            if _is_for(self.entry(of), by, window):
                yield of

    def undone_by(self, by: str, window: Window | None = None) -> Iterator[int]:
        """The actions that a person has undone, the last one first, where they have done nothing else since."""
        for undoing in reversed(self._undoings):
            if not _is_for(undoing, by, window):
                continue
            last = self._last_acted(by, undoing.window, window)
            if undoing.seq > last:
                yield undoing.action.of

    def _last_acted(self, by: str, undone_in: str, window: Window | None) -> int:
        """The last action after which a person cannot redo what was undone in a window."""
        if window is None:
            return max((seq for (who, _), seq in self._acted.items() if who == by), default=0)
        in_window = [seq for (_, name), seq in self._acted.items() if name == window.name]
        return max(*in_window, self._acted.get((by, undone_in), 0), 0)


def _is_for(entry: Entry, by: str, window: Window | None) -> bool:
    """Whether an entry was made by a person; in a window: made there, or by that person before it was opened."""
    if window is None:
        return entry.by == by
    return entry.window == window.name or (entry.by == by and entry.seq <= window.opened)
