"""The report: one HTML file that contains everything.

It shows a card per category with its most and least typical images, and gives its script the images
as columns and their positions on the map.
"""

import base64
import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TypeVar

import numpy as np

from shoal.errors import NotInRun, shown
from shoal.report import summary
from shoal.report.figures import FIGURES, inline_svg
from shoal.report.map import MapLayout, cached_layouts, pca_layouts
from shoal.report.rendering import data_uris, read_templates, render, tree_list
from shoal.report.summary import (
    MOST_COMPARED,
    suggested_merges,
    suggested_splits,
    suspicious_labels,
)
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import MIXED_FROM, NO_CATEGORY, RESULTS, Category, Run, column
from shoal.settings import Plain

# Map positions are integers from 0 to this; a step is a tenth of a pixel on a large screen
GRID = 9_999

# Most typical images on a card, and as many least typical ones
STRIP = 6

# Maximum number of cards; the largest categories get one
MAX_CARDS = 600

# Maximum bytes of thumbnails on cards and in lists
PAGE_BYTES = 12 << 20

# Maximum bytes of further thumbnails, for the map
MAP_BYTES = 10 << 20

MAX_SUSPICIOUS = 36

# The figures of the report
ON_PAGE = ("n_clusters_curve", "confidence_curve", "training_curves", "shift_accuracy")

Found = TypeVar("Found")


def columns(run: ReviewedRun, rows: list[int]) -> Plain:
    """Return some images as a list per column; names are positions in `names`."""
    images = [run.assignments[row] for row in rows]
    names: dict[str, int] = {}

    def named(key: str) -> list[int]:
        return [
            names.setdefault(shown(name), len(names)) if name else -1
            for name in column(images, key)
        ]

    def rounded(key: str) -> list[float | None]:
        return [round(value, 3) if math.isfinite(value) else None for value in column(images, key)]

    place_of = {category.category_id: at for at, category in enumerate(run.categories)}
    by_name = {
        "row": rows,
        "path": [shown(path) for path in column(images, "path")],
        "category": [place_of.get(number, -1) for number in column(images, "category_id")],
        "confidence": rounded("confidence"),
        "outlier": rounded("outlier_score"),
        "given": named("label_given"),
        "second": named("second_category"),
        "nearest": named("nearest_known"),
        "similarity": rounded("nearest_known_similarity"),
    }
    categories = [
        {
            "name": shown(c.category),
            "novel": c.is_novel,
            "size": c.size,
            "typical": int(run.members.get(c.category_id, [-1])[0]),
        }
        for c in run.categories
    ]
    # Links to originals work on the machine of the run, if the images are files and not in shards.
    root = Path(run.provenance.get("root") or "")
    is_linked = root.is_absolute() and root.suffix.lower() not in (".tar", ".parquet")
    link = root.as_uri() if is_linked else None
    return {"root": link, "names": list(names), "categories": categories, **by_name}


def map_points(layout: MapLayout, rows: list[int]) -> Plain:
    """Return the positions of images as integers, the longer side from 0 to 9999.

    -1 for an image that is not on this map.
    """
    span = np.ptp(layout.points, axis=0)
    scale = max(float(span.max()), 1e-12)
    points = (layout.points - layout.points.min(axis=0) + (scale - span) / 2) / scale * GRID
    points[:, 1] = GRID - points[:, 1]  # y points down on a page
    placed = np.full((len(rows), 2), -1)
    placed[np.searchsorted(np.asarray(rows), layout.rows)] = np.rint(points)
    x, y = placed.T.tolist()
    return {"method": layout.method, "title": layout.title, "x": x, "y": y}


@dataclass(frozen=True)
class Card:
    """One category and the rows of the images on its card."""

    category: Category
    # Most typical first
    typical: list[int]
    # Least typical first; empty if `typical` already holds every image
    least: list[int]
    # The most typical image of the nearest other known category; None if there is none
    nearest: int | None


