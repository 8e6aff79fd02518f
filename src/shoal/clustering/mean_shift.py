"""Mean shifts (CMS paper, section 4.1 and appendix A.1), and the iterates of Algorithm 1: unit
rows, their neighbors and their tree after each shift.

A shift moves each point toward the weighted mean of its neighbors and back onto the sphere, the
same for training and inference. It returns a new tensor, so that no row depends on one already
moved. Neighbors are summed in order, and squared lengths along a fixed tree in float64, so the bits
of a shift do not depend on batch size, threads or device; only the exponentials of the Gaussian
kernel and of attention may differ in the last bit.

Shapes: N points or images, M bank rows, D columns, k neighbors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from shoal.arrays import as_count, as_number
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import BLOCK_ROWS, halving_sum, root, similarities
from shoal.clustering.tree import Tree
from shoal.clustering.ward.linkage import link_rows, ward_linkage
from shoal.errors import TooFewDistinct, UsageError, count

# Radius of the uniform kernel: the smallest cosine of a neighbor
MIN_SIMILARITY = 0.9

# Width σ of the Gaussian kernel exp(-(1 - cos) / 2σ²)
BANDWIDTH = 0.1

# Largest number of neighbors of the uniform and Gaussian kernels
MAX_NEIGHBORS = 1000

# Random numbers per block while random neighbors are sampled; bounds the memory
SAMPLE_ELEMENTS = 1 << 24

# Neighbors looked up for the tree if the shift needs fewer: longer lists save Ward more time than
# they cost
WARD_LIST = 16

# Height, in machine epsilons per summand, up to which rows count as equal. Rows that a shift moves
# to the same place are sums of the same rows in different orders, and each addition rounds.
ROUNDING = 2

# Rows with a cosine below 1 minus this are 0.014 apart: far more than rounding can cause
APART = 1e-4


@dataclass(frozen=True, kw_only=True)
class ShiftSettings:
    """Settings of a mean-shift step; the defaults are the CMS paper's."""

    kernel: Literal["knn", "uniform", "gaussian"] = "knn"
    """Weights of the neighbors: equal for the k nearest, or by similarity within a fixed radius."""
    retrieval: Literal["nearest", "random"] = "nearest"
    """Which bank rows are neighbors; random ones are an ablation of the CMS paper."""
    aggregation: Literal["mean", "attention"] = "mean"
    """How neighbors are averaged; learned attention is an ablation of the CMS paper, for the knn
    kernel only."""
    n_neighbors: int = 8
    """Number of neighbors of the knn kernel, without the point itself."""
    alpha: float = 0.5
    """Weight of the neighbors' mean in the knn kernel; with 0, no point moves."""

    def __post_init__(self) -> None:
        as_count(self.n_neighbors, name="n_neighbors", least=1)
        if not 0 <= as_number(self.alpha, name="alpha") <= 1:
            raise UsageError(f"alpha: found {self.alpha}, expected 0 to 1")
        if self.kernel != "knn" and (self.retrieval, self.aggregation) != ("nearest", "mean"):
            raise UsageError(
                f"kernel {self.kernel!r}: random retrieval and attention go with the knn kernel "
                "only"
            )

    def list_length(self, n_rows: int) -> int:
        """Return the number of neighbors to look up among `n_rows` other rows."""
        if self.kernel == "knn":
            return int(self.n_neighbors)  # numpy integers too
        return min(MAX_NEIGHBORS, n_rows)


class NeighborAttention(nn.Module):
    """Learned weights of the neighbors: cross-attention without a value projection."""

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.query = nn.Linear(n_columns, n_columns, bias=False)
        self.key = nn.Linear(n_columns, n_columns, bias=False)

    def forward(self, points: Tensor, neighbors: Tensor) -> Tensor:
        """Return weights (N, k), with rows that sum to 1, of `points` (N, D) over `neighbors` (N,
        k, D)."""
        logits = torch.einsum("nd,nkd->nk", self.query(points), self.key(neighbors))  # (N, k)
        return (logits / points.shape[1] ** 0.5).softmax(dim=1)


