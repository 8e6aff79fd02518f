"""The gallery: a card per category, with its most and least typical images."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import NO_CATEGORY, Category

STRIP = 6
"""Most typical images on a card, and as many least typical ones."""

MAX_CARDS = 600
"""Maximum number of cards; the largest categories get one."""


@dataclass(frozen=True)
class Card:
    """One category and the rows of the images on its card."""

    category: Category
    typical: list[int]
    """Most typical first."""
    least: list[int]
    """Least typical first; empty if `typical` already holds every image."""
    nearest: int | None
    """The most typical image of the nearest other known category; None if there is none."""


def cards(run: ReviewedRun) -> list[Card]:
    """Return a card per category, largest first, and one for images without a category."""
    ordered = sorted(run.categories, key=lambda c: (-c.size, c.category))[:MAX_CARDS]
    if NO_CATEGORY in run.members:
        ordered.append(_no_category(run))
    first = {
        category.category: int(run.members[category.category_id][0])
        for category in run.categories
        if category.category_id in run.members
    }
    made = []
    for category in ordered:
        rows = run.members.get(category.category_id, np.zeros(0, np.int64)).tolist()
        nearest = first.get(category.nearest_known)
        made.append(Card(category, rows[:STRIP], rows[STRIP:][::-1][:STRIP], nearest))
    return made


def priority(cards: list[Card]) -> list[int]:
    """Return the rows of all cards in the order in which they get thumbnails.

    One per card, then a second one and so on, alternating most and least typical images.
    """
    return _in_turn(_in_turn((card.typical, card.least)) for card in cards)


def _in_turn(lists: Iterable[list[int]]) -> list[int]:
    """Return the first number of each list, then the second ones, and so on."""
    return [row for row in chain(*zip_longest(*lists)) if row is not None]


def _no_category(run: ReviewedRun) -> Category:
    rows = run.members[NO_CATEGORY]
    return Category(
        category_id=NO_CATEGORY,
        category="no category",
        is_novel=True,
        size=len(rows),
        n_labeled=int(run.is_labeled[rows].sum()),
        confidence=float(np.asarray(run.column("confidence"))[rows].mean()),
    )
