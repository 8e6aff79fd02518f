"""The page of a comparison: the table of methods, and their categories side by side."""

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
"""Images per category, the most typical ones."""

MAX_CATEGORIES = 80
"""Maximum number of rows of categories."""

MAX_PAIRS = 10
"""With more pairs of methods their table is folded."""

PAGE_BYTES = 12 << 20
"""Maximum bytes of thumbnails on the page."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """A method's run, and the labels held out from it."""

    method: str
    run: ReviewedRun
    held_out: Mapping[str, tuple[str, bool]]
    """By path: the held-out label, and whether the method is correct for the image."""

    @property
    def categories(self) -> dict[int, Category]:
        """Categories with images, by id."""
        return {c.category_id: c for c in self.run.categories if c.size}

    def typical(self, category_id: int) -> list[int]:
        """Return the most typical rows of a category."""
        rows: list[int] = self.run.members[category_id][:STRIP].tolist()
        return rows

    def matched_label(self, category: Category) -> str:
        """Return the held-out label that a novel category is matched with; '' for none."""
        if category.is_novel:
            for row in self.run.members[category.category_id].tolist():
                label, is_correct = self.held_out.get(self.run.assignments[row].path, ("", False))
                if is_correct:
                    return label
        return ""


def render_comparison(run: Run) -> str:
    """Return a comparison as one HTML page."""
    comparison = run.json("comparison")
    finished = [row for row in comparison["rows"] if not row["failed"]]
    held_out = _read_held_out(run)
    sides = []
    for row in finished:
        method = row["method"]
        is_correct = {
            line["path"]: (line["label"], line[f"{method}_correct"] == "true") for line in held_out
        }
        method_run = ReviewedRun(run.path / COMPARED / method)
        sides.append(Side(method=method, run=method_run, held_out=is_correct))
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
        "finished": finished,
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
    """Return lines with a category id per method, and how many lines were omitted.

    Known categories are aligned by name, novel ones by the images they share with those of the
    first method; an id is None if a method has no such category. The largest categories of the
    first method come first.
    """
    if not sides:
        return [], 0
    first, *others = sides
    partners = [_partners(first, other) for other in others]
    lines: list[list[int | None]] = [
        [c.category_id, *(partner_of.get(c.category_id) for partner_of in partners)]
        for c in sorted(first.categories.values(), key=_known_and_large_first)
    ]
    for at, (other, partner_of) in enumerate(zip(others, partners, strict=True), start=1):
        for c in sorted(other.categories.values(), key=_known_and_large_first):
            if c.category_id not in partner_of.values():
                line: list[int | None] = [None] * len(sides)
                line[at] = c.category_id
                lines.append(line)
    return lines[:MAX_CATEGORIES], max(0, len(lines) - MAX_CATEGORIES)


def _known_and_large_first(category: Category) -> tuple[bool, int, str]:
    return category.is_novel, -category.size, category.category


def _partners(first: Side, other: Side) -> dict[int, int]:
    """Map the categories of the first method to the aligned ones of another."""
    by_name = {c.category: number for number, c in other.categories.items() if not c.is_novel}
    partner_of = {
        number: by_name[c.category]
        for number, c in first.categories.items()
        if c.category in by_name
    }
    free = ~np.isin(first.run.category_ids, list(partner_of)) & ~np.isin(
        other.run.category_ids, list(partner_of.values())
    )
    if free.any():
        pairs = match(first.run.category_ids[free], other.run.category_ids[free])
        partner_of |= dict(zip(pairs.classes.tolist(), pairs.clusters.tolist(), strict=True))
    return partner_of


def _read_held_out(run: Run) -> list[dict[str, str]]:
    """Read the held-out labels of the first repeat, whose runs are shown."""
    file = run.path / "held_out.csv"
    with reading(file):
        lines = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"), newline=""))
        return [line for line in lines if line["repeat"] == "1"]
