"""Templates, thumbnails and the tree of categories of all pages, and the short pages: a comparison,
a run in a notebook.

The tree is a nested list, which opens and closes without a script.
"""

import base64
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from shoal.clustering.tree import CategoryTree
from shoal.errors import NotInRun, count, duration, number, percent, shown
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import COMPARED, THUMBNAILS, Category, Run, column
from shoal.settings import Plain

# Maximum number of categories in a notebook; the largest are shown
NOTEBOOK_CATEGORIES = 30

# Maximum bytes of their pictures, because a notebook stores them in its file
NOTEBOOK_BYTES = 500_000

# Number of categories that name a branch of the tree
N_LARGEST = 3

# With more categories, only the branches near the root are open
MAX_OPEN = 60


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
    largest = ordered[:NOTEBOOK_CATEGORIES]
    wanted = [row_of[path] for category in largest for path in category.exemplars]
    return render(
        "notebook.html",
        summary=summary,
        categories=largest,
        row_of=row_of,
        uris=data_uris(run, wanted, NOTEBOOK_BYTES),
        n_left=len(ordered) - len(largest),
        folder=str(run.path),
    )


def category_tree(run: ReviewedRun) -> CategoryTree:
    """Return the tree of the categories that have images; raise `NotInRun` if there is none."""
    with_images = [row for row in run.categories if row.size]
    if len(with_images) < 2:
        raise NotInRun("No tree of categories: the run has fewer than two with images.")
    return CategoryTree.of_members(
        [row.category for row in with_images],
        [run.members[row.category_id] for row in with_images],
        run.vectors(run.clustered),
    )


def categories_in_tree(run: ReviewedRun) -> list[Category]:
    """Return the categories of a run, with their parents in the tree after its review."""
    if run.review is None:
        return run.categories
    parents = {}
    with suppress(NotInRun):
        parents = category_tree(run).parent_names
    return [replace(row, parent=parents.get(row.category, "")) for row in run.categories]


def tree_list(run: ReviewedRun) -> list[Plain]:
    """Return the nodes of the tree in the order of the page.

    A node is a category, the start of a branch with its largest categories, or its end: empty.
    `indent` is the difference in height to its parent, as a share of the root's height.
    """
    tree = category_tree(run)
    category_of = {category.category: category for category in run.categories}
    heights = tree.heights
    parents = tree.parents
    largest = [[category_of[name]] for name in tree.names]
    for first, second in tree.linkage[:, :2].astype(int):
        below = largest[first] + largest[second]
        largest.append(sorted(below, key=lambda category: -category.size)[:N_LARGEST])
    end = -1
    nodes: list[Plain] = []
    stack = [len(heights) - 1]
    while stack:
        at = stack.pop()
        if at == end:
            nodes.append({})
            continue
        # The parent of the root is -1, others have a higher number than their children.
        indent = (heights[max(at, parents[at])] - heights[at]) / (heights[-1] or 1.0)
        if at < len(tree.names):
            nodes.append({"category": category_of[tree.names[at]], "indent": indent})
            continue
        first, second, height, n_categories = tree.linkage[at - len(tree.names)].tolist()
        nodes.append(
            {
                "n_categories": int(n_categories),
                "largest": largest[at],
                "height": height,
                "indent": indent,
                # The merges nearest to the root make MAX_OPEN branches.
                "is_open": len(heights) - at <= MAX_OPEN,
            }
        )
        stack += [end, int(second), int(first)]
    return nodes
