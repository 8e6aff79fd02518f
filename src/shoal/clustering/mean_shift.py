"""One mean-shift step (paper, section 4.1 and appendix A.1), the same for training and inference.

Each point moves toward the weighted mean of its neighbors and back onto the sphere. A step is a
pure function that returns a new tensor, so no row ever reads a row already moved. Sums run over the
neighbors one after the other and lengths along a fixed tree in float64, so a step does not depend
on batch size, threads or device, bit for bit; only the weights of the Gaussian kernel and of
attention hold an exponential, whose last bit is the device's.

N points, M bank rows, D columns, k neighbors.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from shoal.arrays import as_count, as_number
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import halving_sum, root, similarities
from shoal.errors import UsageError

Kernel = Literal["knn", "uniform", "gaussian"]
Retrieval = Literal["nearest", "random"]
Aggregation = Literal["mean", "attention"]

DRAWN_AT_ONCE = 1 << 24
"""Random numbers held at once while random neighbors are drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftSettings:
    """How far, and over which neighbors, a point moves; the defaults are the paper's."""

    kernel: Kernel = "knn"
    """Weights of the neighbors: equal ones for the k nearest, or by similarity inside a fixed
    radius."""
    retrieval: Retrieval = "nearest"
    """Which bank rows count as neighbors; random ones are an ablation of the paper."""
    aggregation: Aggregation = "mean"
    """How neighbors are averaged; attention is learned (an ablation of the paper) and needs the knn
    kernel."""
    n_neighbors: int = 8
    """Neighbors of the knn kernel, the point itself not counted."""
    alpha: float = 0.5
    """Weight of the neighbors' mean in the knn kernel; 0 leaves every point where it is."""
    min_similarity: float = 0.9
    """Radius of the uniform kernel: neighbors at least this similar count, all alike."""
    bandwidth: float = 0.1
    """Width σ of the Gaussian kernel exp(-(1 - cos) / 2σ²)."""
    max_neighbors: int = 1000
    """Most neighbors the uniform and Gaussian kernels look at."""

    def __post_init__(self) -> None:
        choices = {"kernel": Kernel, "retrieval": Retrieval, "aggregation": Aggregation}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in get_args(known):
                expected = ", ".join(get_args(known))
                raise UsageError(f"{name}: found {value!r}, expected one of {expected}")
        for name in ("n_neighbors", "max_neighbors"):
            as_count(getattr(self, name), name=name, least=1)
        for name, least, most in (
            ("alpha", 0.0, 1.0),
            ("min_similarity", -1.0, 1.0),
            ("bandwidth", 1e-9, math.inf),
        ):
            number = as_number(getattr(self, name), name=name)
            if not least <= number <= most:
                raise UsageError(f"{name}: found {number}, expected {least:.0f} to {most:.0f}")
        if self.kernel != "knn" and (self.retrieval, self.aggregation) != ("nearest", "mean"):
            raise UsageError(
                f"kernel {self.kernel!r}: random retrieval and attention go with the knn kernel "
                "only"
            )

    def list_length(self, n_rows: int) -> int:
        """How many neighbors to look up among `n_rows` other rows."""
        if self.kernel == "knn":
            return int(self.n_neighbors)  # numpy's numbers are numbers too
        return min(int(self.max_neighbors), n_rows)


class NeighborAttention(nn.Module):
    """Learned weights of the neighbors: cross-attention of the point over them, without a value
    projection."""

    def __init__(self, n_columns: int) -> None:
        super().__init__()
        self.query = nn.Linear(n_columns, n_columns, bias=False)
        self.key = nn.Linear(n_columns, n_columns, bias=False)

    def forward(self, points: Tensor, neighbors: Tensor) -> Tensor:
        """Weights (N, k), each row adding up to 1, for `points` (N, D) over `neighbors` (N, k,
        D)."""
        logits = torch.einsum("nd,nkd->nk", self.query(points), self.key(neighbors))  # (N, k)
        weights: Tensor = (logits / points.shape[1] ** 0.5).softmax(dim=1)
        return weights


