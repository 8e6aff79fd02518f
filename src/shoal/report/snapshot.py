"""A run as the report sees it: every file read once, and a sentence where one is missing.

N images. Rows of everything are the images of assignments.csv, in its order.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shoal.arrays import Bools, Floats, Ints
from shoal.errors import DataError
from shoal.review.review import Review
from shoal.review.reviewed_run import fitting_review, reviewed_assignments, reviewed_categories
from shoal.runs import UNSURE_BELOW, Assignment, Category, Run, RunView, column, read_vectors

NO_CATEGORY = -1
"""The category id of an image that is possibly new."""


class NotInRun(DataError):
    """Something this run does not hold; the message is the sentence that stands in its place."""


class Snapshot(Run):
    """A run whose files are parsed on first use and then kept. Takes a run wherever a run is taken."""

    def __init__(self, run: RunView) -> None:
        super().__init__(run.path)
        self._vectors: dict[str, Floats] = {}  # checked once: that reads all of them

    @classmethod
    def of(cls, run: Run) -> "Snapshot":
        """The snapshot of a run; of a snapshot, itself."""
        return run if isinstance(run, cls) else cls(run)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Versions, device, seed and times; empty where nothing was recorded."""
        return self.json("provenance") if self.has("provenance.json") else {}

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per epoch."""
        return Run(self.path).metrics

    @cached_property
    def assignments(self) -> Sequence[Assignment]:
        """A row per image, as people have decided."""
        return (
            Run(self.path).assignments if self.review is None else reviewed_assignments(self.review)
        )

    @cached_property
    def categories(self) -> list[Category]:
        """A row per category, known ones first; counted from the images where categories.csv is missing."""
        if self.review is not None:
            return reviewed_categories(self.review)
        if self.has("categories.csv"):
            return Run(self.path).categories
        ids = sorted(set(self.category_ids.tolist()) - {NO_CATEGORY})
        counted = [self._counted(category_id) for category_id in ids]
        return sorted(counted, key=lambda category: category.is_novel)

    @cached_property
    def review(self) -> Review | None:
        """What people decided; None where there is nothing, or nothing about this answer."""
        return fitting_review(self) if self.has("categories.csv") else None

    @cached_property
    def category_ids(self) -> Ints:
        """(N,) the category of each image, -1 for none."""
        return np.array(self.column("category_id"), dtype=np.int64)

    @cached_property
    def is_labeled(self) -> Bools:
        """(N,) whether an image came with a label."""
        return np.array([bool(label) for label in self.column("label_given")], dtype=bool)

    @cached_property
    def is_unsure(self) -> Bools:
        """(N,) whether an image has no category, or one of low confidence."""
        confidence = np.array(self.column("confidence"), dtype=np.float64)
        unsure: Bools = (self.category_ids == NO_CATEGORY) | (confidence < UNSURE_BELOW)
        return unsure

    @cached_property
    def members(self) -> dict[int, Ints]:
        """The rows of each category, most typical first: by outlier score, then confidence, then path."""
        paths = self.column("path")
        scores = (self.column(name) for name in ("outlier_score", "confidence"))
        outlier, confidence = (np.array([_or_zero(value) for value in score]) for score in scores)
        by_path = np.array(sorted(range(len(paths)), key=paths.__getitem__), dtype=np.int64)
        order = by_path[
            np.lexsort((-confidence[by_path], outlier[by_path]))
        ]  # stable: equal ones stay by path
        rows: Ints = order[np.argsort(self.category_ids[order], kind="stable")]
        ids, first = np.unique(self.category_ids[rows], return_index=True)
        return dict(
            zip(ids.tolist(), np.split(rows, first[1:]), strict=False)
        )  # no rows are one part of none

    def part(self, name: str, otherwise: str) -> dict[str, Any]:
        """Read `<name>.json`; where it is missing, raise `NotInRun` with the sentence `otherwise`."""
        if not self.has(f"{name}.json"):
            raise NotInRun(otherwise)
        return self.json(name)

    def rows_of(self, name: str) -> Floats | None:
        """Map `<name>.npy`, (N, D), into memory; None where it is missing. One that is damaged is refused."""
        if name not in self._vectors and self.has(f"{name}.npy"):
            self._vectors[name] = read_vectors(self.path / f"{name}.npy", len(self.assignments))
        return self._vectors.get(name)

    def column(self, name: str) -> Any:
        """(N,) one column of `assignments`, a list or an array."""
        return column(self.assignments, name)

    def _counted(self, category_id: int) -> Category:
        rows = [self.assignments[row] for row in self.members[category_id]]
        nearest = max(rows, key=lambda row: _or_zero(row.nearest_known_similarity))
        return Category(
            category_id=category_id,
            category=rows[0].category,
            is_novel=rows[0].is_novel,
            size=len(rows),
            n_labeled=sum(bool(row.label_given) for row in rows),
            confidence=float(np.mean([row.confidence for row in rows])),
            nearest_known=nearest.nearest_known,
            nearest_known_similarity=nearest.nearest_known_similarity,
        )


def _or_zero(value: float) -> float:
    return (
        value if value == value else 0.0
    )  # NaN equals nothing; numpy's own test is slow for single numbers


def stratified(ids: Ints, n_rows: int, *, seed: int = 0) -> Ints:
    """Choose rows so that every category keeps its share and at least one image; ascending, all of them if few.

    More categories than `n_rows` still get one each.
    """
    if len(ids) <= n_rows:
        return np.arange(len(ids))
    rng = np.random.default_rng(seed)
    chosen = []
    for category_id in np.unique(ids):
        rows = np.flatnonzero(ids == category_id)
        share = max(1, int(len(rows) * n_rows / len(ids)))
        chosen.append(rng.choice(rows, size=share, replace=False))
    return np.sort(np.concatenate(chosen))
