"""A run in a notebook: a summary, and typical images of each category."""

from html import escape

from shoal.report.data_uris import data_uris
from shoal.runs import Run, column
from shoal.text import shown
from shoal.words import count

MAX_CATEGORIES = 30
"""Maximum number of categories; the largest are shown."""

STYLE = 'style="height: 48px; display: inline-block; margin: 1px"'

BUDGET = 500_000
"""Maximum bytes of pictures, because a notebook stores them in its file."""


def run_html(run: Run, summary: str) -> str:
    """Return a run as HTML: the `summary`, then a row per category, largest first."""
    row_of = {path: number for number, path in enumerate(column(run.assignments, "path"))}
    ordered = sorted(run.categories, key=lambda c: (-c.size, c.category))[:MAX_CATEGORIES]
    wanted = [row_of[path] for category in ordered for path in category.exemplars]
    uris = data_uris(run, wanted, BUDGET)
    lines = []
    for category in ordered:
        novel = " (novel)" if category.is_novel else ""
        rows = [row_of[path] for path in category.exemplars]
        images = "".join(f'<img src="{uris[row]}" {STYLE}>' for row in rows if row in uris)
        lines.append(
            f"<tr><td><b>{_text(category.category)}</b>{novel}</td><td>{category.size:,}</td>"
            f"<td>{100 * category.confidence:.0f} %</td><td>{images}</td></tr>"
        )
    n_left = len(run.categories) - len(ordered)
    more = f"<p>{count(n_left, 'more category')}, in the report.</p>" if n_left else ""
    head = "<tr><th>category</th><th>images</th><th>confidence</th><th></th></tr>"
    table = f"<table>{head}{''.join(lines)}</table>"
    return f"<div><p>{_text(summary)}</p>{table}{more}<p>{_text(str(run.path))}</p></div>"


def _text(text: str) -> str:
    return escape(shown(text))
