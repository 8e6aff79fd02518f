"""The history of a review: which action a person can undo or redo.

A person may have several pages of the review open. What is undone in one of them was done there, under whatever name,
or by that person before the page was opened: never what the same person did in another one meanwhile.
"""

import heapq
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
        self._done: dict[str, list[int]] = {}
        """By person, the actions that count, in the order in which they were done or redone."""
        self._done_in: dict[str, list[int]] = {}
        """The same by window."""
        self._since: dict[int, int] = {}
        """The entry that has done or redone each of them."""
        self._undoings: dict[str, list[Entry]] = {}
        """By person, the entries that undo what is undone."""
        self._undoings_in: dict[str, list[Entry]] = {}
        """The same by window."""
        self._acted: dict[str, dict[str, int]] = {}
        """By person and window, the last action there that neither undoes nor redoes."""
        self._acted_in: dict[str, int] = {}
        """The same by window."""

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
            self._done_in[self.entry(of).window].remove(of)
            self._undoings.setdefault(entry.by, []).append(entry)
            self._undoings_in.setdefault(entry.window, []).append(entry)
            return 0
        if entry.action.kind == "redo":
            self.undone.discard(of)
            for undoings in (self._undoings, self._undoings_in):
                for name, undone in undoings.items():
                    undoings[name] = [undoing for undoing in undone if undoing.action.of != of]
        else:
            of = entry.seq
            self._acted.setdefault(entry.by, {})[entry.window] = self._acted_in[entry.window] = of
        self._done.setdefault(self.entry(of).by, []).append(of)
        self._done_in.setdefault(self.entry(of).window, []).append(of)
        self._since[of] = entry.seq
        return of

    def done_by(self, by: str, window: Window | None = None) -> Iterator[int]:
        """The actions that a person can undo wherever they were done, or in a window; the last one first."""
        own = reversed(self._done.get(by, ()))
        if window is None:
            return own
        before = (seq for seq in own if seq <= window.opened)
        here = reversed(self._done_in.get(window.name, ()))
        return heapq.merge(here, before, key=lambda seq: -self._since[seq])

    def undone_by(self, by: str, window: Window | None = None) -> Iterator[int]:
        """The actions that a person has undone, the last one first, where they have done nothing else since."""
        acted = self._acted.get(by, {})
        own = reversed(self._undoings.get(by, ()))
        if window is None:
            last = max(acted.values(), default=0)
            return (undoing.action.of for undoing in own if undoing.seq > last)
        before = (undoing for undoing in own if undoing.seq <= window.opened)
        here = reversed(self._undoings_in.get(window.name, ()))
        last = self._acted_in.get(window.name, 0)
        return (
            undoing.action.of
            for undoing in heapq.merge(here, before, key=lambda undoing: -undoing.seq)
            if undoing.seq > max(last, acted.get(undoing.window, 0))
        )