def mean_shift(
    points: Tensor, bank: Tensor, neighbors: Tensor, *, alpha: float, detach_norm: bool = False
) -> Tensor:
    """Move each point toward the mean of its neighbors in `bank`: norm((1 - α)·point + (α/k)·Σ
    neighbors), eq. 4-5.

    `points` (N, D), `bank` (M, D), `neighbors` (N, k) rows of `bank`. Returns a new (N, D) tensor
    of unit rows, differentiable in `points` and `bank`. A point whose mean is the zero vector does
    not move. `detach_norm` treats the norm in the denominator as a constant, which changes only
    the gradient.
    """
    total = bank[neighbors[:, 0]]  # (N, D)
    for rank in range(1, neighbors.shape[1]):
        total = total + bank[neighbors[:, rank]]
    return onto_sphere(
        (1 - alpha) * points + (alpha / neighbors.shape[1]) * total, points, detach_norm
    )


def find_neighbors(
    points: Tensor,
    bank: Tensor,
    settings: ShiftSettings,
    *,
    exclude: Tensor,
    exact: bool = True,
    generator: torch.Generator | None = None,
) -> Neighbors:
    """Return the neighbors of `points` (N, D) for one step, without the bank row `exclude` (N,) of
    each.

    Random ones are sampled on the CPU by the `generator`, so that they are the same on every
    device.
    """
    others = len(bank) - 1
    if settings.retrieval == "nearest":
        return k_nearest(points, bank, settings.list_length(others), exclude=exclude, exact=exact)
    sampled = []
    for block in torch.split(exclude, max(1, SAMPLE_ELEMENTS // others)):
        numbers = torch.rand(len(block), others, generator=generator)
        sampled.append(numbers.topk(settings.n_neighbors, dim=1).indices)
    indices = torch.cat(sampled).to(bank.device)  # (N, k)
    indices = indices + (indices >= exclude[:, None])
    return Neighbors(indices, similarities(points, bank, indices))


def shift(
    points: Tensor,
    bank: Tensor,
    neighbors: Neighbors,
    settings: ShiftSettings,
    *,
    attention: NeighborAttention | None = None,
    detach_norm: bool = False,
) -> Tensor:
    """Return `points` (N, D) shifted by one step, in training and inference alike.

    `neighbors` come from `find_neighbors` and may have more columns than the knn kernel uses. The
    uniform and Gaussian kernels weight them by their similarities, as constants: gradients flow
    through the averaged rows only.
    """
    cosines = neighbors.similarities.detach().double()
    indices = neighbors.indices
    # The cosine of a point with itself is 1, and so is its weight in both kernels of appendix A.1.
    point_weight = 1.0
    if settings.kernel == "uniform":
        weights = (cosines >= MIN_SIMILARITY).to(points.dtype)
    elif settings.kernel == "gaussian":
        weights = torch.exp((cosines - 1) / (2 * BANDWIDTH**2)).to(points.dtype)
    else:
        indices = indices[:, : settings.n_neighbors]
        if settings.aggregation == "mean":
            return mean_shift(points, bank, indices, alpha=settings.alpha, detach_norm=detach_norm)
        if attention is None:
            raise UsageError(
                "aggregation 'attention' needs the learned NeighborAttention; pass attention="
            )
        point_weight = 1 - settings.alpha
        weights = settings.alpha * attention(points, bank[indices])  # (N, k)
    total = point_weight * points  # (N, D)
    for rank in range(indices.shape[1]):
        total = total + weights[:, rank, None] * bank[indices[:, rank]]
    return onto_sphere(total, points, detach_norm)


def onto_sphere(moved: Tensor, before: Tensor, detach_norm: bool = False) -> Tensor:
    """Scale rows `moved` (N, D) to length 1; rows of zeros are replaced by those of `before`."""
    measured = moved.detach() if detach_norm else moved
    squared = halving_sum(measured.double().square())[:, None]  # (N, 1)
    is_zero = squared == 0
    length = root(torch.where(is_zero, 1.0, squared))
    return torch.where(is_zero, before, (moved / length).to(before.dtype))


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
