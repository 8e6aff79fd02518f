"""A simulated curator who reviews a run by the actions of `shoal review`, from the truth.

What counts as an action:

    an image that is picked                         1 (neighbors in the grid by their two ends: 2)
    a command, with the name or number it asks for  1
    a yes or no                                     1

Looking is free. Where every image of a view has to move, none has to be picked: a command takes the
one in focus, and the next is there. So is labeling one image at a time: an action for each.

The curator first does what sets many images right at once (merge, split, grow), then gathers
scattered images of a class among those similar to it, then goes through each category, and names
and confirms it in the end.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.clustering.matching import match
from shoal.review import verbs
from shoal.review.actions import CONFIRMED, MOVED, NO_CATEGORY
from shoal.review.review import Review
from shoal.runs import Run
from shoal.server.search import Search

SHOWN = 12
"""Images that grow shows for one yes or no."""
SEEN = 100
"""Similar images that fit on a screen."""
MAX_PARTS = 6
FEW = 0.2
"""Share of wrong images up to which they are rejected before training learns from a category."""
MIN_GROWN = 6
MIN_GATHERED = 3
"""Images from which on it is worth to grow a category, or to gather a class."""


@dataclass
class Curve:
    """Shares of images right and checked after so many actions."""

    actions: list[int] = field(default_factory=list)
    right: list[float] = field(default_factory=list)
    checked: list[float] = field(default_factory=list)

    def add(self, actions: int, right: float, checked: float) -> None:
        """Note where that many actions have led."""
        self.actions.append(actions)
        self.right.append(right)
        self.checked.append(checked)

    def until(self, goal: float, what: str) -> int | None:
        """The first number of actions with a share of at least `goal`."""
        return next(
            (
                n
                for n, share in zip(self.actions, getattr(self, what), strict=True)
                if share >= goal
            ),
            None,
        )


def is_right(truth: Ints, categories: Ints) -> Any:
    """(N,) which images are in the category that is matched to their class."""
    rows = categories >= 0
    found = match(truth[rows], categories[rows])
    class_of = np.full(int(categories.max()) + 2, -1)  # the last one for images without a category
    class_of[found.clusters.astype(np.int64)] = found.classes
    return class_of[categories] == truth


def share_right(truth: Ints, categories: Ints) -> float:
    """The share of images that are right."""
    return float(is_right(truth, categories).mean())


class Curator:
    """One person at work on one run."""

    def __init__(
        self, run: Run, truth: Ints, is_given: Any, curve: Curve, n_actions: int = 0
    ) -> None:
        self.review = Review(run)
        self.search = Search(self.review)
        self.truth = truth
        self.is_given = is_given
        self.curve = curve
        self.n = n_actions
        self.home = self._homes()
        """By class the category that is this class."""

    @property
    def state(self) -> Any:
        """The review as it stands."""
        return self.review.state

    @property
    def categories(self) -> Ints:
        """(N,) the category of every image now."""
        found: Ints = self.state.images.category
        return found

    @property
    def is_told(self) -> Any:
        """(N,) which images a person has decided on."""
        return np.isin(self.state.images.status, (CONFIRMED, MOVED))

    @property
    def is_misplaced(self) -> Any:
        """(N,) which images are not in the category of their class, and nobody has decided on."""
        return self._is_astray() & ~self.is_told

    def _homes(self) -> dict[int, int]:
        """By class the category with most of its images; checked images are counted first."""
        home: dict[int, int] = {}
        checked = self.is_told | self.is_given
        for rows in (np.flatnonzero(checked), np.arange(len(self.truth))):
            rows = rows[self.categories[rows] >= 0]
            pairs = Counter(
                zip(self.truth[rows].tolist(), self.categories[rows].tolist(), strict=True)
            )
            for own, number in (pair for pair, _ in pairs.most_common()):
                if own not in home and number not in home.values():
                    home[own] = number
        return home

    def did(self, n: int) -> None:
        """Count some actions and look where that leads."""
        self.n += n
        checked = (self.is_told | self.is_given) & ~self._is_astray()
        self.curve.add(self.n, share_right(self.truth, self.categories), float(checked.mean()))

    def _is_astray(self) -> Any:
        home = np.full(int(self.truth.max()) + 1, NO_CATEGORY - 1)
        home[[*self.home]] = [*self.home.values()]
        return self.categories != home[self.truth]

    def paths(self, rows: Ints) -> list[str]:
        """Images as verbs take them."""
        return [self.review.state.paths[row] for row in rows.tolist()]

    def put(self, rows: Ints, own: int) -> None:
        """Move images to the category of a class, which is made where there is none."""
        verbs.move(self.review, self.paths(rows), self.home.get(own, f"class {own}"), by="curator")
        if own not in self.home:
            self.home[own] = self.state.find(f"class {own}")

    # What sets many images right at once.

    def join_and_part(self) -> None:
        """Merge what is one class, part what is two, grow what has more candidates."""
        for number in self._by_size():
            self.part(number)
        for number in self._by_size():
            self.join(number)
        for own in sorted(self.home):
            self.grow(own)

    def _by_size(self) -> list[int]:
        """The categories with undecided images, those with most first."""
        sizes = Counter(
            self.categories[~self.is_told & ~self.is_given & (self.categories >= 0)].tolist()
        )
        return sorted(sizes, key=lambda number: (-sizes[number], number))

    def _class_of(self, number: int) -> int | None:
        return next((own for own, home in self.home.items() if home == number), None)

    def join(self, number: int) -> None:
        """Merge a category into that of the class that most of it is."""
        if self._class_of(number) is not None:
            return
        rows = np.flatnonzero(self.categories == number)
        own, n_own = Counter(self.truth[rows].tolist()).most_common(1)[0]
        if own not in self.home:
            self.home[own] = number
        elif 2 * n_own > len(rows) and n_own > 1:
            verbs.merge(self.review, [self.home[own], number], by="curator")
            self.did(1)

    def part(self, number: int) -> None:
        """Split a category where that sets more images right than it takes actions."""
        own = self._class_of(number)
        rows = np.flatnonzero(self.categories == number)
        if own is None or len(rows) < 6 or np.count_nonzero(self.truth[rows] != own) < MIN_GATHERED:
            return
        worth = {n: self._worth(number, own, n) for n in range(2, min(MAX_PARTS, len(rows)) + 1)}
        n = max(worth, key=lambda one: (worth[one], -one))
        if worth[n] < 2:
            return
        before = set(self.state.categories)
        verbs.split(self.review, number, n, by="curator")
        self.did(2)  # the command, and the slider
        for new in sorted(set(self.state.categories) - before):
            self.join(new)

    def _worth(self, number: int, own: int, n: int) -> int:
        """Images that a split would set right, less those it would set wrong, less the actions."""
        first, *others = [np.array(part) for part in self.search.parts(number, n)["parts"]]
        gain = 0
        cost = 2
        if Counter(self.truth[first].tolist()).most_common(1)[0][0] != own:
            return -1
        for part in others:
            main, n_main = Counter(self.truth[part].tolist()).most_common(1)[0]
            if main == own:
                return -1
            gain += (n_main if 2 * n_main > len(part) or main not in self.home else 0) - int(
                (self.truth[part] == own).sum()
            )
            cost += main in self.home
        return gain - cost

    def grow(self, own: int) -> None:
        """Where the first candidates belong, find by yes and no how many more do."""
        if not np.any(self.categories == self.home[own]):
            return
        rows = np.array(self.search.candidates(self.home[own])["rows"], dtype=np.int64)
        belongs = self.truth[rows] == own
        if len(rows) < MIN_GROWN or not belongs[:MIN_GROWN].all():
            return
        # the command, and Enter in the end
        low = 0
        high = len(rows)
        step = SHOWN
        n = 2
        while high - low > 1 and low < len(rows):
            at = min(low + step, len(rows)) if high == len(rows) else low + -(-(high - low) // 2)
            n += 1
            if belongs[max(low, at - SHOWN) : at].all():
                low = at
                step = 2 * step
            else:
                high = at
        if low:
            self.put(rows[:low], own)
        self.did(n)

    # What sets single images right.

    def gather(self) -> None:
        """Pick and move misplaced images among similar ones, classes with most of them first."""
        while True:
            misplaced = Counter(self.truth[self.is_misplaced].tolist())
            tried = [own for own, n in misplaced.most_common() if n >= MIN_GATHERED]
            if not any([self._gather(own) for own in tried]):
                return

    def _gather(self, own: int) -> bool:
        rows = np.flatnonzero(self.truth == own)
        there = rows[self.categories[rows] == self.home.get(own, NO_CATEGORY - 1)]
        near = np.array(self.search.similar(int((there if len(there) else rows)[0]))["rows"][:SEEN])
        chosen = near[(self.truth[near] == own) & self.is_misplaced[near]]
        if len(chosen) < MIN_GATHERED:
            return False
        self.put(chosen, own)
        self.did(1 + n_picks(np.flatnonzero(np.isin(near, chosen))) + 1)
        return True

    def tidy(self) -> None:
        """Move what is wrong, category by category, the most wrong for an action first."""
        done: set[int] = set()
        while True:
            costs = {c: self._cost(c) for c in [*self._by_size(), NO_CATEGORY] if c not in done}
            worth = {c: n_wrong / cost for c, (n_wrong, cost, _) in costs.items() if n_wrong}
            if not worth:
                return
            number = max(worth, key=lambda c: (worth[c], -c))
            done.add(number)
            self._tidy(number, is_walk=costs[number][2])

    def _open(self, number: int) -> Ints:
        """The undecided images of a category, least typical first."""
        is_open = (self.categories == number) & ~self.is_told & (~self.is_given | self.is_misplaced)
        order = self.review.state.typical_order[::-1]
        found: Ints = order[is_open[order]]
        return found

    def _cost(self, number: int) -> tuple[int, int, bool]:
        """Wrong images, actions, and whether going from one to the next is cheaper than picking."""
        rows = self._open(number)
        wrong = rows[self.is_misplaced[rows]]
        picking = sum(
            n_picks(np.flatnonzero(np.isin(rows, group))) + 1 for group in self._groups(wrong)
        )
        return len(wrong), min(picking, len(rows)), len(rows) <= picking

    def _groups(self, rows: Ints) -> list[Ints]:
        """By class, the largest first."""
        return [
            rows[self.truth[rows] == own]
            for own, _ in Counter(self.truth[rows].tolist()).most_common()
        ]

    def _tidy(self, number: int, *, is_walk: bool) -> None:
        rows = self._open(number)
        for group in self._groups(rows[self.is_misplaced[rows]]):
            self.put(group, int(self.truth[group[0]]))
            self.did(len(group) if is_walk else n_picks(np.flatnonzero(np.isin(rows, group))) + 1)
        if is_walk:
            self.did(
                int((self.categories[rows] == number).sum())
            )  # an arrow key past each that is right

    def sign_off(self, most_wrong: float = 0.0) -> None:
        """Confirm and name each category; wrong images are rejected where they are few."""
        for number in self._by_size():
            rows = self._open(number)
            own = self._class_of(number)
            wrong = rows[self.is_misplaced[rows]]
            if own is None or len(rows) == len(wrong) or len(wrong) > most_wrong * len(rows):
                continue
            if len(wrong):
                verbs.decide(self.review, "reject", None, self.paths(wrong), by="curator")
                self.did(n_picks(np.flatnonzero(np.isin(rows, wrong))) + 1)
            verbs.decide(
                self.review, "confirm", None, self.paths(np.setdiff1d(rows, wrong)), by="curator"
            )
            self.did(1)
            record = self.state.categories[number]
            if record.is_novel and not record.is_named:
                verbs.rename(self.review, number, f"class {own}", by="curator")
                self.did(1)

    def begin(self) -> None:
        """What is worth doing before the machine learns from it: few actions that say much."""
        self.join_and_part()
        self.sign_off(FEW)

    def finish(self) -> None:
        """All of it, until a person has checked every image."""
        self.join_and_part()
        self.gather()
        self.tidy()
        self.sign_off()


def n_picks(places: Ints) -> int:
    """Clicks that select images at these places of a grid: neighbors by their two ends."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return sum(min(len(run), 2) for run in runs if len(run))
