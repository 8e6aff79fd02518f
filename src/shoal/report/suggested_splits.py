"""Categories that may be mixtures of two, with the split that would separate them."""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import Ints
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import MIXED_FROM, Category

MAX_SPLITS = 12


@dataclass(frozen=True)
class Split:
    """A category that may be a mixture of two."""

    category: Category
    groups: tuple[Ints, Ints]
    """Rows of the images that would stay and of those that would leave, most typical first."""


def suggested_splits(run: ReviewedRun) -> list[Split]:
    """Return the categories that may be mixtures of two, most probable first."""
    is_apart = np.array(run.column("is_apart"), dtype=bool)
    splits = []
    for category in run.categories:
        if category.category_id in run.members and category.mixed_probability >= MIXED_FROM:
            rows = run.members[category.category_id]
            groups = (rows[~is_apart[rows]], rows[is_apart[rows]])
            if all(map(len, groups)):  # else a review has separated them
                splits.append(Split(category, groups))
    splits.sort(key=lambda split: (-split.category.mixed_probability, split.category.category))
    return splits[:MAX_SPLITS]
