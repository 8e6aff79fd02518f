"""Few rows on a CPU: the rounds of `rounds.py` on a table of all distances, without lists, scans or bounds.

With a hundred rows a round is all overhead: torch takes a few microseconds for each of its calls, numpy a fifth of
that. So distances and centroids are computed by the same code as everywhere (`exact.py`), which makes the tree the same
bit for bit, and numpy keeps the books.

M slots; a slot dies when its cluster is absorbed.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Bools, Floats, Ints
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import LAST
from shoal.clustering.ward.rounds import RoundMerges

FEW_PRODUCTS = 1 << 22
"""N² D up to which this is faster than bounds that spare most distances; none on a GPU, where numpy has to wait."""


def merge_few(geometry: Geometry, nodes: Tensor, next_node: int) -> Iterator[RoundMerges]:
    """Merge all clusters, a round at a time; `nodes` (M,) hold them, and the unions are numbered from `next_node`."""
    slots = np.arange(len(nodes))
    number = nodes.numpy().copy()
    heights = np.zeros(len(slots))  # D at which each cluster was made
    table = _distances(geometry, slots)
    np.fill_diagonal(table, np.inf)
    nearest, distance = _nearest(table, slots)
    is_live = np.ones(len(slots), dtype=bool)
    while is_live.sum() > 1:
        kept = ((nearest[nearest] == slots) & (slots < nearest)).nonzero()[0]
        gone = nearest[kept]
        assert len(kept), "no cluster is nearest to its nearest: a distance is not symmetric"
        # Rounding may put a union a hair below its parts; a tree's heights never fall.
        heights[kept] = np.maximum(distance[kept], np.maximum(heights[kept], heights[gone]))
        is_merged = np.zeros_like(is_live)
        is_merged[kept] = is_merged[gone] = True
        stale = (is_merged[nearest] & ~is_merged & is_live).nonzero()[0]
        is_live[gone] = False
        geometry.merge(torch.from_numpy(kept), torch.from_numpy(gone))
        sizes = geometry.sizes[torch.from_numpy(kept)]
        left, right, height = (
            torch.from_numpy(each) for each in (number[kept], number[gone], heights[kept])
        )
        yield RoundMerges(left, right, height, sizes)
        number[kept] = np.arange(next_node, next_node + len(kept))
        next_node += len(kept)
        nearest[gone] = gone  # the dead are nobody's nearest but their own
        _renew(table, geometry, kept, is_live)
        fresh = np.concatenate([kept, stale])
        nearest[fresh], distance[fresh] = _nearest(table, fresh)
        nearest, distance = _told(nearest, distance, fresh)


def _distances(geometry: Geometry, rows: Ints) -> Floats:
    distances: Floats = geometry.all_distances(
        torch.from_numpy(rows), slice(0, len(geometry.sizes))
    ).numpy()
    return distances


def _nearest(table: Floats, rows: Ints) -> tuple[Ints, Floats]:
    """The nearest cluster of each row, the lowest slot among equals, and its D."""
    nearest = table[rows].argmin(1)
    return nearest, table[rows, nearest]


def _renew(table: Floats, geometry: Geometry, kept: Ints, is_live: Bools) -> None:
    """Put in the distances of unions, and of the dead none."""
    table[kept] = _distances(geometry, kept)
    table[:, kept] = table[kept].T
    table[kept, kept] = np.inf
    table[:, ~is_live] = np.inf


def _told(nearest: Ints, distance: Floats, fresh: Ints) -> tuple[Ints, Floats]:
    """Make each cluster just decided on the nearest of its nearest, where it comes before that one's own."""
    told = nearest[fresh]
    its = distance[fresh]
    least = distance.copy()
    np.minimum.at(least, told, its)
    first = np.where(least == distance, nearest, LAST)
    np.minimum.at(first, told, np.where(its == least[told], fresh, LAST))
    return first, least
