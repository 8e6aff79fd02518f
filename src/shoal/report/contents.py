"""What the page carries about its images: tiles in the text, columns and map points for its script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from shoal.report.map import MapLayout
from shoal.report.snapshot import Snapshot
from shoal.text import shown
from shoal.words import number

SHARDS = (".tar", ".parquet")
"""Files that hold images, in which no link leads to one."""

GRID = 9_999
"""Map points are whole numbers from 0 to this, a tenth of a pixel on a large screen."""


@dataclass(frozen=True, slots=True)
class ImageTile:
    """One image on the page."""

    row: int
    uri: str | None
    """The thumbnail; None where there is none, and the name stands in its place."""
    path: str
    name: str
    words: str
    """What a screen reader says."""
    is_off: bool
    """Whether it was labeled with another name than that of its category."""


class ImageTiles:
    """The images that stand on the page itself, by row."""

    def __init__(self, run: Snapshot, rows: Sequence[int], uris: dict[int, str]) -> None:
        self.run = run
        self.rows = tuple(rows)
        self.uris = uris

    def __getitem__(self, row: int) -> ImageTile:
        image = self.run.assignments[row]
        path = shown(image.path)
        is_off = bool(image.label_given) and image.label_given != image.category
        words = f"{path}, confidence {number(image.confidence)}"
        if is_off:
            words += f", labeled {shown(image.label_given)}"
        return ImageTile(
            row, self.uris.get(row), path, shown(PurePosixPath(path).name, 24), words, is_off
        )


def columns(run: Snapshot, rows: Sequence[int]) -> dict[str, Any]:
    """The images the page's script knows, a list per column; names are positions in `names`."""
    names: dict[str, int] = {}

    def name_index(name: str) -> int:
        return names.setdefault(shown(name), len(names)) if name else -1

    images = [run.assignments[row] for row in rows]
    by_id = {category.category_id: at for at, category in enumerate(run.categories)}
    root = run.provenance.get("root")
    by_name = {
        "row": list(rows),
        "path": [shown(image.path) for image in images],
        "category": [by_id.get(image.category_id, -1) for image in images],
        "confidence": [_round(image.confidence) for image in images],
        "outlier": [_round(image.outlier_score) for image in images],
        "given": [name_index(image.label_given) for image in images],
        "second": [name_index(image.second_category) for image in images],
        "nearest": [name_index(image.nearest_known) for image in images],
        "similarity": [_round(image.nearest_known_similarity) for image in images],
    }
    categories = [
        {
            "name": shown(c.category),
            "novel": c.is_novel,
            "size": c.size,
            "typical": _first(run, c.category_id),
        }
        for c in run.categories
    ]
    return {"root": _uri(root), "names": list(names), "categories": categories, **by_name}


def map_points(layout: MapLayout, rows: Sequence[int]) -> dict[str, Any]:
    """Where the images lie, as whole numbers: the longer side fills 0 … 9999.

    -1 for an image not on this map.
    """
    low = layout.points.min(axis=0)
    high = layout.points.max(axis=0)
    scale = max(float((high - low).max()), 1e-12)
    margin = (scale - (high - low)) / 2
    points = np.rint((layout.points - low + margin) / scale * GRID).astype(int)
    x, y = np.full((2, len(rows)), -1)
    at = np.searchsorted(np.asarray(rows), layout.rows)
    # a page counts downward
    x[at] = points[:, 0]
    y[at] = GRID - points[:, 1]
    return {"method": layout.method, "title": layout.title, "x": x.tolist(), "y": y.tolist()}


def _first(run: Snapshot, category_id: int) -> int:
    rows = run.members.get(category_id)
    return -1 if rows is None else int(rows[0])


def _round(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def _uri(root: Any) -> str | None:
    """The folder of the images as a link, so that an original can be opened from where the run was made."""
    if (
        not isinstance(root, str)
        or not Path(root).is_absolute()
        or Path(root).suffix.lower() in SHARDS
    ):
        return None
    return Path(root).as_uri()
