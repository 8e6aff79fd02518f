"""The steps of Algorithm 1: unit rows, their neighbors and their tree, after each shift.

N images, D columns, k neighbors.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.mean_shift import NeighborAttention, ShiftSettings, random_neighbors, shift
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import ROWS_AT_ONCE
from shoal.clustering.tree import Tree
from shoal.clustering.ward.linkage import link_rows, ward_linkage
from shoal.errors import TooFewDistinct
from shoal.words import count

WARD_LIST = 16
"""Neighbors looked up for the tree when the shift needs fewer: longer lists save Ward more than they cost."""

MAX_WARD_LIST = 64
"""Most neighbors handed to the tree: the radius kernels look at up to 1,000."""

ROUNDING = 2
"""Machine epsilons of height per row added up, until which rows of a tree count as equal: where a shift brings rows to
one place, each adds the same rows in an order of its own, and each addition rounds. Before a shift they are rounded
once."""


@dataclass(frozen=True, eq=False, slots=True)
class Iterate:
    """Embeddings after so many shifts."""

    points: Tensor  # (N, D) unit rows
    neighbors: Neighbors  # (N, k) the `n_neighbors` nearest of each row, fewer where there are fewer
    tree: Tree  # Ward's


def unit_tree(points: Tensor, *, neighbors: Neighbors | None = None, n_added: int = 1) -> Tree:
    """Ward's tree of unit rows (N, D), each the sum of so many, that knows which of them rounding alone sets apart.

    With `neighbors`, exact lists of just these rows, they are not checked again.
    """
    linkage = ward_linkage(points, device=points.device) if neighbors is None else link_rows(points, neighbors)
    return Tree(linkage, rounding=ROUNDING * n_added * torch.finfo(points.dtype).eps)


def check_distinct(tree: Tree, n_clusters: int, name: str = "n_clusters") -> None:
    """Refuse to cut a tree into more clusters than rows differ: copies would be parted by their place in the file."""
    if tree.n_distinct < n_clusters:
        raise TooFewDistinct(
            f"{name}: found {n_clusters} with {count(tree.n_distinct, 'distinct row')} among {tree.n_leaves} "
            f"embeddings, expected at most {tree.n_distinct}; copies are not told apart, so ask for fewer or add "
            "embeddings"
        )


def iterates(
    points: Tensor,
    moves: ShiftSettings,
    attention: NeighborAttention | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Iterate]:
    """Unit rows (N, D), their neighbors and their tree after 0, 1, 2 … shifts; each is made when it is asked for."""
    own, others = torch.arange(len(points), device=points.device), len(points) - 1
    n_averaged = moves.list_length(others)
    n_listed = min(max(n_averaged, WARD_LIST, moves.n_neighbors), others)
    n_added = 1  # rows whose sum each row is
    while True:
        lists = k_nearest(points, points, n_listed, exclude=own)
        ready = Neighbors(lists.indices[:, :MAX_WARD_LIST], lists.similarities[:, :MAX_WARD_LIST])
        # Of the radius kernels' long lists, which are let go.
        near = Neighbors(*(part[:, : moves.n_neighbors].contiguous() for part in (lists.indices, lists.similarities)))
        yield Iterate(points, near, unit_tree(points, neighbors=ready, n_added=n_added))
        n_added = 1 + n_averaged
        if moves.retrieval == "random":
            lists = random_neighbors(points, points, moves.n_neighbors, exclude=own, generator=generator)
        points = _shifted(points, lists, moves, attention)


@torch.no_grad()
def _shifted(points: Tensor, lists: Neighbors, moves: ShiftSettings, attention: NeighborAttention | None) -> Tensor:
    parts = []
    for start in range(0, len(points), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        part = Neighbors(lists.indices[rows], lists.similarities[rows])
        parts.append(shift(points[rows], points, part, moves, attention=attention))
    return torch.cat(parts)
