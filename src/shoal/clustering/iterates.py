"""The iterates of Algorithm 1: unit rows, their neighbors and their tree after each shift.

Shapes: N images, D columns, k neighbors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shoal.clustering.mean_shift import NeighborAttention, ShiftSettings, find_neighbors, shift
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import BLOCK_ROWS
from shoal.clustering.tree import Tree
from shoal.clustering.ward.linkage import link_rows, ward_linkage
from shoal.errors import TooFewDistinct
from shoal.words import count

# Neighbors looked up for the tree if the shift needs fewer: longer lists save Ward more time than
# they cost
WARD_LIST = 16

# Height, in machine epsilons per summand, up to which rows count as equal. Rows that a shift moves
# to the same place are sums of the same rows in different orders, and each addition rounds.
ROUNDING = 2

# Rows with a cosine below 1 minus this are 0.014 apart: far more than rounding can cause
APART = 1e-4


@dataclass(frozen=True)
class Iterate:
    """Embeddings after some shifts: unit rows (N, D), each a sum of `n_added` rows, their nearest
    neighbors (N, k), and lists (N, l) of as many as help to grow the tree."""

    points: Tensor
    neighbors: Neighbors
    lists: Neighbors
    n_added: int

    @cached_property
    def tree(self) -> Tree:
        return unit_tree(self.points, neighbors=self.lists, n_added=self.n_added)

    def has_distinct(self, n_rows: int) -> bool:
        """Return whether at least `n_rows` rows differ beyond rounding."""
        # Where that many rows are far from all others, the tree need not be grown.
        n_apart = int((self.neighbors.similarities[:, 0] < 1 - APART).sum())
        return n_apart >= n_rows or self.tree.n_distinct >= n_rows


def unit_tree(points: Tensor, *, neighbors: Neighbors | None = None, n_added: int = 1) -> Tree:
    """Return Ward's tree of unit rows (N, D), each a sum of `n_added` rows.

    With `neighbors`, exact lists of these rows, the rows are not checked.
    """
    if neighbors is None:
        linkage = ward_linkage(points, device=points.device)
    else:
        linkage = link_rows(points, neighbors)
    return Tree(linkage, rounding=ROUNDING * n_added * torch.finfo(points.dtype).eps)


def check_distinct(tree: Tree, n_clusters: int, name: str = "n_clusters") -> None:
    """Raise an error if a tree has fewer distinct rows than `n_clusters`: a cut would split copies
    by their position."""
    if tree.n_distinct < n_clusters:
        raise TooFewDistinct(
            f"{name}: found {n_clusters} with {count(tree.n_distinct, 'distinct row')} among "
            f"{tree.n_leaves} embeddings, expected at most {tree.n_distinct}; copies stay in "
            "one cluster, so ask for fewer clusters or add embeddings"
        )


@torch.no_grad()
def iterates(
    points: Tensor,
    settings: ShiftSettings,
    attention: NeighborAttention | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Iterate]:
    """Yield the iterate of unit rows (N, D) after 0, 1, 2 … shifts."""
    itself = torch.arange(len(points), device=points.device)
    n_others = len(points) - 1
    n_averaged = settings.list_length(n_others)
    n_listed = min(max(n_averaged, WARD_LIST, settings.n_neighbors), n_others)
    n_added = 1
    while True:
        lists = k_nearest(points, points, n_listed, exclude=itself)
        neighbors = lists.first(settings.n_neighbors)
        # One more than the tree lists: it bounds the others.
        yield Iterate(points, neighbors, lists.first(WARD_LIST + 1), n_added)
        n_added = 1 + n_averaged
        if settings.retrieval == "random":
            lists = find_neighbors(points, points, settings, exclude=itself, generator=generator)
        parts = []
        for start in range(0, len(points), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            parts.append(
                shift(points[rows], points, lists.take(rows), settings, attention=attention)
            )
        points = torch.cat(parts)
