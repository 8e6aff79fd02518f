"""The gallery: a card per category, with its most and least typical images."""

from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from shoal.arrays import Ints
from shoal.report.snapshot import NO_CATEGORY, Snapshot
from shoal.runs import Category

STRIP = 6
"""Most typical images on a card, and as many least typical ones."""

MAX_CARDS = 600
"""The largest categories that get a card; a page with thousands of them helps nobody."""


@dataclass(frozen=True, slots=True)
class Card:
    """One category: what is known of it, and the rows of the images that show it."""

    category: Category
    typical: tuple[int, ...]
    """Most typical first."""
    least: tuple[int, ...]
    """Least typical first; empty where `typical` already holds every image."""
    nearest: int | None = None
    """The most typical image of the nearest known category; None where there is none but itself."""

    @property
    def is_whole(self) -> bool:
        """Whether the card shows every image of its category."""
        return len(self.typical) + len(self.least) == self.category.size

    @property
    def rows(self) -> tuple[int, ...]:
        """All rows on the card, the most needed first: most and least typical in turn."""
        pairs = chain.from_iterable(zip_longest(self.typical, self.least))
        return tuple(row for row in pairs if row is not None)


def cards(run: Snapshot) -> list[Card]:
    """A card per category, largest first, at most `MAX_CARDS`.

    Images without a category get one at the end.
    """
    first = {
        c.category: int(run.members[c.category_id][0])
        for c in run.categories
        if c.category_id in run.members
    }
    ordered = sorted(run.categories, key=lambda category: (-category.size, category.category))[
        :MAX_CARDS
    ]
    own_cards = [_card(run, category, first) for category in ordered]
    return [*own_cards, *_possibly_new(run)]


def priority(cards: list[Card]) -> list[int]:
    """The rows of all cards in the order in which thumbnails should be spent: one per card, then a second, …"""
    rounds = zip_longest(*(card.rows for card in cards))
    return [row for row in chain.from_iterable(rounds) if row is not None]


def _card(run: Snapshot, category: Category, first: dict[str, int]) -> Card:
    rows = run.members.get(category.category_id, np.zeros(0, dtype=np.int64))
    typical, least = _ends(rows)
    nearest = (
        first.get(category.nearest_known) if category.nearest_known != category.category else None
    )
    return Card(category, typical, least, nearest)


def _ends(rows: Ints) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two ends of a typicality order, which never overlap."""
    ordered = rows.tolist()
    return tuple(ordered[:STRIP]), tuple(ordered[max(STRIP, len(ordered) - STRIP) :][::-1])


def _possibly_new(run: Snapshot) -> list[Card]:
    rows = run.members.get(NO_CATEGORY)
    if rows is None:
        return []
    confidence = float(np.asarray(run.column("confidence"))[rows].mean())
    category = Category(
        category_id=NO_CATEGORY,
        category="possibly new",
        is_novel=True,
        size=len(rows),
        n_labeled=int(run.is_labeled[rows].sum()),
        confidence=confidence,
    )
    return [Card(category, *_ends(rows))]
