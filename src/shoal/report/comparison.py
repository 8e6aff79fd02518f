"""The page of a comparison: the table of methods, and their pairs."""

from shoal.report.rendering import read_templates, render
from shoal.runs import COMPARED, Run


def render_comparison(run: Run) -> str:
    """Return a comparison as one HTML page, which links to the report of each method."""
    comparison = run.json("comparison")
    return render(
        "compare.html",
        title=run.path.resolve().name,
        comparison=comparison,
        titles={row["method"]: row["title"] for row in comparison["rows"]},
        folder=COMPARED,
        style=read_templates("theme.css", "report.css", "compare.css"),
    )
