"""Categories that may be two, with the split that would separate them."""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import Ints
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import MIXED_FROM, Category

MAX_SPLITS = 12


@dataclass(frozen=True, slots=True)
class Split:
    """A category that may be two."""

    category: Category
    groups: tuple[Ints, Ints]
    """Rows of the images that would stay and of those that would leave, most typical first."""
    n_labeled: tuple[int, int]
    """The number of labeled images in each group."""


def suggested_splits(run: ReviewedRun) -> list[Split]:
    """Return the categories that may be two, most probable first."""
    is_apart = np.array(run.column("is_apart"), dtype=bool)
    splits = []
    for category in run.categories:
        if category.mixed_probability < MIXED_FROM or category.category_id not in run.members:
            continue
        rows = run.members[category.category_id]
        stay = rows[~is_apart[rows]]
        leave = rows[is_apart[rows]]
        if len(stay) and len(leave):  # else a review has separated them
            n_labeled = (int(run.is_labeled[stay].sum()), int(run.is_labeled[leave].sum()))
            splits.append(Split(category, (stay, leave), n_labeled))
    splits.sort(key=lambda split: (-split.category.mixed_probability, split.category.category))
    return splits[:MAX_SPLITS]
