"""A finished run of twelve images in two known and two novel categories, written in milliseconds
without torch."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import ward

from shoal.data.readers.embeddings import Embeddings
from shoal.files import write_text
from shoal.runs import Assignment, Category, Run

NAMES = ("gull", "heron", "novel-001", "novel-002")


@dataclass(frozen=True)
class Settings:
    epochs: int = 0


def points(ids: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return unit vectors around one axis per category."""
    spread = np.random.default_rng(seed).normal(size=(len(ids), 8), scale=0.05)
    x = np.eye(8)[ids] + spread
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def embedded(
    x: np.ndarray,
    labels: np.ndarray,
    classes: tuple[str, ...] = ("a", "b", "c"),
    names: list[str] | None = None,
) -> Embeddings:
    """Return embeddings as read from a file."""
    names = names or [f"{row:04d}" for row in range(len(x))]
    return Embeddings(tuple(names), x, labels, classes, rows=np.arange(len(x)))


def embedded_five() -> Embeddings:
    """Return 60 rows of five classes, three of them known, with 18 labeled rows."""
    truth = np.arange(60) % 5
    x = np.eye(5)[truth] + 0.25 * np.random.default_rng(0).normal(size=(60, 5))
    return embedded(x, np.where((truth < 3) & (np.arange(60) < 30), truth, -1))


def write_small(
    path: Path,
    *,
    ids: tuple[int, ...] = (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3),
    names: tuple[str, ...] = NAMES,
    labeled: Collection[int] | None = None,
    kinds: tuple[int, ...] | None = None,
) -> Run:
    """Write a run: image i is 'i.png' in category ids[i]; `labeled` images have a label, by default
    the first of each known category.

    The embedding of image i resembles kinds[i], by default its category.
    """
    n_known = sum(not name.startswith("novel") for name in names)
    x = points(np.array(kinds or ids))
    if labeled is None:
        labeled = [ids.index(c) for c in range(n_known) if c in ids]
    paths = [f"{row:02d}.png" for row in range(len(ids))]
    rows = [
        Assignment(
            path=paths[row],
            label_given=names[c] if row in labeled else "",
            category_id=c,
            category=names[c],
            is_novel=c >= n_known,
            confidence=0.9 - 0.01 * row,
            outlier_score=0.1 + 0.01 * row,
            nearest_known=names[0],
            nearest_known_similarity=0.5,
            second_category=names[(c + 1) % len(names)],
        )
        for row, c in enumerate(ids)
    ]
    categories = [
        Category(
            category_id=c,
            category=name,
            is_novel=c >= n_known,
            size=ids.count(c),
            n_labeled=sum(ids[row] == c for row in labeled),
            confidence=0.8,
            exemplars=tuple(paths[row] for row, own in enumerate(ids) if own == c)[:5],
        )
        for c, name in enumerate(names)
    ]
    run = Run.create(path)
    run.start(Settings(), seed=0, device="cpu", command="shoal discover photos")
    run.write_assignments(rows)
    run.write_categories(categories)
    run.write_array("embeddings", x)
    run.write_array("tree", ward(x.astype(np.float64)))
    write_estimates(run, len(names))
    run.note(seconds=1.0)
    run.finish()
    return run


def write_estimates(run: Run, n_clusters: int) -> None:
    """Write estimate.json and calibration.json as if K was given and no labels could calibrate
    confidence."""
    nothing: dict[str, list[float]] = {
        "confidence": [0, 1],
        "n_correct": [0, 0],
        "n_images": [0, 0],
    }
    curves = {"known": nothing, "novel": nothing, "labeled": nothing}
    nothing_known = {"label_rate": None, "weight": 1.0, "is_from_frozen": False}
    scale = {"is_calibrated": False, "scale": [1.0] * n_clusters}
    run.write_json("calibration", {**scale, **nothing_known, **curves})
    run.write_json("estimate", {"n_clusters": n_clusters, "rule": None, "is_given": True})


def append_metrics(run: Run, row: dict[str, Any]) -> None:
    """Add a row to metrics.jsonl, as training does."""
    write_text(
        run.path / "metrics.jsonl", "".join(f"{json.dumps(each)}\n" for each in [*run.metrics, row])
    )
