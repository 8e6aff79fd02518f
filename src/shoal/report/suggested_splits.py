"""Categories that may hold another one, as the run has marked them, with the split that would part them."""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import Ints
from shoal.report.snapshot import Snapshot
from shoal.runs import MIXED_FROM, Category


@dataclass(frozen=True, slots=True)
class Split:
    """A category that may hold another one."""

    category: Category
    groups: tuple[Ints, Ints]
    """Rows of the images that would stay and of those that would leave, each by how typical its
    images are."""
    n_labeled: tuple[int, int]
    """How many labeled images each of them has."""


def suggested_splits(run: Snapshot, *, most: int = 12) -> list[Split]:
    """The marked categories, the likeliest first.

    One that a review has parted already is none of them.
    """
    is_apart = np.array(run.column("is_apart"), dtype=bool)
    splits = []
    for category in run.categories:
        if category.mixed_probability < MIXED_FROM or category.category_id not in run.members:
            continue
        rows = run.members[category.category_id]
        stay = rows[~is_apart[rows]]
        leave = rows[is_apart[rows]]
        if len(stay) and len(leave):
            n_labeled = (int(run.is_labeled[stay].sum()), int(run.is_labeled[leave].sum()))
            splits.append(Split(category, (stay, leave), n_labeled))
    splits.sort(key=lambda split: (-split.category.mixed_probability, split.category.category))
    return splits[:most]


def split_words(split: Split) -> str:
    """Describe a split: '20 labeled images on one side, 53 unlabeled on the other'."""
    sides = []
    for rows, n_labeled in zip(split.groups, split.n_labeled, strict=True):
        n_unlabeled = len(rows) - n_labeled
        counts = [f"{n_labeled:,} labeled" if n_labeled else "", f"{n_unlabeled:,} unlabeled"]
        sides.append(" and ".join(filter(None, counts)))
    return f"{sides[0]} images on one side, {sides[1]} on the other"
