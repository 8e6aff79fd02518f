"""The report: one HTML file with everything in it. `render_report` returns text.

Writing it is left to the caller.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from shoal.progress import Progress
from shoal.report import sections
from shoal.report.certainty import confidence_words, how_sure
from shoal.report.contents import ImageTiles, columns, map_points
from shoal.report.data_uris import data_uris
from shoal.report.figures.categories import MAX_LEAVES, confusion, dendrogram
from shoal.report.figures.curves import (
    confidence_curve,
    n_clusters_curve,
    n_clusters_over_epochs,
    shift_accuracy,
    training_curves,
)
from shoal.report.figures.style import inline_svg
from shoal.report.gallery import MAX_CARDS, STRIP, Card, cards, priority
from shoal.report.map import MapLayout, kept_layouts, pca_layouts, tsne_layouts
from shoal.report.snapshot import NotInRun, Snapshot
from shoal.report.suggested_splits import Split, suggested_splits
from shoal.report.suggestions import Merge, SuspiciousLabel, suggested_merges, suspicious_labels
from shoal.report.summary import summarize
from shoal.runs import ANSWERS, Run
from shoal.text import shown
from shoal.words import number

PAGE_BYTES = 12 << 20
"""Thumbnails on cards and in lists, as text."""
MAP_BYTES = 10 << 20
"""More thumbnails, for the map to show."""
MAX_SUSPICIOUS = 36
"""Suspicious labels shown; all of them are counted."""

SCRIPTS = ("page.js", "dialog.js", "gallery.js", "map.js")


def render_report(run: Run, *, tsne: bool | None = None, progress: Progress | None = None) -> str:
    """Draw a run as one HTML page that needs nothing else.

    Args:
        run: a finished run; what it does not hold is left out, with a sentence.
        tsne: True draws a map by t-SNE, once, and keeps it in the run folder; None shows one that was kept; False none.
        progress: called with (done, total) while t-SNE runs.
    """
    snapshot = Snapshot.of(run)
    page = _Page(snapshot)
    gallery = cards(snapshot)
    merges = suggested_merges(snapshot)
    suspicious = page.ask(suspicious_labels)
    splits = suggested_splits(snapshot)
    layouts = page.ask(lambda run: _layouts(run, tsne, progress)) or []
    tiles = _tiles(snapshot, gallery, merges, splits, (suspicious or [])[:MAX_SUSPICIOUS])
    rows = sorted({*tiles.rows, *_rows(layouts)})
    more = data_uris(
        snapshot, (row for row in _shuffled(_rows(layouts)) if row not in tiles.uris), MAP_BYTES
    )
    values = {
        "title": shown(_title(snapshot.path.resolve())),
        "summary": summarize(snapshot),
        "cards": [sections.card(card, tiles) for card in gallery],
        "n_left": max(0, len(snapshot.categories) - MAX_CARDS),
        "strip": STRIP,
        "maps": layouts,
        "map_note": sections.map_note(snapshot, layouts, {*tiles.uris, *more}),
        "n_clusters": page.figures(n_clusters_curve, n_clusters_over_epochs),
        "how_sure": how_sure(snapshot),
        "confidence": page.figures(confidence_curve),
        "confidence_words": confidence_words(snapshot),
        "tree": page.figures(dendrogram),
        "max_leaves": MAX_LEAVES,
        "merges": [sections.merge(merge, snapshot, tiles) for merge in merges],
        "compared_note": sections.compared_note(snapshot),
        "splits": [sections.split(split, tiles) for split in splits],
        "confusion": page.figures(confusion),
        "suspicious": None
        if suspicious is None
        else sections.suspicious(suspicious[:MAX_SUSPICIOUS], tiles),
        "n_suspicious": len(suspicious or []),
        "n_labeled": int(snapshot.is_labeled.sum()),
        "training": page.figures(training_curves, shift_accuracy),
        "images": columns(snapshot, rows),
        "points": [map_points(layout, rows) for layout in layouts],
        "thumbnails": more,
        "left_out": page.left_out,
    }
    return environment().get_template("report.html").render(values | _static()).lstrip()


def _title(folder: Path) -> str:
    """The name of a run's folder; an answer inside a run goes by the name of that."""
    what = {ANSWERS[0]: "the answer without training", ANSWERS[1]: "the trained answer"}.get(
        folder.name
    )
    is_inside = (folder.parent / "provenance.json").is_file()
    return f"{folder.parent.name}: {what}" if what and is_inside else folder.name


