"""What the report makes of a run, and a sentence where a file of it is missing."""

import numpy as np

from shoal.arrays import Ints
from shoal.errors import DataError
from shoal.review.reviewed_run import ReviewedRun

NO_CATEGORY = -1
"""The category id of an image that is possibly new."""

Snapshot = ReviewedRun
"""The same class; callers are moving to the one name."""


class NotInRun(DataError):
    """Something this run does not hold; the message is the sentence that stands in its place."""


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