def mean_shift(
    points: Tensor, bank: Tensor, neighbors: Tensor, *, alpha: float, detach_norm: bool = False
) -> Tensor:
    """Move each point toward the mean of its neighbors in `bank`: norm((1 - α)·point + (α/k)·Σ
    neighbors), eq. 4-5.

    `points` (N, D), `bank` (M, D), `neighbors` (N, k) rows of `bank`. Returns a new (N, D) tensor
    of unit rows, differentiable in `points` and `bank`. A point whose mean is the zero vector has
    nowhere to go and stays. `detach_norm` takes the length that is divided by as a constant: the
    value is the same, its gradient is not.
    """
    total = bank[neighbors[:, 0]]  # (N, D)
    for rank in range(1, neighbors.shape[1]):
        total = total + bank[neighbors[:, rank]]
    return _onto_sphere(
        (1 - alpha) * points + (alpha / neighbors.shape[1]) * total, points, detach_norm
    )


def weighted_shift(
    points: Tensor,
    bank: Tensor,
    neighbors: Tensor,
    own: float,
    weights: Tensor,
    *,
    detach_norm: bool = False,
) -> Tensor:
    """As `mean_shift`, with the weight `own` on each point and `weights` (N, k) on its
    neighbors."""
    total = own * points  # (N, D)
    for rank in range(neighbors.shape[1]):
        total = total + weights[:, rank, None] * bank[neighbors[:, rank]]
    return _onto_sphere(total, points, detach_norm)


def find_neighbors(
    points: Tensor,
    bank: Tensor,
    settings: ShiftSettings,
    *,
    exclude: Tensor,
    exact: bool = True,
    generator: torch.Generator | None = None,
) -> Neighbors:
    """The neighbors that one step with these settings looks at, never the bank row that `exclude`
    (N,) names.

    Random ones are drawn on the CPU by the `generator`, so that every device is given the same, in
    blocks that depend on the bank alone.
    """
    others = len(bank) - 1
    if settings.retrieval == "nearest":
        k = settings.list_length(others)
        return k_nearest(points, bank, k, exclude=exclude, exact=exact)
    drawn = []
    for block in torch.split(exclude, max(1, DRAWN_AT_ONCE // others)):
        numbers = torch.rand(len(block), others, generator=generator)
        drawn.append(numbers.topk(settings.n_neighbors, dim=1).indices)
    indices = torch.cat(drawn).to(bank.device)  # (N, k)
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
    """Move each point one step as the settings say: the one entry of training and inference.

    `neighbors` come from `find_neighbors` and may hold more columns than the knn kernel uses. Their
    similarities set the weights of the uniform and Gaussian kernels, as constants: gradients flow
    through the averaged rows.
    """
    cosines = neighbors.similarities.detach().double()
    indices = neighbors.indices
    own = 1.0  # the point itself, at cosine 1, has weight 1 under both kernels of appendix A.1
    if settings.kernel == "uniform":
        weights = (cosines >= settings.min_similarity).to(points.dtype)
    elif settings.kernel == "gaussian":
        weights = torch.exp((cosines - 1) / (2 * settings.bandwidth**2)).to(points.dtype)
    else:
        indices = indices[:, : settings.n_neighbors]
        if settings.aggregation == "mean":
            return mean_shift(points, bank, indices, alpha=settings.alpha, detach_norm=detach_norm)
        if attention is None:
            raise UsageError(
                "aggregation 'attention' needs the learned NeighborAttention; pass attention="
            )
        own = 1 - settings.alpha
        weights = settings.alpha * attention(points, bank[indices])  # (N, k)
    return weighted_shift(points, bank, indices, own, weights, detach_norm=detach_norm)


def _onto_sphere(moved: Tensor, before: Tensor, detach_norm: bool) -> Tensor:
    measured = moved.detach() if detach_norm else moved
    squared = halving_sum(measured.double().square())[:, None]  # (N, 1)
    is_zero = squared == 0
    length = root(torch.where(is_zero, 1.0, squared))
    return torch.where(is_zero, before, (moved / length).to(before.dtype))
