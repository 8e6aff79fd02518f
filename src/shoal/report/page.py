"""The report: one HTML file that contains everything."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from shoal.report import summary
from shoal.report.contents import columns, map_points
from shoal.report.data_uris import data_uris
from shoal.report.figures import FIGURES
from shoal.report.gallery import MAX_CARDS, STRIP, cards, priority
from shoal.report.map import cached_layouts, pca_layouts
from shoal.report.not_in_run import NotInRun
from shoal.report.rendering import read_templates, render
from shoal.report.style import inline_svg
from shoal.report.suggested_splits import suggested_splits
from shoal.report.suggestions import MOST_COMPARED, suggested_merges, suspicious_labels
from shoal.report.tree_list import tree_list
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import MIXED_FROM, RESULTS, Run
from shoal.text import shown

PAGE_BYTES = 12 << 20
"""Maximum bytes of thumbnails on cards and in lists."""
MAP_BYTES = 10 << 20
"""Maximum bytes of further thumbnails, for the map."""
MAX_SUSPICIOUS = 36
"""Maximum number of suspicious labels shown."""

ON_PAGE = ("n_clusters_curve", "confidence_curve", "training_curves", "shift_accuracy")
"""The figures of the report."""

SCRIPTS = ("page.js", "dialog.js", "gallery.js", "map.js")

Found = TypeVar("Found")


def render_report(run: Run) -> str:
    """Return a run as one HTML page.

    Parameters
    ----------
    run : Run
        A finished run. What it does not contain is listed at the end of the page.
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
    # Maps by t-SNE come first, because they show more.
    layouts = [*cached_layouts(reviewed), *pca_layouts(reviewed)]
    tree = get(tree_list) or []
    figures = {}
    for name in ON_PAGE:
        figure = get(FIGURES[name])
        if figure is not None:
            words = " ".join(str(FIGURES[name].__doc__).split())
            figures[name] = {"words": words, "svg": inline_svg(figure, name, words)}
    members = reviewed.members
    shown_rows = [int(rows[0]) for rows in members.values()]
    for merge in merges:
        for category in (merge.novel, merge.other):
            shown_rows += members[category.category_id][:STRIP].tolist()
    for split in splits:
        for group in split.groups:
            shown_rows += group[:STRIP].tolist()
    shown_rows += [label.row for label in (suspicious or [])[:MAX_SUSPICIOUS]]
    shown_rows += priority(gallery)
    uris = data_uris(reviewed, shown_rows, PAGE_BYTES)
    on_map = {row for layout in layouts for row in layout.rows.tolist()}
    # In random order, so that those that fit are a fair sample.
    others = np.random.default_rng(0).permutation(sorted(on_map - uris.keys()))
    more = data_uris(reviewed, others.astype(int).tolist(), MAP_BYTES)
    rows = sorted({*shown_rows, *on_map})
    script = read_templates(*SCRIPTS)
    return render(
        "report.html",
        run=reviewed,
        title=shown(_title(reviewed.path.resolve())),
        summary=summary,
        cards=gallery,
        n_left=max(0, len(reviewed.categories) - MAX_CARDS),
        strip=STRIP,
        mixed_from=MIXED_FROM,
        uris=uris,
        maps=layouts,
        n_pictured=len(on_map & {*uris, *more}),
        n_on_map=len(on_map),
        figures=figures,
        tree=tree,
        merges=merges,
        most_compared=MOST_COMPARED,
        splits=splits,
        suspicious=suspicious,
        max_suspicious=MAX_SUSPICIOUS,
        images=columns(reviewed, rows),
        points=[map_points(layout, rows) for layout in layouts],
        thumbnails=more,
        missing=missing,
        style=read_templates("theme.css", "report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _title(folder: Path) -> str:
    """Return the name of a run; a result inside a run is named after both."""
    if folder.name in RESULTS and (folder.parent / "provenance.json").is_file():
        return f"{folder.parent.name}: the {folder.name} result"
    return folder.name
