"""A run in a notebook: a summary, and typical images of each category."""

from shoal.report.rendering import data_uris, render
from shoal.runs import Run, column

MAX_CATEGORIES = 30
"""Maximum number of categories; the largest are shown."""

BUDGET = 500_000
"""Maximum bytes of pictures, because a notebook stores them in its file."""


def run_html(run: Run, summary: str) -> str:
    """Return a run as HTML: the `summary`, then a row per category, largest first."""
    row_of = {path: number for number, path in enumerate(column(run.assignments, "path"))}
    ordered = sorted(run.categories, key=lambda c: (-c.size, c.category))
    largest = ordered[:MAX_CATEGORIES]
    wanted = [row_of[path] for category in largest for path in category.exemplars]
    return render(
        "notebook.html",
        summary=summary,
        categories=largest,
        row_of=row_of,
        uris=data_uris(run, wanted, BUDGET),
        n_left=len(ordered) - len(largest),
        folder=str(run.path),
    )
