"""Who has done what, and where: which action a person can undo or redo.

A person may have several pages of the review open. What is undone in one of them was done there, or before that page
was opened: never what the same person did in another one meanwhile.
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

    def has(self, entry: Entry) -> bool:
        """Whether something was done in it, or before it was there."""
        return entry.window == self.name or entry.seq <= self.opened


class History:
    """The entries of a log, in their order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """The entry with seq i is entries[i - 1]."""
        self.undone: set[int] = set()
        self._done: dict[str, list[int]] = {}
        """By person, the actions that count, in the order in which they were done or redone."""
        self._undoings: dict[str, list[Entry]] = {}
        """By person, the entries that undo what is undone."""
        self._acted: dict[str, dict[str, int]] = {}
        """By person and window, the last action there that neither undoes nor redoes."""

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
            self._done[self.entry(of).by].remove(of)
            self._undoings.setdefault(entry.by, []).append(entry)
            return 0
        if entry.action.kind == "redo":
            self.undone.discard(of)
            for person, found in self._undoings.items():
                self._undoings[person] = [undoing for undoing in found if undoing.action.of != of]
        else:
            of = entry.seq
            self._acted.setdefault(entry.by, {})[entry.window] = of
        self._done.setdefault(self.entry(of).by, []).append(of)
        return of

    def done_by(self, by: str, window: Window | None = None) -> Iterator[int]:
        """The actions of a person that count, in a window or wherever they were done, the last one first."""
        return (seq for seq in reversed(self._done.get(by, ())) if window is None or window.has(self.entry(seq)))

    def undone_by(self, by: str, window: Window | None = None) -> Iterator[int]:
        """The actions that a person has undone, the last one first, where they have done nothing else since."""
        acted = self._acted.get(by, {})
        for undoing in reversed(self._undoings.get(by, ())):
            if window is not None and not window.has(undoing):
                continue
            where = acted if window is None else (undoing.window, window.name)
            if undoing.seq > max((acted.get(name, 0) for name in where), default=0):
                yield undoing.action.of
