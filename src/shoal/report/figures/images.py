"""Figures of the map."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shoal.arrays import Floats
from shoal.report.figures.style import (
    CATEGORY_COLORS,
    INK,
    MARKERS,
    new_figure,
    plain,
    styled,
)
from shoal.report.map import MapLayout, kept_layouts, pca_layouts
from shoal.report.snapshot import NotInRun, Snapshot
from shoal.runs import Run
from shoal.text import shown

MAX_NAMES = 30
"""Categories named on the map; with more, the names would hide the points."""


@styled
def map_pca(run: Run) -> Figure:
    """The map by principal components, before and after side by side; circles are known, diamonds novel."""
    snapshot = Snapshot.of(run)
    return _scatter(snapshot, pca_layouts(snapshot))


@styled
def map_tsne(run: Run) -> Figure:
    """The map by t-SNE, as kept in the run folder, before and after side by side."""
    snapshot = Snapshot.of(run)
    layouts = kept_layouts(snapshot)
    if not layouts:
        raise NotInRun(
            "The map by t-SNE is left out: it has not been drawn; shoal report RUN --tsne draws it."
        )
    return _scatter(snapshot, layouts)


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