class _Page:
    """Asks a run for what belongs on the page, and keeps the sentence for what it does not hold."""

    def __init__(self, run: Snapshot) -> None:
        self.run = run
        self.left_out: list[str] = []

    def ask(self, make: Callable[[Snapshot], Any]) -> Any:
        """What `make` finds in the run; None where the run does not hold it."""
        try:
            return make(self.run)
        except NotInRun as reason:
            self.left_out.append(str(reason))
            return None

    def figures(self, *draw: Callable[[Run], Any]) -> list[dict[str, Any]]:
        """The figures that the run allows, with the first line of their docstrings as words."""
        drawn = []
        for function in draw:
            figure = self.ask(function)
            if figure is not None:
                words = (function.__doc__ or "").strip().splitlines()[0]
                name = function.__name__
                drawn.append({"name": name, "words": words, "svg": inline_svg(figure, name, words)})
        return drawn


def _layouts(run: Snapshot, tsne: bool | None, progress: Progress | None) -> list[MapLayout]:
    """Maps by t-SNE first where there are any, because that is the one to look at."""
    pca = pca_layouts(run)
    if tsne is False:
        return pca
    return [*(tsne_layouts(run, progress=progress) if tsne else kept_layouts(run)), *pca]


def _tiles(
    run: Snapshot,
    gallery: list[Card],
    merges: list[Merge],
    splits: list[Split],
    labels: list[SuspiciousLabel],
) -> ImageTiles:
    """Every image that stands on the page itself, with its thumbnail while they last."""
    rows = [card.nearest for card in gallery if card.nearest is not None]
    for merge in merges:
        rows += sections.most_typical(run, merge.novel) + sections.most_typical(run, merge.other)
    for split in splits:
        rows += [row for group in split.groups for row in group[:STRIP].tolist()]
    rows += [label.row for label in labels]
    wanted = list(dict.fromkeys((*rows, *priority(gallery))))
    return ImageTiles(run, wanted, data_uris(run, wanted, PAGE_BYTES))


def _rows(layouts: list[MapLayout]) -> set[int]:
    """The images of any map."""
    return {int(row) for layout in layouts for row in layout.rows}


def _shuffled(rows: Iterable[int]) -> list[int]:
    """Rows in an order that favors no category and is always the same: whoever stops early has a fair sample."""
    return sorted(
        rows, key=lambda row: hashlib.md5(str(row).encode(), usedforsecurity=False).digest()
    )


@cache
def environment() -> Environment:
    """Templates in which every value is escaped, and a missing one is an error."""
    folder = files("shoal.report") / "templates"
    pages = {
        page.name: page.read_text("utf-8")
        for page in folder.iterdir()
        if page.name.endswith(".html")
    }
    made = Environment(
        loader=DictLoader(pages),
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
    made.filters["number"] = number
    return made


@cache
def _static() -> dict[str, str]:
    """The style sheet, the script, and the hash that lets this script run and no other."""
    folder = files("shoal.report") / "templates"
    script = "\n".join(('"use strict";', *((folder / name).read_text("utf-8") for name in SCRIPTS)))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return {
        "style": read_styles("theme.css", "report.css"),
        "script": script,
        "script_hash": f"sha256-{digest}",
    }


def read_styles(*names: str) -> str:
    """Join style sheets into one."""
    folder = files("shoal.report") / "templates"
    return "".join((folder / name).read_text("utf-8") for name in names)
