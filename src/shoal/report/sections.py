"""What the sections of the page say, as plain values for its template."""

from typing import Any

from shoal.report.contents import ImageTiles
from shoal.report.gallery import STRIP, Card
from shoal.report.map import MapLayout
from shoal.report.snapshot import Snapshot
from shoal.report.suggested_splits import Split, split_words
from shoal.report.suggestions import MOST_COMPARED, Merge, SuspiciousLabel
from shoal.runs import MIXED_FROM, Category
from shoal.text import shown
from shoal.words import count, number, percent


def card(content: Card, tiles: ImageTiles) -> dict[str, Any]:
    """A card of the gallery."""
    category = content.category
    return {
        "card": content,
        "name": shown(category.category),
        "kind": _kind(category),
        "size": count(category.size, "image"),
        "confidence": category.confidence,
        "may_hold_another": category.mixed_probability >= MIXED_FROM,
        "nearest": shown(category.nearest_known)
        if category.nearest_known != category.category
        else "",
        "similarity": number(category.nearest_known_similarity),
        "nearest_tile": None if content.nearest is None else tiles[content.nearest],
        "typical": [tiles[row] for row in content.typical],
        "least": [tiles[row] for row in content.least],
    }


def merge(suggestion: Merge, run: Snapshot, tiles: ImageTiles) -> dict[str, Any]:
    """A suggested merge, both sides with their most typical images."""
    sides = [
        {
            "name": shown(category.category),
            "kind": _kind(category),
            "size": count(category.size, "image"),
            "tiles": [tiles[row] for row in most_typical(run, category)],
        }
        for category in (suggestion.novel, suggestion.other)
    ]
    return {
        "sides": sides,
        "separation": number(suggestion.separation),
        "looks_like_one": suggestion.looks_like_one,
        "second_choice": percent(suggestion.second_choice),
    }


def split(suggestion: Split, tiles: ImageTiles) -> dict[str, Any]:
    """A suggested split, each group with its most typical images."""
    category = suggestion.category
    groups = [
        {"size": count(len(rows), "image"), "tiles": [tiles[int(row)] for row in rows[:STRIP]]}
        for rows in suggestion.groups
    ]
    about = {
        "name": shown(category.category),
        "kind": _kind(category),
        "size": count(category.size, "image"),
    }
    return {
        **about,
        "groups": groups,
        "probability": percent(category.mixed_probability),
        "words": split_words(suggestion),
    }


def most_typical(run: Snapshot, category: Category) -> list[int]:
    """The rows that show a category, most typical first."""
    rows: list[int] = run.members[category.category_id][:STRIP].tolist()
    return rows


def suspicious(labels: list[SuspiciousLabel], tiles: ImageTiles) -> list[dict[str, Any]]:
    """The suspicious labels."""
    return [
        {
            "tile": tiles[label.row],
            "given": shown(label.given),
            "found": shown(label.found or "no category"),
            "certainty": number(label.certainty),
        }
        for label in labels
    ]


def map_note(run: Snapshot, layouts: list[MapLayout], with_thumbnail: set[int]) -> str:
    """Say what was sampled for the map."""
    said = []
    drawn: set[int] = set()
    for method in dict.fromkeys(layout.method for layout in layouts):
        rows = next(layout.rows for layout in layouts if layout.method == method)
        drawn |= set(rows.tolist())
        every = "all" if len(rows) == len(run.assignments) else f"a sample of {len(rows):,} of the"
        said.append(f"{method} draws {every} {count(len(run.assignments), 'image')}")
    pictured = len(drawn & with_thumbnail)
    if pictured < len(drawn):
        said.append(
            f"{pictured:,} of them have a thumbnail on this page"
            if pictured
            else "there are no thumbnails"
        )
    return f"{'; '.join(said)}." if said else ""


def compared_note(run: Snapshot) -> str:
    """Say what was sampled to compare categories; empty where nothing was."""
    if max(map(len, run.members.values()), default=0) <= MOST_COMPARED:
        return ""
    most = f"{MOST_COMPARED:,}"
    return f"Categories of more than {most} images are compared by {most} of them, from the most to the least typical."


def _kind(category: Category) -> str:
    return "novel" if category.is_novel else "known"
