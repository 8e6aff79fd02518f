"""One mean-shift step (paper, section 4.1 and appendix A.1), the same for training and inference.

Each point moves toward the weighted mean of its neighbors and back onto the sphere. A step is a
pure function that returns a new tensor, so no row ever reads a row already moved. Sums run over the
neighbors one after the other and lengths along a fixed tree in float64, so a step does not depend
on batch size, threads or device, bit for bit; only the weights of the Gaussian kernel and of
attention hold an exponential, whose last bit is the device's.

N points, M bank rows, D columns, k neighbors.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from shoal.arrays import as_count, as_number
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import halving_sum, root, similarities
from shoal.errors import UsageError

DRAWN_AT_ONCE = 1 << 24
"""Random numbers held at once while random neighbors are drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftSettings:
    """How far, and over which neighbors, a point moves; the defaults are the paper's."""

    kernel: Literal["knn", "uniform", "gaussian"] = "knn"
    """Weights of the neighbors: equal ones for the k nearest, or by similarity inside a fixed
    radius."""
    retrieval: Literal["nearest", "random"] = "nearest"
    """Which bank rows count as neighbors; random ones are an ablation of the paper."""
    aggregation: Literal["mean", "attention"] = "mean"
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
        _choice("kernel", self.kernel, ("knn", "uniform", "gaussian"))
        _choice("retrieval", self.retrieval, ("nearest", "random"))
        _choice("aggregation", self.aggregation, ("mean", "attention"))
        if not 0 <= as_number(self.alpha, name="alpha") <= 1:
            raise UsageError(
                f"alpha: found {self.alpha}, expected a number in [0, 1]; the paper uses 0.5"
            )
        for name in ("n_neighbors", "max_neighbors"):
            as_count(getattr(self, name), name=name, least=1)
        if not -1 <= as_number(self.min_similarity, name="min_similarity") <= 1:
            raise UsageError(
                f"min_similarity: found {self.min_similarity}, expected a cosine in [-1, 1]"
            )
        if not as_number(self.bandwidth, name="bandwidth") > 0:
            raise UsageError(f"bandwidth: found {self.bandwidth}, expected a positive number")
        if self.kernel != "knn" and (self.retrieval, self.aggregation) != ("nearest", "mean"):
            raise UsageError(
                f"kernel {self.kernel!r}: random retrieval and attention go with the knn kernel only"
            )

    def list_length(self, n_rows: int) -> int:
        """How many neighbors to look up among `n_rows` other rows."""
        # numpy's numbers are numbers too.
        return int(self.n_neighbors if self.kernel == "knn" else min(self.max_neighbors, n_rows))


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
    exclude: Tensor | None = None,
    exact: bool = True,
    generator: torch.Generator | None = None,
) -> Neighbors:
    """The neighbors that one step with these settings looks at; `generator` draws the random
    ones."""
    if settings.retrieval == "random":
        return random_neighbors(
            points, bank, settings.n_neighbors, exclude=exclude, generator=generator
        )
    k = settings.list_length(len(bank) - (exclude is not None))
    return k_nearest(points, bank, k, exclude=exclude, exact=exact)


def random_neighbors(
    points: Tensor,
    bank: Tensor,
    k: int,
    *,
    exclude: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Neighbors:
    """k different bank rows per point drawn at random, never the excluded one (-1: none), with
    their similarities."""
    others = len(bank) - (exclude is not None)
    assert 1 <= k <= others, (k, others)
    # Drawn on the CPU, so that every device is given the same neighbors; in blocks that depend on
    # the bank alone.
    step = max(1, DRAWN_AT_ONCE // others)
    sizes = [min(step, len(points) - start) for start in range(0, max(len(points), 1), step)]
    drawn = torch.cat(
        [torch.rand(size, others, generator=generator).topk(k, dim=1).indices for size in sizes]
    )
    drawn = drawn.to(bank.device)  # (N, k)
    if exclude is not None:
        # Whoever may have all rows leaves out one at random: else it would never be given the last.
        left_out = (
            torch.randint(len(bank), (len(points),), generator=generator)
            if bool((exclude < 0).any())
            else exclude
        )
        skipped = torch.where(exclude < 0, left_out.to(exclude.device), exclude)[:, None]
        drawn = drawn + (drawn >= skipped)
    return Neighbors(drawn, similarities(points, bank, drawn))


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
    if settings.kernel != "knn":
        weights = _kernel_weights(neighbors.similarities.detach(), settings).to(points.dtype)
        return weighted_shift(
            points, bank, neighbors.indices, 1.0, weights, detach_norm=detach_norm
        )
    indices = neighbors.indices[:, : settings.n_neighbors]
    if settings.aggregation == "mean":
        return mean_shift(points, bank, indices, alpha=settings.alpha, detach_norm=detach_norm)
    if attention is None:
        raise UsageError(
            "aggregation 'attention' needs the learned NeighborAttention; pass attention="
        )
    learned = attention.query.weight
    assert (learned.shape[1], learned.dtype) == (points.shape[1], points.dtype), (
        learned.shape,
        points.shape,
    )
    weights = settings.alpha * attention(points, bank[indices])  # (N, k)
    return weighted_shift(
        points, bank, indices, 1 - settings.alpha, weights, detach_norm=detach_norm
    )


def _kernel_weights(cosines: Tensor, settings: ShiftSettings) -> Tensor:
    """Weights (N, k) of appendix A.1; the point itself, at cosine 1, has weight 1 under both
    kernels."""
    if settings.kernel == "uniform":
        return (cosines >= settings.min_similarity).double()
    return torch.exp((cosines.double() - 1) / (2 * settings.bandwidth**2))


def _onto_sphere(moved: Tensor, before: Tensor, detach_norm: bool) -> Tensor:
    measured = moved.detach() if detach_norm else moved
    squared = halving_sum(measured.double().square())[:, None]  # (N, 1)
    is_zero = squared == 0
    length = root(torch.where(is_zero, 1.0, squared))
    return torch.where(is_zero, before, (moved / length).to(before.dtype))


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{name}: found {value!r}, expected one of {', '.join(choices)}")
