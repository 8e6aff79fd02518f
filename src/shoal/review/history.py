"""The history of a review: which action a person can undo or redo.

A person may have several pages of the review open. What is undone in one of them was done there,
under whatever name, or by that person before the page was opened: never what the same person did in
another one meanwhile.
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

    def entry(self, seq: int) -> Entry:
        """The entry with this number."""
        if not 1 <= seq <= len(self.entries):
            raise UsageError(f"action {seq}: there is none; the last is {len(self.entries)}")
        return self.entries[seq - 1]

    def add(self, entry: Entry) -> int:
        """Take in an entry; returns the action that counts from now on, 0 where one no longer
        does."""
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
        self._done.append(of)
        return of

    def done_by(self, by: str, window: Window | None = None) -> Iterator[int]:
        """The actions that a person can undo, in a window if given; the last one first."""
        for of in reversed(self._done):
            if _is_for(self.entry(of), by, window):
                yield of

    def undone_by(self, by: str, window: Window | None = None) -> Iterator[int]:
        """The actions that a person has undone and done nothing else since; the last one first."""
        for undoing in reversed(self._undoings):
            if _is_for(undoing, by, window) and not self._has_gone_on(undoing, by, window):
                yield undoing.action.of

    def _has_gone_on(self, undoing: Entry, by: str, window: Window | None) -> bool:
        """Whether something else was done since, after which nobody redoes what was undone."""
        for entry in self.entries[undoing.seq :]:
            if entry.action.of:  # undoes or redoes
                continue
            is_own = entry.by == by
            if window is not None:
                is_own = entry.window == window.name or (is_own and entry.window == undoing.window)
            if is_own:
                return True
        return False


def _is_for(entry: Entry, by: str, window: Window | None) -> bool:
    """Whether an entry is a person's; of a window: made there, or by them before it was opened."""
    if window is None:
        return entry.by == by
    return entry.window == window.name or (entry.by == by and entry.seq <= window.opened)
