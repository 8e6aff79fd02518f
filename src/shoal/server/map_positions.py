"""Positions of images on the map of the page: by t-SNE, and by PCA until that is computed."""

import threading
from functools import cached_property

import numpy as np

from shoal.arrays import Floats, Ints
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run
from shoal.server.search import Search

Layout = dict[str, object]
WHOLE = 65535

MIN_TSNE = 3
"""Fewest images for which t-SNE is computed."""


class MapPositions:
    """The two layouts of one run, for the same sample of images.

    A layout has its name, tsne or pca, the rows of the images, and x and y, which are 0 … 65535.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._lock = threading.Lock()
        self._tsne: Layout | None = None

    @property
    def best(self) -> Layout:
        """The layout by t-SNE if it was computed, here or by `shoal report --tsne`, else by PCA."""
        return self._tsne or self._cached or self.pca

    @cached_property
    def pca(self) -> Layout:
        """The layout by the first two principal components."""
        from shoal.report.map import principal_components

        points = principal_components(self._search.vectors[self._rows], 2)
        return _scaled(self._rows, points, "pca")

    @property
    def tsne(self) -> Layout:
        """The layout by t-SNE, which takes seconds to compute for hundreds of images, and half a
        minute for thousands; PCA for fewer than three."""
        from shoal.report.map import TSNE_DIMENSIONS, principal_components, tsne

        with self._lock:
            if self._tsne is None:
                self._tsne = self._cached
            if self._tsne is None and len(self._rows) < MIN_TSNE:
                self._tsne = self.pca
            if self._tsne is None:
                x = principal_components(self._search.vectors[self._rows], TSNE_DIMENSIONS)
                self._tsne = _scaled(self._rows, tsne(x), "tsne")
            return self._tsne

    @cached_property
    def _rows(self) -> Ints:
        from shoal.report.map import TSNE_IMAGES, stratified

        return stratified(self._search.review.state.category_ids, TSNE_IMAGES)

    @cached_property
    def _cached(self) -> Layout | None:
        """The layout that a report has stored in the run."""
        from shoal.report.map import cached_layouts

        layouts = cached_layouts(ReviewedRun.of(Run(self._search.review.run.path)))
        return _scaled(layouts[-1].rows, layouts[-1].points, "tsne") if layouts else None


def _scaled(rows: Ints, points: Floats, layout: str) -> Layout:
    low = points.min(axis=0)
    high = points.max(axis=0)
    x, y = np.rint((points - low) / np.maximum(high - low, 1e-12) * WHOLE).T
    # y points down on a page
    return {"layout": layout, "rows": rows.tolist(), "x": x.tolist(), "y": (WHOLE - y).tolist()}
