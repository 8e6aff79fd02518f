"""The report: one HTML file with everything in it. `render_report` returns text; writing it is left to the caller."""

import base64
import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from shoal.report.contents import Tile, Tiles, columns, map_points
from shoal.report.figures.categories import MAX_LEAVES, confusion, dendrogram
from shoal.report.figures.curves import n_clusters_curve, n_clusters_over_epochs, shift_accuracy, training_curves
from shoal.report.figures.images import right_or_wrong
from shoal.report.figures.style import inline_svg
from shoal.report.gallery import MAX_CARDS, STRIP, Card, cards, priority
from shoal.report.map import Layout, Progress, kept_layouts, pca_layouts, tsne_layouts
from shoal.report.neighbors import Neighbors, neighbors
from shoal.report.snapshot import NotInRun, Snapshot
from shoal.report.suggestions import Merge, SuspiciousLabel, suggested_merges, suspicious_labels
from shoal.report.summary import how_sure, summarize
from shoal.report.thumbnails import data_uris
from shoal.report.words import count, number, percent, shown
from shoal.runs import Run

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
    left_out: list[str] = []
    gallery = _try(left_out, cards, snapshot) or []
    layouts = _layouts(snapshot, left_out, tsne, progress)
    changed = _try(left_out, neighbors, snapshot)
    merges = _try(left_out, suggested_merges, snapshot)
    suspicious = _try(left_out, suspicious_labels, snapshot)
    tiles = _tiles(snapshot, gallery, changed, merges or [], (suspicious or [])[:MAX_SUSPICIOUS])
    rows = sorted({*tiles.rows, *(int(row) for layout in layouts for row in layout.rows)})
    more = data_uris(snapshot, (row for row in _spread(layouts) if row not in tiles.uris), MAP_BYTES)
    return _environment().get_template("report.html").render(
        title=shown(snapshot.path.resolve().name),
        summary=summarize(snapshot),
        cards=[_card(card, tiles) for card in gallery],
        n_left=max(0, len(snapshot.categories) - MAX_CARDS),
        strip=STRIP,
        maps=layouts,
        map_note=_map_note(snapshot, layouts, {*tiles.uris, *more}),
        n_clusters=_figures(snapshot, left_out, ("n_clusters_curve", n_clusters_curve), ("n_clusters_over_epochs", n_clusters_over_epochs)),
        how_sure=how_sure(snapshot),
        training=_figures(snapshot, left_out, ("training_curves", training_curves), ("shift_accuracy", shift_accuracy)),
        tree=_figures(snapshot, left_out, ("dendrogram", dendrogram)),
        max_leaves=MAX_LEAVES,
        merges=None if merges is None else [_merge(merge, snapshot, tiles) for merge in merges],
        confusion=_figures(snapshot, left_out, ("confusion", confusion)),
        suspicious=None if suspicious is None else [_suspicion(label, tiles) for label in suspicious[:MAX_SUSPICIOUS]],
        n_suspicious=len(suspicious or []),
        n_labeled=int(snapshot.is_labeled.sum()),
        neighbors=changed and _neighbors(changed, snapshot, tiles),
        left_out=left_out,
        images=columns(snapshot, rows),
        points=[map_points(layout, rows) for layout in layouts],
        thumbnails=more,
        **_static(),
    )


def _layouts(run: Snapshot, left_out: list[str], tsne: bool | None, progress: Progress | None) -> list[Layout]:
    """Maps by t-SNE first where there are any, because that is the one to look at."""
    try:
        pca = pca_layouts(run)
        if tsne is False:
            return pca
        return [*(tsne_layouts(run, progress=progress) if tsne else kept_layouts(run)), *pca]
    except NotInRun as reason:
        left_out.append(str(reason))
        return []


def _tiles(run: Snapshot, gallery: list[Card], changed: Neighbors | None, merges: list[Merge], labels: list[SuspiciousLabel]) -> Tiles:
    """Every image that stands on the page itself, with its thumbnail while they last."""
    rows = [row for card in gallery if (row := card.nearest) is not None]
    rows += [row for example in changed.examples for row in (example.row, *example.before, *example.after)] if changed else []
    rows += [int(row) for merge in merges for c in (merge.novel, merge.other) for row in run.members[c.category_id][:STRIP]]
    rows += [label.row for label in labels]
    wanted = list(dict.fromkeys((*rows, *priority(gallery))))
    return Tiles(run, wanted, data_uris(run, wanted, PAGE_BYTES))


