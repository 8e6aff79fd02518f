"""The gallery: a card per category, with its most and least typical images."""

from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from shoal.review.actions import NO_CATEGORY
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Category

STRIP = 6
"""Most typical images on a card, and as many least typical ones."""

MAX_CARDS = 600
"""The largest categories that get a card; a page with thousands of them helps nobody."""


@dataclass(frozen=True, slots=True)
class Card:
    """One category: what is known of it, and the rows of the images that show it."""

    category: Category
    typical: list[int]
    """Most typical first."""
    least: list[int]
    """Least typical first; empty where `typical` already holds every image."""
    nearest: int | None
    """The most typical image of the nearest known category; None where there is none but itself."""


def cards(run: ReviewedRun) -> list[Card]:
    """A card per category, largest first, at most `MAX_CARDS`.

    Images without a category get one at the end.
    """
    ordered = sorted(run.categories, key=lambda one: (-one.size, one.category))[:MAX_CARDS]
    if NO_CATEGORY in run.members:
        ordered.append(_possibly_new(run))
    first = {
        one.category: int(run.members[one.category_id][0])
        for one in run.categories
        if one.category_id in run.members
    }
    made = []
    for one in ordered:
        rows = run.members.get(one.category_id, np.zeros(0, np.int64)).tolist()
        least = rows[max(STRIP, len(rows) - STRIP) :][::-1]
        nearest = None
        if one.nearest_known != one.category:
            nearest = first.get(one.nearest_known)
        made.append(Card(one, rows[:STRIP], least, nearest))
    return made


def priority(cards: list[Card]) -> list[int]:
    """The rows of all cards in the order in which thumbnails should be spent.

    One per card, then a second, …; of each card most and least typical ones in turn.
    """
    by_card = [
        [row for row in chain(*zip_longest(card.typical, card.least)) if row is not None]
        for card in cards
    ]
    return [row for row in chain(*zip_longest(*by_card)) if row is not None]


def _possibly_new(run: ReviewedRun) -> Category:
    rows = run.members[NO_CATEGORY]
    return Category(
        category_id=NO_CATEGORY,
        category="possibly new",
        is_novel=True,
        size=len(rows),
        n_labeled=int(run.is_labeled[rows].sum()),
        confidence=float(np.asarray(run.column("confidence"))[rows].mean()),
    )
