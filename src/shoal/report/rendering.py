"""Templates and thumbnails of all pages, and the short ones: a comparison, a run in a notebook."""

import base64
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from shoal.runs import COMPARED, THUMBNAILS, Run, column
from shoal.words import count, duration, number, percent, shown

# Maximum number of categories; the largest are shown
MAX_CATEGORIES = 30

# Maximum bytes of pictures, because a notebook stores them in its file
BUDGET = 500_000


def data_uris(run: Run, rows: Iterable[int], budget: int) -> dict[int, str]:
    """Return the thumbnails of the first `rows` that fit into `budget` bytes, as data URIs."""
    uri_of: dict[int, str] = {}
    if not run.has(THUMBNAILS):
        return uri_of
    wanted = list(dict.fromkeys(rows))
    for row, picture in zip(wanted, run.thumbnails(wanted), strict=True):
        uri = f"data:image/webp;base64,{base64.b64encode(picture).decode()}"
        budget -= len(uri)
        if budget < 0:
            break
        uri_of[row] = uri
    return uri_of


def render(template: str, **values: object) -> str:
    """Return a page; values are escaped, undefined ones are errors."""
    return _environment().get_template(template).render(values).lstrip()


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("shoal.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {
        "allow_nan": False,
        "ensure_ascii": False,
        "separators": (",", ":"),
    }
    made.filters |= {use.__name__: use for use in (count, duration, number, percent, shown)}
    return made


def read_templates(*names: str) -> str:
    """Return style sheets or scripts joined into one."""
    folder = files("shoal.report") / "templates"
    return "".join((folder / name).read_text("utf-8") for name in names)


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