def _card(card: Card, tiles: Tiles) -> dict[str, Any]:
    category = card.category
    return {
        "card": card,
        "name": shown(category.category),
        "kind": "novel" if category.is_novel else "known",
        "size": count(category.size, "image"),
        "confidence": category.confidence,
        "nearest": shown(category.nearest_known),
        "similarity": number(category.nearest_known_similarity),
        "nearest_tile": None if card.nearest is None else tiles[card.nearest],
        "typical": [tiles[row] for row in card.typical],
        "least": [tiles[row] for row in card.least],
    }


def _merge(merge: Merge, run: Snapshot, tiles: Tiles) -> dict[str, Any]:
    sides = [
        {
            "name": shown(category.category),
            "kind": "novel" if category.is_novel else "known",
            "size": count(category.size, "image"),
            "tiles": [tiles[int(row)] for row in run.members[category.category_id][:STRIP]],
        }
        for category in (merge.novel, merge.other)
    ]
    return {"sides": sides, "separation": number(merge.separation), "second_choice": percent(merge.second_choice)}


def _suspicion(label: SuspiciousLabel, tiles: Tiles) -> dict[str, Any]:
    found = {"given": shown(label.given), "found": shown(label.found), "confidence": number(label.confidence)}
    return {"tile": tiles[label.row], **found}


def _neighbors(found: Neighbors, run: Snapshot, tiles: Tiles) -> dict[str, Any]:
    def marked(row: int, given: str) -> tuple[Tile, str]:
        return tiles[row], right_or_wrong(given, run.assignments[row].label_given)[0]

    examples = []
    for change in found.examples:
        given = run.assignments[change.row].label_given
        lines = [("before", change.before), ("after", change.after)]
        examples.append(
            {
                "tile": tiles[change.row],
                "given": shown(given),
                "category": shown(run.assignments[change.row].category),
                "lines": [(word, [marked(row, given) for row in rows]) for word, rows in lines],
            }
        )
    is_measured = found.right_before == found.right_before  # not NaN
    return {
        "examples": examples,
        "asked": count(found.n_queries, "labeled image" if found.is_labeled else "image"),
        "is_measured": is_measured,
        "before": percent(found.right_before),
        "after": percent(found.right_after),
    }


def _map_note(run: Snapshot, layouts: list[Layout], with_thumbnail: set[int]) -> str:
    """Say what was sampled."""
    said = []
    for method in dict.fromkeys(layout.method for layout in layouts):
        n = len(next(layout.rows for layout in layouts if layout.method == method))
        every = "all" if n == len(run.assignments) else f"a sample of {n:,} of"
        said.append(f"{method} draws {every} {count(len(run.assignments), 'image')}")
    here = {int(row) for layout in layouts for row in layout.rows}
    pictured = len(here & with_thumbnail)
    if pictured < len(here):
        said.append(f"{pictured:,} of the {len(here):,} have a thumbnail on this page" if pictured else "there are no thumbnails")
    return f"{'; '.join(said)}." if said else ""


def _spread(layouts: list[Layout]) -> Iterable[int]:
    """The rows of all maps in an order that does not favor any category: whoever stops early has a fair sample."""
    rows = {int(row) for layout in layouts for row in layout.rows}
    return sorted(rows, key=lambda row: hashlib.md5(str(row).encode(), usedforsecurity=False).digest())


def _figures(run: Snapshot, left_out: list[str], *wanted: tuple[str, Callable[[Run], Any]]) -> list[dict[str, Any]]:
    found = []
    for name, draw in wanted:
        figure = _try(left_out, draw, run)
        if figure is not None:
            words = (draw.__doc__ or "").strip().splitlines()[0]
            found.append({"name": name, "words": words, "svg": inline_svg(figure, name, words)})
    return found


def _try(left_out: list[str], make: Callable[[Snapshot], Any], run: Snapshot) -> Any:
    """What `make` finds in the run; None where the run does not hold it, and then the sentence is kept."""
    try:
        return make(run)
    except NotInRun as reason:
        if str(reason) not in left_out:
            left_out.append(str(reason))
        return None


@cache
def _environment() -> Environment:
    """Templates in which every value is escaped, and a missing one is an error."""
    folder = files("shoal.report") / "templates"
    pages = {page.name: page.read_text("utf-8") for page in folder.iterdir() if page.name.endswith(".html")}
    found = Environment(
        loader=DictLoader(pages), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
    found.filters["number"] = number
    return found


@cache
def _static() -> dict[str, str]:
    """The style sheet, the script, and the hash that lets this script run and no other."""
    folder = files("shoal.report") / "templates"
    script = "\n".join((folder / name).read_text("utf-8") for name in SCRIPTS)
    script = f'"use strict";\n{script}'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return {"style": (folder / "report.css").read_text("utf-8"), "script": script, "script_hash": f"sha256-{digest}"}
