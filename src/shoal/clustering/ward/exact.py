"""Ward distances that every device, block size and thread count computes to the same bits.

Only elementwise float64 operations are used, one torch call each: subtract, multiply, and additions
of the left half of the columns to the right half until one is left. IEEE arithmetic rounds each of
them the same way everywhere; a call that sums or multiplies matrices would add in an order of its
own.
"""

import torch
from torch import Tensor

from shoal.clustering.sums import halving_sum
from shoal.clustering.ward.bounds import N_MIDDLE, weight
from shoal.clustering.workers import Scratch

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Differences held at once; on the CPU they stay in the cache."""


class Geometry:
    """The centroids (M, D) and sizes (M,) of the current clusters, float64, and the distances
    between them."""

    def __init__(self, centroids: Tensor, sizes: Tensor) -> None:
        self.centroids = centroids
        self.sizes = sizes
        self._step = max(1, CHUNK_ELEMENTS[centroids.device.type] // centroids.shape[1])
        self._scratch = Scratch(centroids.device)

    def middle(self) -> Tensor:
        """(D,) a point amid the centroids, wherever a few of them are: the median of some."""
        return self.centroids[:: max(1, len(self.centroids) // N_MIDDLE)].median(0).values

    def distances(self, rows: Tensor, others: Tensor) -> Tensor:
        """D of the pairs (rows[e], others[e]): (E,) squared Ward heights, the same from both
        sides."""
        squares = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
        for start in range(0, len(rows), self._step):
            part = slice(start, start + self._step)
            gap = self._gather("left", rows[part]).sub_(self._gather("right", others[part]))
            squares[part] = halving_sum(gap.mul_(gap))
        return squares * weight(self.sizes[rows], self.sizes[others])

    def merge(self, kept: Tensor, gone: Tensor) -> None:
        """Put the centroid and size of each union into the slot `kept`."""
        for start in range(0, len(kept), self._step):
            left = kept[start : start + self._step]
            right = gone[start : start + self._step]
            a = self.sizes[left, None]
            b = self.sizes[right, None]
            total = a + b
            union = self._gather("left", left).mul_(a)
            union.add_(self._gather("right", right).mul_(b)).div_(total)
            self.centroids.index_copy_(0, left, union)
            self.sizes.index_copy_(0, left, total[:, 0])

    def keep(self, slots: Tensor) -> None:
        """Move the given slots (ascending) to the front and forget the others."""
        self.centroids = moved_to_front(self.centroids, slots, self._step)
        self.sizes = self.sizes[slots]

    def _gather(self, name: str, slots: Tensor) -> Tensor:
        """(E, D) copies of some centroids, in memory that is used again for the next of that
        name."""
        copies = self._scratch.array(name, (len(slots), self.centroids.shape[1]), torch.float64)
        return torch.index_select(self.centroids, 0, slots, out=copies)


def moved_to_front(rows: Tensor, slots: Tensor, step: int) -> Tensor:
    """rows[slots], slots ascending, in the memory of `rows`: a chunk is read before it is
    overwritten."""
    for start in range(0, len(slots), step):
        part = slots[start : start + step]
        rows[start : start + len(part)] = rows[part]
    return rows[: len(slots)]
