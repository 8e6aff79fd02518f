"""Which category of an earlier answer a category is: the one with mostly the same images.

N images.
"""

import numpy as np

from shoal.arrays import Ints


def mostly_same(now: Ints, before: Ints) -> dict[int, int]:
    """By group of `now` (N,) the group of `before` (N,) that shares more than half of the larger of both.

    So each is matched once at most. -1 in `before` is no group; such images count for the size of what they are in now.
    """
    found: dict[int, int] = {}
    sizes = np.bincount(before[before >= 0], minlength=1)
    for group in np.unique(now).tolist():
        rows = now == group
        shared = np.bincount(before[rows & (before >= 0)], minlength=1)
        best = int(shared.argmax())
        if 2 * int(shared[best]) > max(int(rows.sum()), int(sizes[best])):
            found[group] = best
    return found
