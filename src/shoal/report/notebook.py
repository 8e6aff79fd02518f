"""A run as a notebook shows it: what was found in words, and a strip of typical images of each
category.
"""

from html import escape

from shoal.report.data_uris import data_uris
from shoal.runs import Run, column
from shoal.text import shown
from shoal.words import count

MAX_CATEGORIES = 30
"""The largest categories that are shown; the report has all of them."""

STYLE = 'style="height: 48px; display: inline-block; margin: 1px"'

BUDGET = 500_000
"""Bytes of pictures at most, because a notebook keeps them in its file."""


def run_html(run: Run, answer: str) -> str:
    """The run as a piece of HTML: `answer` in words, then a row per category, largest first."""
    row_of = {path: number for number, path in enumerate(column(run.assignments, "path"))}
    ordered = sorted(run.categories, key=lambda one: (-one.size, one.category))[:MAX_CATEGORIES]
    wanted = [row_of[path] for one in ordered for path in one.exemplars]
    uris = data_uris(run, wanted, BUDGET)
    lines = []
    for one in ordered:
        new = " (new)" if one.is_novel else ""
        rows = [row_of[path] for path in one.exemplars]
        images = "".join(f'<img src="{uris[row]}" {STYLE}>' for row in rows if row in uris)
        lines.append(
            f"<tr><td><b>{_text(one.category)}</b>{new}</td><td>{one.size:,}</td>"
            f"<td>{100 * one.confidence:.0f} %</td><td>{images}</td></tr>"
        )
    n_left = len(run.categories) - len(ordered)
    more = f"<p>{count(n_left, 'more category')}, in the report.</p>" if n_left else ""
    head = "<tr><th>category</th><th>images</th><th>confidence</th><th></th></tr>"
    table = f"<table>{head}{''.join(lines)}</table>"
    return f"<div><p>{_text(answer)}</p>{table}{more}<p>{_text(str(run.path))}</p></div>"


def _text(text: str) -> str:
    return escape(shown(text))
