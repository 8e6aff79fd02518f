"""Categories that may be several: large ones whose images fall into groups of their own.

N images, K categories.
"""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import Ints
from shoal.clustering.tree import Tree
from shoal.errors import DataError
from shoal.report.snapshot import NotInRun, Snapshot
from shoal.report.suggestions import MIN_IMAGES, ONE_GROUP, compared, separation
from shoal.runs import Category

TIMES_USUAL = 2.0
"""How many times the usual size, the median, a category has to have."""

MIN_SHARE = 0.15
"""Share of a category's images that a group has to have."""


@dataclass(frozen=True, slots=True)
class Split:
    """A category that may be several."""

    category: Category
    times_usual: float
    """Its size over the median of all categories."""
    groups: tuple[Ints, ...]
    """Rows of the groups that the tree parts it into, the largest first, each by how typical its images are."""
    separation: float
    """How far the two largest lie apart; two halves of one evenly filled group have 3.46."""


def suggested_splits(run: Snapshot, *, most: int = 12) -> list[Split]:
    """Categories of twice the usual size that the tree parts into groups farther apart than halves of one group.

    The tree is cut into more and more clusters, up to twice the number of categories; distances are those before
    images moved together.
    """
    vectors = run.rows_of("embeddings")
    missing = "Suggested splits are left out: the run holds no "
    if vectors is None or not run.has("tree.npy"):
        raise NotInRun(
            f"{missing}{'embeddings' if vectors is None else 'tree'} to part categories by."
        )
    sizes = {
        category_id: len(rows) for category_id, rows in run.members.items() if category_id >= 0
    }
    if len(sizes) < 2:
        return []
    usual = float(np.median([*sizes.values()]))
    tree = _tree(run, missing)
    large = {
        c.category_id: c
        for c in run.categories
        if sizes.get(c.category_id, 0) >= TIMES_USUAL * usual
    }
    splits = []
    for n_parts in range(
        len(sizes) + 1, min(2 * len(sizes), len(run.assignments)) + 1, max(1, len(sizes) // 20)
    ):
        parts = tree.cut(n_parts) if large else np.zeros(0, np.int64)
        for category in [*large.values()]:
            rows = run.members[category.category_id]
            groups = _groups(rows, parts)
            if (
                len(groups) > 1
            ):  # the first cut that parts it shows its groups, later ones their halves
                a, b = (np.asarray(vectors[compared(group)], np.float64) for group in groups[:2])
                splits.append(Split(category, len(rows) / usual, groups, separation(a, b)))
                del large[category.category_id]
    splits = [split for split in splits if split.separation > ONE_GROUP]
    return sorted(splits, key=lambda split: (-split.times_usual, split.category.category))[:most]


def _tree(run: Snapshot, missing: str) -> Tree:
    linkage = run.array("tree")
    if linkage.ndim != 2 or len(linkage) + 1 != len(run.assignments):
        raise NotInRun(f"{missing}tree of its images to part categories by.")
    try:
        return Tree(linkage)
    except DataError as error:
        raise NotInRun(f"{missing}tree that can be read ({error}).") from error


def _groups(rows: Ints, parts: Ints) -> tuple[Ints, ...]:
    """The rows of each part that is large enough, the largest first; rows keep their order."""
    names, sizes = np.unique(parts[rows], return_counts=True)
    large = sizes >= max(MIN_IMAGES, MIN_SHARE * len(rows))
    ordered = sorted(zip((-sizes[large]).tolist(), names[large].tolist(), strict=True))
    return tuple(rows[parts[rows] == name] for _, name in ordered)
