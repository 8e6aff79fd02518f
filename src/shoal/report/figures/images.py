"""Figures of the map of embeddings."""

from itertools import cycle

import numpy as np
from matplotlib.figure import Figure

from shoal.report.figures.style import (
    CATEGORY_COLORS,
    INK,
    MARKERS,
    house_style,
    new_figure,
    plain,
)
from shoal.report.map import MapLayout, cached_layouts, pca_layouts
from shoal.report.not_in_run import NotInRun
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run
from shoal.text import shown

MAX_NAMES = 30
"""With more categories the map has no names, because they would hide the points."""


@house_style()
def map_pca(run: Run) -> Figure:
    """The map by principal components, before and after side by side. Circles are known, diamonds
    novel.
    """
    reviewed = ReviewedRun.of(run)
    return _scatter(reviewed, pca_layouts(reviewed))


@house_style()
def map_tsne(run: Run) -> Figure:
    """The map by t-SNE, before and after side by side."""
    reviewed = ReviewedRun.of(run)
    layouts = cached_layouts(reviewed)
    if not layouts:
        raise NotInRun("No map by t-SNE: `shoal report RUN --tsne` computes it.")
    return _scatter(reviewed, layouts)


def _scatter(run: ReviewedRun, layouts: list[MapLayout]) -> Figure:
    figure = new_figure(5.2 * len(layouts), 4.9)
    panels = figure.subplots(1, len(layouts), squeeze=False)[0]
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.75, "linewidth": 0}
    for axes, layout in zip(panels, layouts, strict=True):
        plain(axes, grid=None).set(xticks=[], yticks=[], title=f"{layout.title} ({layout.method})")
        axes.spines[:].set_visible(False)
        for category, color in zip(run.categories, cycle(CATEGORY_COLORS), strict=False):
            points = layout.points[run.category_ids[layout.rows] == category.category_id]
            axes.scatter(
                *points.T,
                s=9,
                c=color,
                marker=MARKERS[category.is_novel],
                alpha=0.75,
                rasterized=True,
                edgecolors=INK if category.is_novel else None,
                linewidths=0.3 if category.is_novel else 0,
            )
            if len(points) and len(run.categories) <= MAX_NAMES:
                x, y = np.median(points, axis=0)
                name = shown(category.category, 20)
                axes.text(x, y, name, fontsize=7.5, ha="center", va="center", bbox=box)
    return figure
