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
    """A run whose files are parsed on first use and then kept.

    Takes a run wherever a run is taken.
    """

    def __init__(self, run: RunView) -> None:
        super().__init__(run.path)
        self._vectors: dict[str, Floats] = {}  # checked once: that reads all of them

    @classmethod
    def of(cls, run: Run) -> "Snapshot":
        """The snapshot of a run; of a snapshot, itself."""
        return run if isinstance(run, cls) else cls(run)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Versions, device, seed and times."""
        return Run(self.path).provenance

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per epoch."""
        return Run(self.path).metrics

    @cached_property
    def assignments(self) -> Sequence[Assignment]:
        """A row per image, as people have decided."""
        if self.review is None:
            return Run(self.path).assignments
        return reviewed_assignments(self.review)

    @cached_property
    def categories(self) -> list[Category]:
        """A row per category, known ones first."""
        if self.review is None:
            return Run(self.path).categories
        return reviewed_categories(self.review)

    @cached_property
    def review(self) -> Review | None:
        """What people decided; None where there is nothing, or nothing about this answer."""
        return fitting_review(self)

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
        outlier = np.nan_to_num(np.array(self.column("outlier_score"), dtype=np.float64))
        confidence = np.nan_to_num(np.array(self.column("confidence"), dtype=np.float64))
        by_path = np.array(sorted(range(len(paths)), key=paths.__getitem__), dtype=np.int64)
        # lexsort is stable: equal ones stay in the order of their paths
        order = by_path[np.lexsort((-confidence[by_path], outlier[by_path]))]
        rows: Ints = order[np.argsort(self.category_ids[order], kind="stable")]
        ids, first = np.unique(self.category_ids[rows], return_index=True)
        return dict(zip(ids.tolist(), np.split(rows, first[1:]), strict=False))  # none: one part

    def rows_of(self, name: str) -> Floats:
        """Map `<name>.npy`, (N, D), into memory. One that is damaged is refused."""
        if name not in self._vectors:
            self._vectors[name] = read_vectors(self.path / f"{name}.npy", len(self.assignments))
        return self._vectors[name]

    def column(self, name: str) -> Any:
        """(N,) one column of `assignments`, a list or an array."""
        return column(self.assignments, name)


def stratified(ids: Ints, n_rows: int, *, seed: int = 0) -> Ints:
    """Choose rows so that every category keeps its share and at least one image.

    Ascending, all of them if few.

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
