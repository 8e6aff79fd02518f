"""Ward distances that every device, block size and thread count computes to the same bits.

Only elementwise float64 operations are used, one torch call each: subtract, multiply, and additions of the left half of
the columns to the right half until one is left. IEEE arithmetic rounds each of them the same way everywhere; a call
that sums or multiplies matrices would add in an order of its own.
"""

import torch
from torch import Tensor

from shoal.clustering.sums import halving_sum
from shoal.clustering.ward.bounds import weight
from shoal.clustering.ward.workers import Scratch

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Differences held at once; on the CPU they stay in the cache."""


class Geometry:
    """The centroids (M, D) and sizes (M,) of the current clusters, float64, and the distances between them."""

    def __init__(self, centroids: Tensor, sizes: Tensor) -> None:
        self.centroids = centroids
        self.sizes = sizes
        self._step = max(1, CHUNK_ELEMENTS[centroids.device.type] // centroids.shape[1])
        self._scratch = Scratch(centroids.device)

    def distances(self, rows: Tensor, others: Tensor) -> Tensor:
        """D of the pairs (rows[e], others[e]): (E,) squared Ward heights, the same from both sides."""
        found = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
        for start in range(0, len(rows), self._step):
            part = slice(start, min(start + self._step, len(rows)))
            shape = (part.stop - part.start, self.centroids.shape[1])
            left, right = (self._scratch.array(name, shape, torch.float64) for name in ("left", "right"))
            torch.index_select(self.centroids, 0, rows[part], out=left)
            torch.index_select(self.centroids, 0, others[part], out=right)
            left.sub_(right)
            found[part] = halving_sum(left.mul_(left))
        return found * weight(self.sizes[rows], self.sizes[others])

    def all_distances(self, rows: Tensor, columns: slice) -> Tensor:
        """D of some rows with all clusters of a slice: (R, C)."""
        theirs = self.centroids[columns]
        step = max(1, self._step // len(theirs))
        found = torch.empty(len(rows), len(theirs), dtype=torch.float64, device=rows.device)
        for start in range(0, len(rows), step):
            gap = self.centroids[rows[start : start + step], None] - theirs  # (r, C, D)
            found[start : start + step] = halving_sum(gap.mul_(gap))
        return found.mul_(weight(self.sizes[rows, None], self.sizes[columns]))

    def merge(self, kept: Tensor, gone: Tensor) -> None:
        """Put the centroid and size of each union into the slot `kept`."""
        a, b = self.sizes[kept, None], self.sizes[gone, None]
        self.centroids[kept] = (self.centroids[kept] * a + self.centroids[gone] * b) / (a + b)
        self.sizes[kept] += self.sizes[gone]

    def keep(self, slots: Tensor) -> None:
        """Move the given slots (ascending) to the front and forget the others; in place, a chunk at a time."""
        move_to_front(self.centroids, slots, self._step)
        self.centroids, self.sizes = self.centroids[: len(slots)], self.sizes[slots]


def move_to_front(rows: Tensor, slots: Tensor, step: int) -> None:
    """Write rows[slots] over rows[:len(slots)], slots ascending: no source is overwritten before it is read."""
    for start in range(0, len(slots), step):
        rows[start : start + step][: len(slots) - start] = rows[slots[start : start + step]]
