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

    def layout(self, name: str) -> Layout:
        """Return the layout pca or tsne, or else the one by t-SNE if it is known.

        t-SNE takes seconds to compute for hundreds of images, and half a minute for thousands; for
        fewer than three, and until it is known, the layout is by PCA.
        """
        from shoal.report.map import TSNE_DIMENSIONS, principal_components, tsne

        self._tsne = self._tsne or self._stored
        wants_pca = name == "pca" or len(self._rows) < MIN_TSNE
        if wants_pca or (name != "tsne" and self._tsne is None):
            return self._pca
        with self._lock:
            if self._tsne is None:
                x = principal_components(self._search.vectors[self._rows], TSNE_DIMENSIONS)
                self._tsne = _scaled(self._rows, tsne(x), "tsne")
            return self._tsne

    @cached_property
    def _pca(self) -> Layout:
        from shoal.report.map import principal_components

        points = principal_components(self._search.vectors[self._rows], 2)
        return _scaled(self._rows, points, "pca")

    @cached_property
    def _rows(self) -> Ints:
        from shoal.report.map import TSNE_IMAGES, stratified

        return stratified(self._search.review.state.category_ids, TSNE_IMAGES)

    @cached_property
    def _stored(self) -> Layout | None:
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
