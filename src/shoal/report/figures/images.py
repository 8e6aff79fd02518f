"""Figures made of images: the map, and neighbors before and after the mean shift."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from shoal.arrays import Floats
from shoal.report.changed_neighbors import NeighborChange, neighbors
from shoal.report.figures.style import (
    CATEGORY_COLORS,
    INK,
    KNOWN,
    MARKERS,
    MUTED,
    NOVEL,
    new_figure,
    plain,
    styled,
)
from shoal.report.map import MapLayout, kept_layouts, pca_layouts
from shoal.report.snapshot import NotInRun, Snapshot
from shoal.runs import Run, Thumbnails, reading
from shoal.text import shown

MAX_NAMES = 30
"""Categories named on the map; with more, the names would hide the points."""


@styled
def map_pca(run: Run) -> Figure:
    """The map by principal components, before and after side by side; circles are known, diamonds novel."""
    return _scatter(Snapshot.of(run), pca_layouts(run))


@styled
def map_tsne(run: Run) -> Figure:
    """The map by t-SNE, as kept in the run folder, before and after side by side."""
    layouts = kept_layouts(run)
    if not layouts:
        raise NotInRun(
            "The map by t-SNE is left out: it has not been drawn; shoal report RUN --tsne draws it."
        )
    return _scatter(Snapshot.of(run), layouts)


@styled
def neighbor_images(run: Run) -> Figure:
    """The nearest images of a few images, before and after they moved together; right and wrong marked where known."""
    snapshot = Snapshot.of(run)
    examples = neighbors(snapshot).examples
    if not snapshot.has_thumbnails:
        raise NotInRun("The figure of neighbors is left out: the run holds no thumbnails.")
    n = 1 + max(len(change.before) for change in examples)
    figure = new_figure(0.75 * n + 0.6, 1.75 * len(examples))
    axes = figure.add_subplot()  # one for all: a grid of them takes ten times as long
    axes.set(xlim=(-0.75, n + 0.1), ylim=(2.4 * len(examples), -0.3), aspect="equal")
    axes.axis("off")
    for at, change in enumerate(examples):
        for line, (word, rows) in enumerate((("before", change.before), ("after", change.after))):
            _draw_row(snapshot, axes, 2.4 * at + 1.15 * line, change, word, rows)
    return figure


def _scatter(run: Snapshot, layouts: list[MapLayout]) -> Figure:
    figure = new_figure(5.2 * len(layouts), 4.9)
    for axes, layout in zip(
        figure.subplots(1, len(layouts), squeeze=False)[0], layouts, strict=True
    ):
        plain(axes, grid=None).set(xticks=[], yticks=[], title=f"{layout.title} ({layout.method})")
        axes.spines[:].set_visible(False)
        for at, category in enumerate(run.categories):
            points = layout.points[run.category_ids[layout.rows] == category.category_id]
            color = CATEGORY_COLORS[at % len(CATEGORY_COLORS)]
            edge = (
                {"edgecolors": INK, "linewidths": 0.3} if category.is_novel else {"linewidths": 0}
            )
            marker = MARKERS[category.is_novel]
            axes.scatter(
                *points.T, s=9, c=color, marker=marker, alpha=0.75, rasterized=True, **edge
            )
            if len(points) and len(run.categories) <= MAX_NAMES:
                _write_name(axes, points, category.category)
    return figure


def _write_name(axes: Axes, points: Floats, name: str) -> None:
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.75, "linewidth": 0}
    x, y = np.median(points, axis=0)
    axes.text(x, y, shown(name, 20), fontsize=7.5, ha="center", va="center", bbox=box)


def _draw_row(
    run: Snapshot, axes: Axes, y: float, change: NeighborChange, word: str, rows: tuple[int, ...]
) -> None:
    given = run.assignments[change.row].label_given
    axes.text(-0.1, y + 0.5, word, fontsize=8, ha="right", va="center")
    for x, (row, image) in enumerate(
        zip((change.row, *rows), run.thumbnails((change.row, *rows)), strict=True)
    ):
        left = x + (0.1 if x else 0)  # the image itself stands a little apart
        with reading(Thumbnails(run.path).file_of(row)):
            pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))
        axes.imshow(
            pixels, extent=(left, left + 0.95, y + 0.95, y), interpolation="none"
        )  # as it is, not resampled
        if x:
            mark, color = right_or_wrong(given, run.assignments[row].label_given)
            box = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "linewidth": 0}
            axes.text(
                left + 0.82,
                y + 0.82,
                mark,
                fontsize=6.5,
                color=color,
                ha="center",
                va="center",
                bbox=box,
            )


def right_or_wrong(given: str, other: str) -> tuple[str, str]:
    """The mark of a neighbor and its color: ✓ same label, ✗ another, · where one of the two is not labeled."""
    if not given or not other:
        return "·", MUTED
    return ("✓", KNOWN) if given == other else ("✗", NOVEL)
