"""The page of a comparison: the table, what follows from it, and each method's categories side by side.

It holds no script, and needs nothing else. `render_comparison` returns text; writing it is left to the caller.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from shoal.clustering.matching import match
from shoal.report.data_uris import data_uris
from shoal.report.page import environment, read_styles
from shoal.report.snapshot import Snapshot
from shoal.runs import COMPARED, Category, Run
from shoal.runs.run_files import reading
from shoal.text import shown
from shoal.words import count, duration, percent

STRIP = 5
"""Pictures of a category, the most typical ones."""

MAX_CATEGORIES = 80
"""Rows of categories, the largest ones of the first method; each method's own report has all of
them."""

MAX_PAIRS = 10
"""Pairs of methods that are shown at once; more are folded."""

PAGE_BYTES = 12 << 20
"""Thumbnails on the page, as text."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """A method's run, and what was kept from it."""

    method: str
    run: Snapshot
    kept: Mapping[str, tuple[str, bool]]
    """By path: the label that was kept, and whether the method has put the image right."""

    @property
    def names(self) -> dict[int, Category]:
        """Categories with images, by id."""
        return {category.category_id: category for category in self.run.categories if category.size}


def render_comparison(run: Run) -> str:
    """Draw a comparison as one HTML page."""
    comparison = run.json("comparison")
    answered = [row for row in comparison["rows"] if not row["failed"]]
    kept = _read_kept(run)
    sides = [
        Side(
            method=row["method"],
            run=Snapshot.of(Run(run.path / COMPARED / row["method"])),
            kept={
                line["path"]: (line["label"], line[f"{row['method']}_right"] == "true")
                for line in kept
            },
        )
        for row in answered
    ]
    lines, n_left = side_by_side(sides)
    tiles = [
        row
        for line in lines
        for at, id_ in enumerate(line)
        if id_ is not None
        for row in _rows(sides[at], id_)
    ]
    uris = data_uris(sides[0].run, tiles, PAGE_BYTES // len(sides)) if sides else {}
    values = {
        "title": shown(run.path.resolve().name),
        "headline": comparison["headline"],
        "sentences": [shown(sentence) for sentence in comparison["sentences"]],
        "rows": [_row(row) for row in comparison["rows"]],
        "pairs": [
            _pair(pair, {row["method"]: row["title"] for row in comparison["rows"]})
            for pair in comparison["pairs"]
        ],
        "n_folded": len(comparison["pairs"]) if len(comparison["pairs"]) > MAX_PAIRS else 0,
        "facts": _facts(comparison),
        "command": shown(comparison["command"] or ""),
        "columns": [
            {"title": row["title"], "link": f"{COMPARED}/{row['method']}/report.html"}
            for row in answered
        ],
        "lines": [[_cell(sides[at], id_, uris) for at, id_ in enumerate(line)] for line in lines],
        "n_left": n_left,
        "style": read_styles("theme.css", "report.css", "compare.css"),
    }
    return environment().get_template("compare.html").render(values).lstrip()


def side_by_side(sides: Sequence[Side]) -> tuple[list[list[int | None]], int]:
    """Lines of category ids, one for each method, None where a method has no such category.

    And how many are left out.

    Known categories stand beside each other by their name, novel ones by the images that they share
    with those of the first method; what is left of a method has lines of its own. The first
    method's largest come first.
    """
    if not sides:
        return [], 0
    first = sides[0]
    others = sides[1:]
    partners = [_partners(first, other) for other in others]
    order = sorted(first.names.values(), key=lambda one: (one.is_novel, -one.size, one.category))
    lines: list[list[int | None]] = [
        [one.category_id, *(partner_of.get(one.category_id) for partner_of in partners)]
        for one in order
    ]
    for at, (other, partner_of) in enumerate(zip(others, partners, strict=True), start=1):
        rest = [one for id_, one in other.names.items() if id_ not in partner_of.values()]
        for one in sorted(rest, key=lambda one: (one.is_novel, -one.size, one.category)):
            lines.append([one.category_id if side == at else None for side in range(len(sides))])
    return lines[:MAX_CATEGORIES], max(0, len(lines) - MAX_CATEGORIES)


def _partners(first: Side, other: Side) -> dict[int, int]:
    """The category of another method that stands beside one of the first."""
    by_name = {one.category: id_ for id_, one in other.names.items() if not one.is_novel}
    partner_of = {
        id_: by_name[one.category] for id_, one in first.names.items() if one.category in by_name
    }
    free = ~np.isin(first.run.category_ids, list(partner_of)) & ~np.isin(
        other.run.category_ids, list(partner_of.values())
    )
    if free.any():
        pairs = match(first.run.category_ids[free], other.run.category_ids[free])
        partner_of |= dict(zip(pairs.classes.tolist(), pairs.clusters.tolist(), strict=True))
    return partner_of


def _rows(side: Side, category_id: int) -> list[int]:
    rows: list[int] = side.run.members[category_id][:STRIP].tolist()
    return rows


def _cell(side: Side, category_id: int | None, uris: Mapping[int, str]) -> dict[str, Any] | None:
    """A category of a method, with pictures."""
    if category_id is None:
        return None
    category = side.names[category_id]
    return {
        "name": shown(category.category),
        "kind": "novel" if category.is_novel else "known",
        "size": count(category.size, "image"),
        "stands_for": shown(_stands_for(side, category)),
        "tiles": [_tile(side, row, uris) for row in _rows(side, category_id)],
    }


def _stands_for(side: Side, category: Category) -> str:
    """The kept label that a novel category was matched with, where it was."""
    if not category.is_novel:
        return ""
    rows = side.run.members[category.category_id].tolist()
    kept = [
        side.kept[side.run.assignments[row].path]
        for row in rows
        if side.run.assignments[row].path in side.kept
    ]
    return next((label for label, is_right in kept if is_right), "")


def _tile(side: Side, row: int, uris: Mapping[int, str]) -> dict[str, Any]:
    path = side.run.assignments[row].path
    label, is_right = side.kept.get(path, ("", False))
    words = shown(path)
    if label:
        words += f", kept label {shown(label)}, {'right' if is_right else 'wrong'}"
    mark = ("✓" if is_right else "✗") if label else ""
    return {
        "uri": uris.get(row),
        "words": words,
        "name": shown(PurePosixPath(path).name, 24),
        "mark": mark,
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = row["accuracy"] or {}
    low, high = row["interval"] or (math.nan, math.nan)
    shares = {name: percent(_or_nan(accuracy.get(name))) for name in ("all", "known", "novel")}
    return {
        **shares,
        "rank": row["rank"],
        "title": row["title"],
        "failed": shown(row["failed"]),
        "between": f"{percent(low)} to {percent(high)}" if row["interval"] else "–",
        "left": 100 * low if row["interval"] else 0,
        "width": 100 * (high - low) if row["interval"] else 0,
        "at": 100 * _or_nan(accuracy.get("all")) if row["interval"] else 0,
        "seconds": duration(row["seconds"]),
        "link": f"{COMPARED}/{row['method']}/report.html",
    }


def _pair(pair: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    points = 100 * pair["difference"]
    (low, high) = (100 * end for end in pair["interval"])
    return {
        "one": titles[pair["methods"][0]],
        "other": titles[pair["methods"][1]],
        "difference": f"{points:+.1f}",
        "between": f"{low:+.1f} to {high:+.1f}",
        "words": "a tie" if pair["is_tie"] else "clearly better",
    }


def _facts(comparison: Mapping[str, Any]) -> list[tuple[str, str]]:
    kept = comparison["kept"]
    number = comparison["n_clusters"]
    whole = "; ".join(", ".join(map(shown, names)) for names in kept["categories"] if names)
    asked = " or ".join(map(str, number["asked"]))
    return [
        (
            "labels kept from every method",
            f"{kept['n_images']:,}, {kept['n_novel']:,} of them of whole categories",
        ),
        ("categories kept whole", whole or "none"),
        ("draws of kept labels", str(kept["n_draws"])),
        (
            "categories asked for",
            f"{asked}, {'as given' if number['is_given'] else 'as estimated without training'}",
        ),
        ("epochs", ", ".join(f"{name} {n}" for name, n in comparison["epochs"].items()) or "none"),
    ]


def _read_kept(run: Run) -> list[dict[str, str]]:
    """The kept labels of the first draw, whose runs are shown."""
    file = run.path / "kept.csv"
    with reading(file):
        lines = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"), newline=""))
        return [line for line in lines if line["draw"] == "1"]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
