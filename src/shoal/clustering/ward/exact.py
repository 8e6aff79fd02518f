"""Ward distances with the same bits on every device, for any block size and number of threads.

Only elementwise float64 operations are used: subtract, multiply, and add along a halving tree. IEEE
arithmetic rounds them the same way everywhere; sums and matrix products add in an order that
depends on the device.
"""

import torch
from torch import Tensor

from shoal.clustering.products import Scratch
from shoal.clustering.sums import halving_sum
from shoal.clustering.ward.bounds import weight

# Differences per chunk; on the CPU a chunk fits into the cache
CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}


class Geometry:
    """The centroids (M, D) and sizes (M,) of the current clusters, float64."""

    def __init__(self, centroids: Tensor, sizes: Tensor) -> None:
        self.centroids = centroids
        self.sizes = sizes
        self._scratch = Scratch(centroids.device)
        self.step = max(1, CHUNK_ELEMENTS[centroids.device.type] // centroids.shape[1])

    def distances(self, rows: Tensor, others: Tensor) -> Tensor:
        """Return the squared Ward heights D (E,) of the pairs (rows[e], others[e]), symmetric to
        the bit."""
        squares = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
        for start in range(0, len(rows), self.step):
            part = slice(start, start + self.step)
            gap = self._gather("left", rows[part]).sub_(self._gather("right", others[part]))
            squares[part] = halving_sum(gap.mul_(gap))
        return squares * weight(self.sizes[rows], self.sizes[others])

    def merge(self, kept: Tensor, gone: Tensor) -> None:
        """Replace the centroid and size in the slots `kept` by those of the unions with `gone`."""
        a = self.sizes[kept, None]
        b = self.sizes[gone, None]
        self.centroids[kept] = (self.centroids[kept] * a).add_(self.centroids[gone] * b).div_(a + b)
        self.sizes[kept] = (a + b)[:, 0]

    def keep(self, slots: Tensor) -> None:
        self.centroids = moved_to_front(self.centroids, slots, self.step)
        self.sizes = self.sizes[slots]

    def _gather(self, name: str, slots: Tensor) -> Tensor:
        """Return copies (E, D) of some centroids, in the buffer of that name."""
        copies = self._scratch.array(name, (len(slots), self.centroids.shape[1]), torch.float64)
        return torch.index_select(self.centroids, 0, slots, out=copies)


def moved_to_front(rows: Tensor, slots: Tensor, step: int) -> Tensor:
    """Return rows[slots], slots ascending, in the memory of `rows`."""
    for start in range(0, len(slots), step):  # a chunk is read before it is overwritten
        part = slots[start : start + step]
        rows[start : start + len(part)] = rows[part]
    return rows[: len(slots)]
