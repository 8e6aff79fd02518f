"""Centroids made ready for matrix products, and the best of each row of a block of products.

C clusters of a block of columns, R rows, D dimensions.
"""

from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor

from shoal.clustering.ward.bounds import Precision, lower, product_error, weight
from shoal.clustering.ward.lent import PRECISION
from shoal.clustering.ward.workers import Scratch, Workers

GROUP = 8
"""Columns whose maximum stands for them in the first stage of `top`; a power of two."""

FEW_PRODUCTS = 3e8
"""Multiply-adds below which plain float32 is as fast: a reduced product is compiled for each shape on the CPU."""

N_MIDDLE = 255
"""Centroids whose median is taken."""

ENCODE_ROWS = {"cpu": 1 << 10, "cuda": 1 << 16}
"""Rows rounded at once."""


@dataclass(slots=True)
class Points:
    """(C, D) centred centroids, rounded; (C,) half their squared lengths; (C,) the most that rounding moved them."""

    points: Tensor
    half: Tensor
    reach: Tensor

    @classmethod
    def of(cls, centroids: Tensor, center: Tensor, precision: Precision) -> "Points":
        """Round centred centroids and measure, in float64, what that did to each."""
        exact = centroids - center
        points = precision.round(exact)
        wide = points.double()
        half = torch.linalg.vector_norm(wide, dim=1).square() / 2
        moved = torch.linalg.vector_norm(exact - wide, dim=1)
        # Norms in float64 are off by far less than 1e-9; the second term is the rounding of the centring itself.
        reach = moved * (1 + 1e-9) + torch.linalg.vector_norm(exact, dim=1) * 2.0**-52 + 1e-200
        return cls(points, half, reach)

    @classmethod
    def blank(cls, like: Tensor, precision: Precision) -> "Points":
        """Room for the points of centroids like these."""
        half = torch.empty_like(like[:, 0], memory_format=torch.contiguous_format)
        return cls(torch.empty_like(like, dtype=precision.dtype), half, half.clone())

    def put(self, where: Tensor | slice, points: "Points") -> None:
        """Overwrite some of the rows."""
        self.points[where], self.half[where], self.reach[where] = points.points, points.half, points.reach

    def renew(self, rows: Tensor, centroids: Tensor, center: Tensor, precision: Precision, workers: Workers) -> None:
        """Round the centroids of some rows anew, a chunk at a time."""

        def work(part: Tensor) -> None:
            self.put(part, Points.of(centroids[part], center, precision))

        workers.map(work, torch.split(rows, workers.share(len(rows), ENCODE_ROWS[rows.device.type])))

    def take(self, where: Tensor | slice) -> "Points":
        """Some of the rows."""
        return Points(self.points[where], self.half[where], self.reach[where])


FAR = 64
"""Half squared lengths beyond this multiple of the middle one are far: eight times as long."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """What all live clusters have in common, to bound those that a row has not looked at one by one.

    The error of a product grows with the points' lengths, so one point far beyond the others would spoil the bound for
    everybody. So there is a second bound, of those that are not far by their products, of the far by their distance
    from the center alone; both hold, and the higher one counts.
    """

    size: Tensor
    """The largest size of all."""
    least_size: Tensor
    half: Tensor
    """The largest half squared length of all."""
    near_half: Tensor
    """The largest of those that are not far."""
    far_half: Tensor
    """The smallest of the far; inf where there are none."""
    reach: Tensor
    """The most that rounding moved any."""

    @classmethod
    def of(cls, sizes: Tensor, half: Tensor, reach: Tensor) -> "Crowd":
        """Measure live clusters, (M,) each."""
        is_far = half > FAR * half.median()
        near, far = torch.where(is_far, 0.0, half).max(), torch.where(is_far, half, torch.inf).min()
        return cls(sizes.max(), sizes.min(), half.max(), near, far, reach.max())

    def low(self, heights: Tensor, sizes: Tensor, own: Points, precision: Precision) -> Tensor:
        """The low for everyone whose computed height is not below `heights`; (R,) each."""
        least = heights * (1 - 16 * precision.unit)  # the weight's own roundings
        most = weight(sizes, self.size)

        def by_products(half: Tensor) -> Tensor:
            error = product_error(own.half, half, own.points.shape[1], precision)
            return lower(least, most, error, own.reach + self.reach)

        gap = (2 * self.far_half).sqrt() * (1 - 1e-9) - (2 * own.half).sqrt() * (1 + 1e-9) - own.reach - self.reach
        far = weight(sizes, self.least_size) * gap.clamp(min=0).square() * (1 - 1e-9)
        low = torch.maximum(by_products(self.half), torch.minimum(by_products(self.near_half), far))
        return torch.where(torch.isinf(heights), torch.inf, low)


def middle(centroids: Tensor) -> Tensor:
    """(D,) a point amid the centroids, wherever a few of them are: the median of some."""
    return centroids[:: max(1, len(centroids) // N_MIDDLE)].median(0).values


class MatmulPrecision:
    """While inside, float32 products may round their inputs to fewer bits, or may not, whatever the caller allows.

    Points of a reduced precision fit it exactly, so nothing is lost; products of full float32 must stay that.
    """

    def __init__(self, precision: Precision, n_products: float = torch.inf) -> None:
        self.wanted = precision.matmul if n_products > FEW_PRODUCTS else "highest"

    def __enter__(self) -> None:
        PRECISION.borrow(self.wanted)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        PRECISION.give_back(self.wanted)


def top(values: Tensor, k: int, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (R, C), descending, and their columns.

    The k largest lie in the k groups of the largest maxima, so only those are searched.
    """
    n_rows, n_columns = values.shape
    n_groups = n_columns // GROUP
    if n_groups < 2 * k:
        best = values.topk(min(k, n_columns), 1)
        return best.values, best.indices
    width = n_groups * GROUP // 2  # group g holds the columns g, g + n_groups, g + 2·n_groups, …
    heads = scratch.array("heads", (n_rows, width), values.dtype)
    torch.maximum(values[:, :width], values[:, width : 2 * width], out=heads)
    while width > n_groups:
        width //= 2
        torch.maximum(heads[:, :width], heads[:, width : 2 * width], out=heads[:, :width])
    groups = heads[:, :n_groups].topk(k, 1, sorted=False).indices  # (R, k)
    offsets = torch.arange(0, n_groups * GROUP, n_groups, device=values.device)
    rest = torch.arange(n_groups * GROUP, n_columns, device=values.device)
    columns = torch.cat([(groups[:, :, None] + offsets).flatten(1), rest.expand(n_rows, -1)], 1)
    best = values.gather(1, columns).topk(k, 1)
    return best.values, columns.gather(1, best.indices)
