"""The report: one HTML file that contains everything."""

import base64
import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from shoal.progress import Progress
from shoal.report import summary
from shoal.report.certainty import describe_confidence, describe_n_clusters
from shoal.report.contents import columns, map_points
from shoal.report.data_uris import data_uris
from shoal.report.figures.style import inline_svg
from shoal.report.figures.writing import FIGURES
from shoal.report.gallery import MAX_CARDS, STRIP, cards, priority
from shoal.report.map import MapLayout, cached_layouts, pca_layouts, tsne_layouts
from shoal.report.not_in_run import NotInRun
from shoal.report.suggested_splits import suggested_splits
from shoal.report.suggestions import MOST_COMPARED, suggested_merges, suspicious_labels
from shoal.report.tree_list import Leaf, tree_list
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import MIXED_FROM, RESULTS, Category, Run
from shoal.text import shown
from shoal.words import count, duration, number, percent

PAGE_BYTES = 12 << 20
"""Maximum bytes of thumbnails on cards and in lists."""
MAP_BYTES = 10 << 20
"""Maximum bytes of further thumbnails, for the map."""
MAX_SUSPICIOUS = 36
"""Maximum number of suspicious labels shown."""

ON_PAGE = (
    "n_clusters_curve",
    "confidence_curve",
    "training_curves",
    "shift_accuracy",
)
"""The figures of the report."""

SCRIPTS = ("page.js", "dialog.js", "gallery.js", "map.js")

Found = TypeVar("Found")


def render_report(run: Run, *, tsne: bool | None = None, progress: Progress | None = None) -> str:
    """Return a run as one HTML page.

    Parameters
    ----------
    run : Run
        A finished run. What it does not contain is listed at the end of the page.
    tsne : bool, optional
        True computes a map by t-SNE, cached in the run folder; None shows a cached one; False none.
    progress : callable, optional
        Called with (done, total) while t-SNE runs.
    """
    reviewed = ReviewedRun.of(run)
    missing: list[str] = []

    def get(make: Callable[[ReviewedRun], Found]) -> Found | None:
        """Return what `make` returns; None, with a sentence in `missing`, for NotInRun."""
        try:
            return make(reviewed)
        except NotInRun as reason:
            missing.append(str(reason))
            return None

    gallery = cards(reviewed)
    merges = suggested_merges(reviewed)
    suspicious = get(suspicious_labels)
    splits = suggested_splits(reviewed)
    layouts = get(lambda run: _layouts(run, tsne, progress)) or []
    tree = get(tree_list) or []
    figures = {}
    for name in ON_PAGE:
        figure = get(FIGURES[name])
        if figure is not None:
            figures[name] = _on_page(figure, name)

    def typical(category: Category) -> list[int]:
        rows: list[int] = reviewed.members[category.category_id][:STRIP].tolist()
        return rows

    shown_rows = [card.nearest for card in gallery if card.nearest is not None]
    for merge in merges:
        shown_rows += typical(merge.novel) + typical(merge.other)
    for split in splits:
        shown_rows += [row for group in split.groups for row in group[:STRIP].tolist()]
    shown_rows += [label.row for label in (suspicious or [])[:MAX_SUSPICIOUS]]
    shown_rows += [node.row for node in tree if isinstance(node, Leaf)]
    shown_rows += priority(gallery)
    uris = data_uris(reviewed, shown_rows, PAGE_BYTES)
    on_map = {int(row) for layout in layouts for row in layout.rows}
    more = data_uris(reviewed, _shuffled(on_map - uris.keys()), MAP_BYTES)
    rows = sorted({*shown_rows, *on_map})
    largest = max(map(len, reviewed.members.values()), default=0)
    values = {
        "run": reviewed,
        "title": shown(_title(reviewed.path.resolve())),
        "summary": summary,
        "cards": gallery,
        "n_left": max(0, len(reviewed.categories) - MAX_CARDS),
        "strip": STRIP,
        "typical": typical,
        "mixed_from": MIXED_FROM,
        "uris": uris,
        "maps": layouts,
        "n_pictured": len(on_map & {*uris, *more}),
        "n_on_map": len(on_map),
        "about_n_clusters": describe_n_clusters(reviewed),
        "about_confidence": describe_confidence(reviewed),
        "figures": figures,
        "tree": tree,
        "merges": merges,
        "most_compared": MOST_COMPARED if largest > MOST_COMPARED else None,
        "splits": splits,
        "suspicious": suspicious,
        "max_suspicious": MAX_SUSPICIOUS,
        "images": columns(reviewed, rows),
        "points": [map_points(layout, rows) for layout in layouts],
        "thumbnails": more,
        "missing": missing,
        "style": read_templates("theme.css", "report.css"),
        "script": _script(),
        "script_hash": base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode(),
    }
    return environment().get_template("report.html").render(values).lstrip()


def _on_page(figure: Figure, name: str) -> dict[str, str]:
    """Return a figure as SVG, with its docstring as the caption."""
    words = " ".join((FIGURES[name].__doc__ or "").split())
    return {"name": name, "words": words, "svg": inline_svg(figure, name, words)}


def _title(folder: Path) -> str:
    """Return the name of a run; a result inside a run is named after both."""
    what = {RESULTS[0]: "the frozen result", RESULTS[1]: "the trained result"}
    if folder.name in what and (folder.parent / "provenance.json").is_file():
        return f"{folder.parent.name}: {what[folder.name]}"
    return folder.name


def _layouts(run: ReviewedRun, tsne: bool | None, progress: Progress | None) -> list[MapLayout]:
    """Return the maps, those by t-SNE first because they show more."""
    pca = pca_layouts(run)
    if tsne is False:
        return pca
    if tsne:
        return [*tsne_layouts(run, progress=progress), *pca]
    return [*cached_layouts(run), *pca]


def _shuffled(rows: Iterable[int]) -> list[int]:
    """Return rows in a reproducible random order, so that the first ones are a fair sample."""
    return sorted(
        rows, key=lambda row: hashlib.md5(str(row).encode(), usedforsecurity=False).digest()
    )


@cache
def environment() -> Environment:
    """Return the Jinja environment; values are escaped, undefined ones are errors."""
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
    for use in (count, duration, number, percent, shown):
        made.filters[use.__name__] = use
    return made


@cache
def _script() -> str:
    return '"use strict";\n' + read_templates(*SCRIPTS, between="\n")


@cache
def read_templates(*names: str, between: str = "") -> str:
    """Return style sheets or scripts joined into one."""
    folder = files("shoal.report") / "templates"
    return between.join((folder / name).read_text("utf-8") for name in names)
