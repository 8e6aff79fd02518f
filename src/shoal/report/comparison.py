"""The page of a comparison: the table of methods, and their categories side by side."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.clustering.matching import match
from shoal.report.data_uris import data_uris
from shoal.report.rendering import read_templates, render
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import COMPARED, Category, Run, reading

STRIP = 5
"""Images per category, the most typical ones."""

MAX_CATEGORIES = 80
"""Maximum number of rows of categories."""

PAGE_BYTES = 12 << 20
"""Maximum bytes of thumbnails on the page."""


@dataclass(frozen=True)
class Side:
    """A method's run."""

    run: ReviewedRun
    correct: Mapping[str, str]
    """The held-out labels of the images for which the method is correct, by path."""

    @property
    def categories(self) -> dict[int, Category]:
        """Categories with images, by id: known ones first, then the largest."""
        with_images = [category for category in self.run.categories if category.size]
        with_images.sort(key=lambda c: (c.is_novel, -c.size, c.category))
        return {category.category_id: category for category in with_images}

    def matched_label(self, category_id: int) -> str:
        """Return the held-out label that a novel category is matched with; '' for none."""
        paths = [self.run.assignments[row].path for row in self.run.members[category_id].tolist()]
        return next((self.correct[path] for path in paths if path in self.correct), "")


def render_comparison(run: Run) -> str:
    """Return a comparison as one HTML page."""
    comparison = run.json("comparison")
    rows = comparison["rows"]
    file = run.path / "held_out.csv"
    with reading(file):
        table = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"), newline=""))
        held_out = [line for line in table if line["repeat"] == "1"]  # whose runs are shown
    sides = []
    for row in rows:
        flag = f"{row['method']}_correct"
        correct = {line["path"]: line["label"] for line in held_out if line[flag] == "true"}
        sides.append(Side(ReviewedRun(run.path / COMPARED / row["method"]), correct))
    all_lines = side_by_side(sides)
    lines = all_lines[:MAX_CATEGORIES]
    tiles = [
        row
        for line in lines
        for side, number in zip(sides, line, strict=True)
        if number is not None
        for row in side.run.members[number][:STRIP].tolist()
    ]
    return render(
        "compare.html",
        title=run.path.resolve().name,
        comparison=comparison,
        titles={row["method"]: row["title"] for row in rows},
        folder=COMPARED,
        sides=sides,
        strip=STRIP,
        labels={line["path"]: line["label"] for line in held_out},
        lines=lines,
        n_left=len(all_lines) - len(lines),
        uris=data_uris(sides[0].run, tiles, PAGE_BYTES // len(sides)),
        style=read_templates("theme.css", "report.css", "compare.css"),
    )


def side_by_side(sides: Sequence[Side]) -> list[list[int | None]]:
    """Return lines with a category id per method.

    Known categories are aligned by name, novel ones by the images they share with those of the
    first method; an id is None if a method has no such category. The categories of the first
    method come first.
    """
    first, *others = sides
    partners = [_partners(first, other) for other in others]
    lines: list[list[int | None]] = [
        [number, *(partner_of.get(number) for partner_of in partners)]
        for number in first.categories
    ]
    for at, (other, partner_of) in enumerate(zip(others, partners, strict=True), start=1):
        for number in other.categories:
            if number not in partner_of.values():
                line: list[int | None] = [None] * len(sides)
                line[at] = number
                lines.append(line)
    return lines


def _partners(first: Side, other: Side) -> dict[int, int]:
    """Map the categories of the first method to the aligned ones of another."""
    names = {c.category: number for number, c in other.categories.items() if not c.is_novel}
    partner_of = {
        number: names[c.category] for number, c in first.categories.items() if c.category in names
    }
    ids = first.run.category_ids
    other_ids = other.run.category_ids
    free = ~np.isin(ids, [*partner_of]) & ~np.isin(other_ids, [*partner_of.values()])
    if free.any():
        theirs, ours = match(ids[free], other_ids[free])
        partner_of |= dict(zip(ours.tolist(), theirs.tolist(), strict=True))
    return partner_of
