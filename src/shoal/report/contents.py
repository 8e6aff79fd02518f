"""The data of the report's script: columns of images, and their positions on the map."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shoal.report.map import MapLayout
from shoal.review.reviewed_run import ReviewedRun
from shoal.text import shown

SHARDS = (".tar", ".parquet")
"""Shards; a link cannot lead into them."""

GRID = 9_999
"""Map positions are integers from 0 to this; a step is a tenth of a pixel on a large screen."""


def columns(run: ReviewedRun, rows: Sequence[int]) -> dict[str, object]:
    """Return some images as a list per column; names are positions in `names`."""
    names: dict[str, int] = {}

    def name_index(name: str) -> int:
        return names.setdefault(shown(name), len(names)) if name else -1

    images = [run.assignments[row] for row in rows]
    place_of = {category.category_id: at for at, category in enumerate(run.categories)}
    categories = []
    for c in run.categories:
        members = run.members.get(c.category_id, [-1])
        about = {"name": shown(c.category), "novel": c.is_novel, "size": c.size}
        categories.append({**about, "typical": int(members[0])})
    by_name = {
        "row": list(rows),
        "path": [shown(image.path) for image in images],
        "category": [place_of.get(image.category_id, -1) for image in images],
        "confidence": [_round(image.confidence) for image in images],
        "outlier": [_round(image.outlier_score) for image in images],
        "given": [name_index(image.label_given) for image in images],
        "second": [name_index(image.second_category) for image in images],
        "nearest": [name_index(image.nearest_known) for image in images],
        "similarity": [_round(image.nearest_known_similarity) for image in images],
    }
    # Links to originals work on the machine of the run, if the images are files.
    root = Path(run.provenance.get("root") or "")
    is_linked = root.is_absolute() and root.suffix.lower() not in SHARDS
    link = root.as_uri() if is_linked else None
    return {"root": link, "names": list(names), "categories": categories, **by_name}


def map_points(layout: MapLayout, rows: Sequence[int]) -> dict[str, object]:
    """Return the positions of images as integers, the longer side from 0 to 9999.

    -1 for an image that is not on this map.
    """
    low = layout.points.min(axis=0)
    high = layout.points.max(axis=0)
    scale = max(float((high - low).max()), 1e-12)
    margin = (scale - (high - low)) / 2
    points = np.rint((layout.points - low + margin) / scale * GRID).astype(int)
    x, y = np.full((2, len(rows)), -1)
    at = np.searchsorted(np.asarray(rows), layout.rows)
    x[at] = points[:, 0]
    y[at] = GRID - points[:, 1]  # y points down on a page
    return {"method": layout.method, "title": layout.title, "x": x.tolist(), "y": y.tolist()}


def _round(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
