"""The steps of Algorithm 1: unit rows, their neighbors and their tree, after each shift.

N images, D columns, k neighbors.
"""

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from shoal.clustering.mean_shift import NeighborAttention, ShiftSettings, find_neighbors, shift
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import ROWS_AT_ONCE
from shoal.clustering.tree import Tree
from shoal.clustering.ward.linkage import link_rows, ward_linkage
from shoal.clustering.ward.rounds import FEW
from shoal.errors import TooFewDistinct
from shoal.words import count

WARD_LIST = 16
"""Neighbors looked up for the tree when the shift needs fewer: longer lists save Ward more than
they cost. The tree of few rows has a table of all distances, and asks for none."""

MAX_WARD_LIST = 64
"""Most neighbors handed to the tree: the radius kernels look at up to 1,000."""

ROUNDING = 2
"""Machine epsilons of height per row added up, until which rows of a tree count as equal: where a
shift brings rows to one place, each adds the same rows in an order of its own, and each addition
rounds. Before a shift they are rounded once."""


APART = 1e-4
"""Less similar than 1 by this, two unit rows are 0.014 apart: far more than rounding can do to any
of them."""


class Iterate:
    """Embeddings after so many shifts: `points` (N, D), unit rows, and the nearest `neighbors` (N,
    k) of each.

    Its `tree`, Ward's, is made when it is first asked for, from lists (N, l) for it; rows are sums
    of `n_added`.
    """

    def __init__(
        self, points: Tensor, neighbors: Neighbors, lists: Neighbors, n_added: int
    ) -> None:
        self.points = points
        self.neighbors = neighbors
        self._lists = lists
        self._n_added = n_added

    @cached_property
    def tree(self) -> Tree:
        """Ward's tree of the points."""
        lists = self._lists
        del self._lists  # which may be long
        return unit_tree(self.points, neighbors=lists, n_added=self._n_added)

    def has_distinct(self, n_rows: int) -> bool:
        """Whether so many rows differ beyond rounding; where that many lie far from all others no
        tree is made."""
        n_apart = int((self.neighbors.similarities[:, 0] < 1 - APART).sum())
        return n_apart >= n_rows or self.tree.n_distinct >= n_rows


def unit_tree(points: Tensor, *, neighbors: Neighbors | None = None, n_added: int = 1) -> Tree:
    """Ward's tree of unit rows (N, D), each the sum of so many, that knows which of them rounding
    alone sets apart.

    With `neighbors`, exact lists of just these rows, they are not checked again.
    """
    if neighbors is None:
        linkage = ward_linkage(points, device=points.device)
    else:
        linkage = link_rows(points, neighbors)
    return Tree(linkage, rounding=ROUNDING * n_added * torch.finfo(points.dtype).eps)


def check_distinct(tree: Tree, n_clusters: int, name: str = "n_clusters") -> None:
    """Refuse to cut a tree into more clusters than rows differ: copies would be parted by their
    place in the file."""
    if tree.n_distinct < n_clusters:
        raise TooFewDistinct(
            f"{name}: found {n_clusters} with {count(tree.n_distinct, 'distinct row')} among "
            f"{tree.n_leaves} embeddings, expected at most {tree.n_distinct}; copies are not told "
            "apart, so ask for fewer or add embeddings"
        )


@torch.no_grad()
def iterates(
    points: Tensor,
    moves: ShiftSettings,
    attention: NeighborAttention | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Iterate]:
    """Unit rows (N, D), their neighbors and their tree after 0, 1, 2 … shifts; each is made when it
    is asked for."""
    own = torch.arange(len(points), device=points.device)
    others = len(points) - 1
    n_averaged = moves.list_length(others)
    n_of_tree = WARD_LIST if len(points) > FEW[points.device.type] else 1
    n_listed = min(max(n_averaged, n_of_tree, moves.n_neighbors), others)
    n_added = 1  # rows whose sum each row is
    while True:
        lists = k_nearest(points, points, n_listed, exclude=own)
        near = lists.first(moves.n_neighbors)
        yield Iterate(points, near, lists.first(MAX_WARD_LIST), n_added)
        n_added = 1 + n_averaged
        if moves.retrieval == "random":
            lists = find_neighbors(points, points, moves, exclude=own, generator=generator)
        parts = []
        for start in range(0, len(points), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            part = Neighbors(lists.indices[rows], lists.similarities[rows])
            parts.append(shift(points[rows], points, part, moves, attention=attention))
        points = torch.cat(parts)
