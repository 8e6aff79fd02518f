"""A simulated curator who reviews a run with the actions of `shoal review`, by true classes.

Actions:

    selecting an image                              1 (a range of neighbors: 2)
    accepting or refusing a candidate, or the rest  1
    a command, with its name or number              1
    a yes or no                                     1

Looking is free. If every image of a view has to move, none has to be selected: a command applies to
the focused image, and the next one gets the focus. The same holds for labeling one image at a time.

The curator first corrects many images at once (merge, split, grow), then moves misplaced images of
a class that are similar to others of it, then goes through each category, and finally names and
confirms it.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.arrays import Ints
from shoal.clustering.matching import match
from shoal.review import verbs
from shoal.review.actions import CONFIRMED, MOVED, Action, Group
from shoal.review.review import Review
from shoal.runs import NO_CATEGORY, Run
from shoal.server.search import Search

# Candidates on a page of `grow`
CANDIDATES_SHOWN = 24
# Similar images on a screen
SIMILAR_SHOWN = 100
MAX_PARTS = 6
# Before training, wrong images of a category are rejected if their share is at most this
MAX_WRONG_SHARE = 0.2
# Fewest images for which gathering a class pays off
MIN_GATHERED = 3


@dataclass
class Curve:
    """Shares of correct and of checked images by the number of actions."""

    actions: list[int] = field(default_factory=list)
    correct: list[float] = field(default_factory=list)
    checked: list[float] = field(default_factory=list)

    def add(self, actions: int, correct: float, checked: float) -> None:
        """Record the shares after a number of actions."""
        self.actions.append(actions)
        self.correct.append(correct)
        self.checked.append(checked)

    def until(self, goal: float, what: str) -> int | None:
        """Return the first number of actions with a share of at least `goal`."""
        return next(
            (
                n
                for n, share in zip(self.actions, getattr(self, what), strict=True)
                if share >= goal
            ),
            None,
        )


def is_correct(truth: Ints, categories: Ints) -> Any:
    """Return (N,) which images are in the category that is matched to their class."""
    rows = categories >= 0
    matched, classes = match(truth[rows], categories[rows])
    class_of = np.full(int(categories.max()) + 2, -1)  # the last one for images without a category
    class_of[matched.astype(np.int64)] = classes
    return class_of[categories] == truth


def share_correct(truth: Ints, categories: Ints) -> float:
    """Return the share of images that are correct."""
    return float(is_correct(truth, categories).mean())


class Curator:
    """One person who reviews one run."""

    def __init__(
        self, run: Run, truth: Ints, is_given: Any, curve: Curve, n_actions: int = 0
    ) -> None:
        self.review = Review(run)
        self.search = Search(self.review)
        self.truth = truth
        self.is_given = is_given
        self.curve = curve
        self.n = n_actions
        self.category_of = self._match_classes()
        """The category of each class."""

    @property
    def state(self) -> Any:
        """The current state of the review."""
        return self.review.state

    @property
    def categories(self) -> Ints:
        """(N,) the current category of every image."""
        found: Ints = self.state.category
        return found

    @property
    def is_decided(self) -> Any:
        """(N,) which images a person has decided on."""
        return np.isin(self.state.status, (CONFIRMED, MOVED))

    @property
    def is_misplaced(self) -> Any:
        """(N,) which undecided images are not in the category of their class."""
        return self._is_wrong() & ~self.is_decided

    def _match_classes(self) -> dict[int, int]:
        """Return the category with most images of each class; checked images count first."""
        category_of: dict[int, int] = {}
        checked = self.is_decided | self.is_given
        for rows in (np.flatnonzero(checked), np.arange(len(self.truth))):
            rows = rows[self.categories[rows] >= 0]
            pairs = Counter(
                zip(self.truth[rows].tolist(), self.categories[rows].tolist(), strict=True)
            )
            for label, number in (pair for pair, _ in pairs.most_common()):
                if label not in category_of and number not in category_of.values():
                    category_of[label] = number
        return category_of

    def count_actions(self, n: int) -> None:
        """Count some actions, and record the shares."""
        self.n += n
        checked = (self.is_decided | self.is_given) & ~self._is_wrong()
        self.curve.add(self.n, share_correct(self.truth, self.categories), float(checked.mean()))

    def _is_wrong(self) -> Any:
        category_of = np.full(int(self.truth.max()) + 1, NO_CATEGORY - 1)
        category_of[[*self.category_of]] = [*self.category_of.values()]
        return self.categories != category_of[self.truth]

    def paths(self, rows: Ints) -> list[str]:
        """Return images as the review functions take them."""
        return [self.review.state.paths[row] for row in rows.tolist()]

    def move(self, rows: Ints, label: int) -> None:
        """Move images to the category of a class, which is created if there is none."""
        target = self.category_of.get(label, f"class {label}")
        self.review.act(verbs.move, self.paths(rows), target, by="curator")
        if label not in self.category_of:
            self.category_of[label] = self.state.find(f"class {label}")

    # Actions that correct many images at once.

    def merge_and_split(self) -> None:
        """Split mixed categories, merge those of one class, and grow those with candidates."""
        for number in self._by_size():
            self.split(number)
        for number in self._by_size():
            self.merge(number)
        for label in sorted(self.category_of):
            self.grow(label)

    def _by_size(self) -> list[int]:
        """Return the categories with undecided images, most first."""
        sizes = Counter(
            self.categories[~self.is_decided & ~self.is_given & (self.categories >= 0)].tolist()
        )
        return sorted(sizes, key=lambda number: (-sizes[number], number))

    def _class_of(self, number: int) -> int | None:
        return next((label for label, home in self.category_of.items() if home == number), None)

    def merge(self, number: int) -> None:
        """Merge a category into that of its most frequent class."""
        if self._class_of(number) is not None:
            return
        rows = np.flatnonzero(self.categories == number)
        label, n_label = Counter(self.truth[rows].tolist()).most_common(1)[0]
        if label not in self.category_of:
            self.category_of[label] = number
        elif 2 * n_label > len(rows) and n_label > 1:
            self.review.act(verbs.merge, [self.category_of[label], number], by="curator")
            self.count_actions(1)

    def split(self, number: int) -> None:
        """Split a category if that corrects more images than it takes actions."""
        label = self._class_of(number)
        rows = np.flatnonzero(self.categories == number)
        n_wrong = np.count_nonzero(self.truth[rows] != label)
        if label is None or len(rows) < 6 or n_wrong < MIN_GATHERED:
            return
        worth = {n: self._worth(number, label, n) for n in range(2, min(MAX_PARTS, len(rows)) + 1)}
        n = max(worth, key=lambda n_parts: (worth[n_parts], -n_parts))
        if worth[n] < 2:
            return
        before = set(self.state.categories)
        self.review.act(verbs.split, number, n, by="curator")
        self.count_actions(2)  # the command, and the slider
        for new in sorted(set(self.state.categories) - before):
            self.merge(new)

    def _worth(self, number: int, label: int, n: int) -> int:
        """Return the images a split corrects, minus those it makes wrong, minus its actions."""
        first, *others = [np.array(part) for part in self.search.parts(number, n)["parts"]]
        gain = 0
        cost = 2
        if Counter(self.truth[first].tolist()).most_common(1)[0][0] != label:
            return -1
        for part in others:
            main, n_main = Counter(self.truth[part].tolist()).most_common(1)[0]
            if main == label:
                return -1
            # A part of a class without a category becomes its category; others are merged.
            is_new = main not in self.category_of
            if is_new or 2 * n_main > len(part):
                gain += n_main
            gain -= int((self.truth[part] == label).sum())
            cost += not is_new
        return gain - cost

    def grow(self, label: int) -> None:
        """Go through pages of candidates while accepting the rest of a page saves actions."""
        if not np.any(self.categories == self.category_of[label]):
            return
        n = 2  # the command, and the key that closes the dialog
        while True:
            page = self._page(label)
            belongs = self.truth[page] == label
            n_refused = int(np.count_nonzero(~belongs))
            if np.count_nonzero(belongs) <= n_refused + n:
                return
            self._decide_page(label, page)
            self.count_actions(n + n_refused + 1)
            n = 0

    def _page(self, label: int) -> Ints:
        """Return the first page of candidates for the category of a class."""
        found = self.search.candidates(self.category_of[label])["rows"][:CANDIDATES_SHOWN]
        return np.array(found, dtype=np.int64)

    def _decide_page(self, label: int, page: Ints) -> None:
        """Move the candidates that belong to a class, and refuse the others."""
        belongs = self.truth[page] == label
        if belongs.any():
            self.move(page[belongs], label)
        if not belongs.all():
            category = self.category_of[label]
            group = Group(category=category, rows=page[~belongs])
            refused = Action(kind="refuse", category=category, groups=(group,))
            self.review.act(lambda _: refused, by="curator")

    # Actions that correct single images.

    def gather(self) -> None:
        """Move misplaced images found by growing or among similar ones, most of a class first."""
        while True:
            misplaced = Counter(self.truth[self.is_misplaced].tolist())
            tried = [label for label, n in misplaced.most_common() if n >= MIN_GATHERED]
            if not any([self._gather(label) for label in tried]):
                return

    def _gather(self, label: int) -> bool:
        """Take the cheaper one per image: a page of candidates, or a screen of similar images."""
        rows = np.flatnonzero(self.truth == label)
        there = rows[self.categories[rows] == self.category_of.get(label, NO_CATEGORY - 1)]
        query = there[0] if len(there) else rows[0]
        near = np.array(self.search.similar(int(query))["rows"][:SIMILAR_SHOWN])
        chosen = near[(self.truth[near] == label) & self.is_misplaced[near]]
        cost = 1 + n_picks(np.flatnonzero(np.isin(near, chosen))) + 1
        if len(there):
            page = self._page(label)
            n_found = np.count_nonzero(self.truth[page] == label)
            page_cost = 2 + min(int(n_found), len(page) - int(n_found))
            if n_found >= MIN_GATHERED and n_found * cost > len(chosen) * page_cost:
                self._decide_page(label, page)
                self.count_actions(page_cost)
                return True
        if len(chosen) < MIN_GATHERED:
            return False
        self.move(chosen, label)
        self.count_actions(cost)
        return True

    def tidy(self) -> None:
        """Move wrong images, category by category, most wrong images per action first."""
        done: set[int] = set()
        while True:
            costs = {c: self._cost(c) for c in [*self._by_size(), NO_CATEGORY] if c not in done}
            worth = {c: n_wrong / cost for c, (n_wrong, cost, _) in costs.items() if n_wrong}
            if not worth:
                return
            number = max(worth, key=lambda c: (worth[c], -c))
            done.add(number)
            self.tidy_category(number, is_one_by_one=costs[number][2])

    def _open(self, number: int) -> Ints:
        """Return the undecided images of a category, least typical first."""
        is_open = (self.categories == number) & ~self.is_decided
        is_open &= ~self.is_given | self.is_misplaced
        order = self.review.state.typical_order[::-1]
        found: Ints = order[is_open[order]]
        return found

    def _cost(self, number: int) -> tuple[int, int, bool]:
        """Return the number of wrong images, the actions to correct them, and whether going
        through all images one by one is cheaper than selecting."""
        rows = self._open(number)
        wrong = rows[self.is_misplaced[rows]]
        picking = sum(
            n_picks(np.flatnonzero(np.isin(rows, group))) + 1 for group in self._groups(wrong)
        )
        return len(wrong), min(picking, len(rows)), len(rows) <= picking

    def _groups(self, rows: Ints) -> list[Ints]:
        """Return images by class, the largest class first."""
        return [
            rows[self.truth[rows] == label]
            for label, _ in Counter(self.truth[rows].tolist()).most_common()
        ]

    def tidy_category(self, number: int, *, is_one_by_one: bool) -> None:
        """Move the wrong images of a category to those of their classes."""
        rows = self._open(number)
        for group in self._groups(rows[self.is_misplaced[rows]]):
            self.move(group, int(self.truth[group[0]]))
            n = len(group)
            if not is_one_by_one:
                n = n_picks(np.flatnonzero(np.isin(rows, group))) + 1
            self.count_actions(n)
        if is_one_by_one:
            # An arrow key past each correct image.
            self.count_actions(int((self.categories[rows] == number).sum()))

    def sign_off(self, most_wrong: float = 0.0) -> None:
        """Confirm and name each category; reject its wrong images if they are few."""
        for number in self._by_size():
            rows = self._open(number)
            label = self._class_of(number)
            wrong = rows[self.is_misplaced[rows]]
            if label is None or len(rows) == len(wrong) or len(wrong) > most_wrong * len(rows):
                continue
            if len(wrong):
                self.review.act(verbs.decide, "reject", None, self.paths(wrong), by="curator")
                self.count_actions(n_picks(np.flatnonzero(np.isin(rows, wrong))) + 1)
            self.review.act(
                verbs.decide, "confirm", None, self.paths(np.setdiff1d(rows, wrong)), by="curator"
            )
            self.count_actions(1)
            record = self.state.categories[number]
            if record.is_novel and not record.is_named:
                self.review.act(verbs.rename, number, f"class {label}", by="curator")
                self.count_actions(1)

    def begin(self) -> None:
        """Do the few actions that correct the most images, before training."""
        self.merge_and_split()
        self.sign_off(MAX_WRONG_SHARE)

    def finish(self) -> None:
        """Review until every image is checked."""
        self.merge_and_split()
        self.gather()
        self.tidy()
        self.sign_off()


def n_picks(places: Ints) -> int:
    """Return the clicks that select images in a grid: a range takes two."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return sum(min(len(run), 2) for run in runs if len(run))