def cards(run: ReviewedRun) -> list[Card]:
    """Return a card per category, largest first, and one for images without a category."""
    ordered = sorted(run.categories, key=lambda c: (-c.size, c.category))[:MAX_CARDS]
    if NO_CATEGORY in run.members:
        rows = run.members[NO_CATEGORY]
        ordered.append(
            Category(
                category_id=NO_CATEGORY,
                category="no category",
                is_novel=True,
                size=len(rows),
                n_labeled=int(run.is_labeled[rows].sum()),
                confidence=float(np.asarray(column(run.assignments, "confidence"))[rows].mean()),
            )
        )
    first = {
        category.category: int(run.members[category.category_id][0])
        for category in run.categories
        if category.category_id in run.members
    }
    made = []
    for category in ordered:
        images = run.members.get(category.category_id, np.zeros(0, np.int64)).tolist()
        nearest = first.get(category.nearest_known)
        made.append(Card(category, images[:STRIP], images[STRIP:][::-1][:STRIP], nearest))
    return made


def priority(cards: list[Card]) -> list[int]:
    """Return the rows of all cards in the order in which they get thumbnails.

    One per card, then a second one and so on, alternating most and least typical images.
    """
    return _in_turn(_in_turn((card.typical, card.least)) for card in cards)


def _in_turn(lists: Iterable[list[int]]) -> list[int]:
    """Return the first number of each list, then the second ones, and so on."""
    return [row for row in chain(*zip_longest(*lists)) if row is not None]


def render_report(run: Run) -> str:
    """Return a run as one HTML page.

    Parameters
    ----------
    run : Run
        A finished run. What it does not contain is listed at the end of the page.
    """
    reviewed = ReviewedRun.of(run)
    missing: list[str] = []

    def get(make: Callable[[ReviewedRun], Found]) -> Found | None:
        """Return what `make` returns; None, with a sentence in `missing`, for NotInRun."""
        try:
            return make(reviewed)
        except NotInRun as reason:
            missing.append(str(reason))
            return None

    gallery = cards(reviewed)
    merges = suggested_merges(reviewed)
    suspicious = get(suspicious_labels)
    splits = suggested_splits(reviewed)
    # Maps by t-SNE come first, because they show more.
    layouts = [*cached_layouts(reviewed), *pca_layouts(reviewed)]
    tree = get(tree_list) or []
    figures = {}
    for name in ON_PAGE:
        figure = get(FIGURES[name])
        if figure is not None:
            words = " ".join(str(FIGURES[name].__doc__).split())
            figures[name] = {"words": words, "svg": inline_svg(figure, name, words)}
    members = reviewed.members
    shown_rows = [int(rows[0]) for rows in members.values()]
    for merge in merges:
        for category in (merge.novel, merge.other):
            shown_rows += members[category.category_id][:STRIP].tolist()
    for _, groups in splits:
        for group in groups:
            shown_rows += group[:STRIP].tolist()
    shown_rows += [row for row, *_ in (suspicious or [])[:MAX_SUSPICIOUS]]
    shown_rows += priority(gallery)
    uris = data_uris(reviewed, shown_rows, PAGE_BYTES)
    on_map = {row for layout in layouts for row in layout.rows.tolist()}
    # In random order, so that those that fit are a fair sample.
    others = np.random.default_rng(0).permutation(sorted(on_map - uris.keys()))
    more = data_uris(reviewed, others.astype(int).tolist(), MAP_BYTES)
    rows = sorted({*shown_rows, *on_map})
    script = read_templates("page.js", "dialog.js", "gallery.js", "map.js")
    return render(
        "report.html",
        run=reviewed,
        title=shown(_title(reviewed.path.resolve())),
        summary=summary,
        cards=gallery,
        n_left=max(0, len(reviewed.categories) - MAX_CARDS),
        strip=STRIP,
        mixed_from=MIXED_FROM,
        uris=uris,
        maps=layouts,
        n_pictured=len(on_map & {*uris, *more}),
        n_on_map=len(on_map),
        figures=figures,
        tree=tree,
        merges=merges,
        most_compared=MOST_COMPARED,
        splits=splits,
        suspicious=suspicious,
        max_suspicious=MAX_SUSPICIOUS,
        images=columns(reviewed, rows),
        points=[map_points(layout, rows) for layout in layouts],
        thumbnails=more,
        missing=missing,
        style=read_templates("theme.css", "report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _title(folder: Path) -> str:
    """Return the name of a run; a result inside a run is named after both."""
    if folder.name in RESULTS and (folder.parent / "provenance.json").is_file():
        return f"{folder.parent.name}: the {folder.name} result"
    return folder.name
