"""The page of a comparison: the table, what follows from it, and each method's categories side by
side.

It holds no script, and needs nothing else. `render_comparison` returns text; writing it is left to
the caller.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.clustering.matching import match
from shoal.report.data_uris import data_uris
from shoal.report.page import environment, read_templates
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import COMPARED, Category, Run, reading

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
    run: ReviewedRun
    kept: Mapping[str, tuple[str, bool]]
    """By path: the label that was kept, and whether the method has put the image right."""

    @property
    def categories(self) -> dict[int, Category]:
        """Categories with images, by id."""
        return {one.category_id: one for one in self.run.categories if one.size}

    def typical(self, category_id: int) -> list[int]:
        """The rows that show a category."""
        rows: list[int] = self.run.members[category_id][:STRIP].tolist()
        return rows

    def stands_for(self, category: Category) -> str:
        """The kept label that a novel category was matched with, where it was."""
        if category.is_novel:
            for row in self.run.members[category.category_id].tolist():
                label, is_right = self.kept.get(self.run.assignments[row].path, ("", False))
                if is_right:
                    return label
        return ""


def render_comparison(run: Run) -> str:
    """Draw a comparison as one HTML page."""
    comparison = run.json("comparison")
    answered = [row for row in comparison["rows"] if not row["failed"]]
    kept = _read_kept(run)
    sides = []
    for row in answered:
        method = row["method"]
        is_right = {
            line["path"]: (line["label"], line[f"{method}_right"] == "true") for line in kept
        }
        of_method = ReviewedRun(run.path / COMPARED / method)
        sides.append(Side(method=method, run=of_method, kept=is_right))
    lines, n_left = side_by_side(sides)
    tiles = [
        row
        for line in lines
        for side, id_ in zip(sides, line, strict=True)
        if id_ is not None
        for row in side.typical(id_)
    ]
    values = {
        "title": run.path.resolve().name,
        "comparison": comparison,
        "titles": {row["method"]: row["title"] for row in comparison["rows"]},
        "answered": answered,
        "folder": COMPARED,
        "max_pairs": MAX_PAIRS,
        "sides": sides,
        "lines": lines,
        "n_left": n_left,
        "uris": data_uris(sides[0].run, tiles, PAGE_BYTES // len(sides)) if sides else {},
        "style": read_templates("theme.css", "report.css", "compare.css"),
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
    first, *others = sides
    partners = [_partners(first, other) for other in others]
    lines: list[list[int | None]] = [
        [one.category_id, *(partner_of.get(one.category_id) for partner_of in partners)]
        for one in sorted(first.categories.values(), key=_known_and_large_first)
    ]
    for at, (other, partner_of) in enumerate(zip(others, partners, strict=True), start=1):
        for one in sorted(other.categories.values(), key=_known_and_large_first):
            if one.category_id not in partner_of.values():
                line: list[int | None] = [None] * len(sides)
                line[at] = one.category_id
                lines.append(line)
    return lines[:MAX_CATEGORIES], max(0, len(lines) - MAX_CATEGORIES)


def _known_and_large_first(category: Category) -> tuple[bool, int, str]:
    return category.is_novel, -category.size, category.category


def _partners(first: Side, other: Side) -> dict[int, int]:
    """The category of another method that stands beside one of the first."""
    by_name = {one.category: id_ for id_, one in other.categories.items() if not one.is_novel}
    partner_of = {
        id_: by_name[one.category]
        for id_, one in first.categories.items()
        if one.category in by_name
    }
    free = ~np.isin(first.run.category_ids, list(partner_of)) & ~np.isin(
        other.run.category_ids, list(partner_of.values())
    )
    if free.any():
        pairs = match(first.run.category_ids[free], other.run.category_ids[free])
        partner_of |= dict(zip(pairs.classes.tolist(), pairs.clusters.tolist(), strict=True))
    return partner_of


def _read_kept(run: Run) -> list[dict[str, str]]:
    """The kept labels of the first draw, whose runs are shown."""
    file = run.path / "kept.csv"
    with reading(file):
        lines = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"), newline=""))
        return [line for line in lines if line["draw"] == "1"]
