"""The data of the report's script: columns of images, and their positions on the map."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from shoal.report.map import MapLayout
from shoal.review.reviewed_run import ReviewedRun
from shoal.settings import Plain
from shoal.text import shown

SHARDS = (".tar", ".parquet")
"""Shards; a link cannot lead into them."""

GRID = 9_999
"""Map positions are integers from 0 to this; a step is a tenth of a pixel on a large screen."""


def columns(run: ReviewedRun, rows: list[int]) -> Plain:
    """Return some images as a list per column; names are positions in `names`."""
    images = [run.assignments[row] for row in rows]
    names: dict[str, int] = {}

    def values(column: str) -> list[Any]:
        return [getattr(image, column) for image in images]

    def named(column: str) -> list[int]:
        return [
            names.setdefault(shown(name), len(names)) if name else -1 for name in values(column)
        ]

    def rounded(column: str) -> list[float | None]:
        return [round(value, 3) if math.isfinite(value) else None for value in values(column)]

    place_of = {category.category_id: at for at, category in enumerate(run.categories)}
    by_name = {
        "row": rows,
        "path": [shown(path) for path in values("path")],
        "category": [place_of.get(number, -1) for number in values("category_id")],
        "confidence": rounded("confidence"),
        "outlier": rounded("outlier_score"),
        "given": named("label_given"),
        "second": named("second_category"),
        "nearest": named("nearest_known"),
        "similarity": rounded("nearest_known_similarity"),
    }
    categories = [
        {
            "name": shown(c.category),
            "novel": c.is_novel,
            "size": c.size,
            "typical": int(run.members.get(c.category_id, [-1])[0]),
        }
        for c in run.categories
    ]
    # Links to originals work on the machine of the run, if the images are files.
    root = Path(run.provenance.get("root") or "")
    is_linked = root.is_absolute() and root.suffix.lower() not in SHARDS
    link = root.as_uri() if is_linked else None
    return {"root": link, "names": list(names), "categories": categories, **by_name}


def map_points(layout: MapLayout, rows: list[int]) -> Plain:
    """Return the positions of images as integers, the longer side from 0 to 9999.

    -1 for an image that is not on this map.
    """
    span = np.ptp(layout.points, axis=0)
    scale = max(float(span.max()), 1e-12)
    points = (layout.points - layout.points.min(axis=0) + (scale - span) / 2) / scale * GRID
    points[:, 1] = GRID - points[:, 1]  # y points down on a page
    placed = np.full((len(rows), 2), -1)
    placed[np.searchsorted(np.asarray(rows), layout.rows)] = np.rint(points)
    x, y = placed.T.tolist()
    return {"method": layout.method, "title": layout.title, "x": x, "y": y}
