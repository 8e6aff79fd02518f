"""A run as a notebook shows it: what was found in words, and a strip of typical images of each category."""

from html import escape

from shoal.report.data_uris import data_uris
from shoal.runs import Category, Run, column
from shoal.text import shown
from shoal.words import count

MAX_CATEGORIES = 30
"""The largest categories that are shown; the report has all of them."""

BUDGET = 500_000
"""Bytes of pictures at most, because a notebook keeps them in its file."""


def run_html(run: Run, answer: str) -> str:
    """The run as a piece of HTML: `answer` in words, then a row per category, largest first, with its exemplars."""
    row_of = {path: number for number, path in enumerate(column(run.assignments, "path"))}
    ordered = sorted(run.categories, key=lambda category: (-category.size, category.category))[
        :MAX_CATEGORIES
    ]
    rows = {
        category.category_id: [row_of[path] for path in category.exemplars] for category in ordered
    }
    pictures = data_uris(run, (row for own_rows in rows.values() for row in own_rows), BUDGET)
    lines = [
        _line(each, [pictures[row] for row in rows[each.category_id] if row in pictures])
        for each in ordered
    ]
    n_left = len(run.categories) - len(ordered)
    more = f"<p>{count(n_left, 'more category')}, in the report.</p>" if n_left else ""
    head = "<tr><th>category</th><th>images</th><th>confidence</th><th></th></tr>"
    return f"<div><p>{_text(answer)}</p><table>{head}{''.join(lines)}</table>{more}<p>{_text(str(run.path))}</p></div>"


def _line(category: Category, pictures: list[str]) -> str:
    name = f"<b>{_text(category.category)}</b>" + (" (new)" if category.is_novel else "")
    images = "".join(
        f'<img src="{uri}" style="height: 48px; display: inline-block; margin: 1px">'
        for uri in pictures
    )
    return f"<tr><td>{name}</td><td>{category.size:,}</td><td>{100 * category.confidence:.0f} %</td><td>{images}</td></tr>"


def _text(text: str) -> str:
    return escape(shown(text))
