"""Which category of a new answer each one of an old answer is, for a review that is done again on it.

Known categories are found by their name, and so is a novel one by the name that a person gave it, where labels gave the
new answer that name. Other novel ones are found by their exemplars: the category in which most of those are now, unless
that is another one's, or is known by another name than a person gave. One that a person named and that is not found is
made anew with its name for the images that people put or confirmed there.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.errors import UsageError
from shoal.review.actions import NO_CATEGORY, Action, Group, checked_name
from shoal.review.state import State


@dataclass
class Replay:
    """The new state as it grows, and how old categories are called in it."""

    state: State
    ids: dict[int, int] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    within: dict[int, int] = field(default_factory=dict)
    """Lost categories whose images are in one that is another old one: there they cannot be told apart."""
    to_make: dict[int, str] = field(default_factory=dict)
    """Lost categories that are made anew when an action is about them, with the name that people gave them."""
    n_missing: int = 0
    """Images of an action that are not here."""
    elsewhere: list[str] = field(default_factory=list)
    """Images of a rejection that are not in its category here."""
    notes: list[str] = field(default_factory=list)
    """What else is not as it was: a name that the run has made up for another category; images of a split that stay."""
    decided: set[int] = field(default_factory=set)
    """Old categories to which people gave images that are here."""
    kept: frozenset[int] = frozenset()
    """Old categories that the new answer has with the name they have in the end."""

    def rows(self, paths: list[str]) -> Ints:
        """The rows of the images that are here; counts the others."""
        rows = [row for path in paths if (row := self.state.answer.row_of.get(path)) is not None]
        self.n_missing += len(paths) - len(rows)
        return np.array(rows, dtype=np.int64)

    def category(self, old: int) -> int:
        """The category that an old one is now."""
        if old in self.ids:
            return self.state.today(self.ids[old])
        where = (
            f"; its images are in {self.state.records[self.current_category(old)].name} here"
            if old in self.within
            else ""
        )
        raise UsageError(
            f"there is no category for {self.lost.get(old, f'category {old}')} any more{where}"
        )

    def renamed(self, old: int, name: str) -> int:
        """The category that an old one is now, of a rename; one that is lost is told of by its new name later on."""
        try:
            return self.category(old)
        except UsageError:
            self.lost[old] = str(name)
            raise

    def current_category(self, old: int) -> int:
        """The category in which the images of an old one are now."""
        return self.state.today(self.within[old]) if old in self.within else self.category(old)

    def called(self, name: str) -> int | None:
        """The category of this name, from labels or people; that the run has made up the same name means nothing."""
        category = self.state.find(name)
        if category is None:
            return None
        record = self.state.records[category]
        return category if record.is_named or not record.is_novel else None

    def free_name(self, name: str) -> str:
        """A name for a new category: the wanted one unless another has it."""
        text = checked_name(name)
        if self.state.find(text) is None:
            return text
        free = self.state.free_name(text)
        self.notes.append(f"called {free} here, where another category has the name {text}")
        return free

    def make(self, line: Mapping[str, Any]) -> Iterator[Action]:
        """Make the categories anew that an action is about."""
        for old in _mentioned(line):
            if old in self.to_make:
                name = self.to_make.pop(old)
                name = line["name"] if line["action"] == "rename" else name
                new = self.ids[old] = self.state.next_id
                self.within.pop(old, None)
                none = np.zeros(0, np.int64)
                group = Group(category=new, rows=none)
                yield Action(
                    kind="create", category=new, name=self.free_name(name), groups=(group,)
                )


def find_categories(
    replay: Replay, categories: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]
) -> None:
    """Say which category of the new answer each of the old answer is; `lines` are the actions that count."""
    renames = [
        line
        for line in lines
        if line["action"] == "rename" and isinstance(line.get("category"), int)
    ]
    names = {line["category"]: str(line.get("name")) for line in renames}
    old = {int(category.get("category", NO_CATEGORY)): category for category in categories}
    replay.lost |= {
        number: str(category.get("name"))
        for number, category in old.items()
        if number not in replay.kept
    }
    if not replay.kept:
        _find_by_name(replay, old, names)
        _find_by_exemplars(replay, old, names)
    replay.decided = _decided(replay, lines)
    lost = [number for number in replay.lost if number not in replay.ids]
    replay.to_make = {
        number: names[number] for number in lost if number in names and number in replay.decided
    }


def _find_by_name(
    replay: Replay, old: Mapping[int, Mapping[str, Any]], names: Mapping[int, str]
) -> None:
    known = {c.category: c.category_id for c in replay.state.answer.categories if not c.is_novel}
    replay.ids |= {
        number: known[name] for number in old if (name := str(old[number].get("name"))) in known
    }
    for number in old:
        there = known.get(names.get(number, ""))
        if number not in replay.ids and there is not None and there not in replay.ids.values():
            replay.ids[number] = there


def _find_by_exemplars(
    replay: Replay, old: Mapping[int, Mapping[str, Any]], names: Mapping[int, str]
) -> None:
    # (votes, old category, new one)
    answer = replay.state.answer
    claims = []
    known = {c.category_id for c in answer.categories if not c.is_novel}
    for number, category in old.items():
        rows = [
            answer.row_of[path] for path in category.get("exemplars") or () if path in answer.row_of
        ]
        votes = Counter(int(answer.category_ids[row]) for row in rows)
        best, n_votes = votes.most_common(1)[0] if votes else (NO_CATEGORY, 0)
        if number not in replay.ids and best != NO_CATEGORY and 2 * n_votes > len(rows):
            claims.append((n_votes, number, best))
    for _, number, best in sorted(claims, key=lambda claim: -claim[0]):
        is_another = best in replay.ids.values() or (best in known and number in names)
        (replay.within if is_another else replay.ids)[number] = best


def _decided(replay: Replay, lines: Sequence[Mapping[str, Any]]) -> set[int]:
    """The old categories to which people gave images that are here."""
    return {category for line in lines for category in _given_images(replay, line)}


def _given_images(replay: Replay, line: Mapping[str, Any]) -> list[int]:
    here = replay.state.answer.row_of
    try:
        groups = (
            line["groups"]
            if line["action"] == "confirm"
            else [line]
            if line["action"] == "assign"
            else ()
        )
        return [
            int(group["category"])
            for group in groups
            if any(path in here for path in group["images"])
        ]
    except (KeyError, TypeError, ValueError):  # told of when it is its turn
        return []


def _mentioned(line: Mapping[str, Any]) -> list[int]:
    """The categories that an action gives images or a name."""
    kind = line["action"]
    if kind in ("rename", "assign"):
        return [line["category"]]
    if kind == "merge":
        return [*line["categories"], line["into"]]
    return [group["category"] for group in line["groups"]] if kind == "confirm" else []
