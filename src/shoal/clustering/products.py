"""Rows made ready for fast matrix products, and the formats that these are taken in.

Products only propose, to the neighbor search and to Ward's tree alike; what rounding can do to them
is known, and numbers that are the same on every device decide. `ward/bounds.py` has the derivation.

C rows, D columns.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.workers import Workers

ENCODE_ROWS = {"cpu": 1 << 8, "cuda": 1 << 16}
"""Rows rounded at once; on the CPU they stay in the cache."""

UNDERFLOW = 2.0**-120
"""More than one float32 product can lose to underflow or flushed denormals, entries being at most
2."""


@dataclass(frozen=True, slots=True)
class Precision:
    """A number format for matrix products that propose."""

    dtype: torch.dtype
    bits: int
    """Significant bits kept of each number."""
    unit: float
    """Largest relative error of one addition in the product."""
    matmul: str = "highest"
    """What torch may do to the inputs of a float32 product (`workers.matmul_precision`): nothing,
    or rounding them to a format that holds them exactly."""

    @property
    def value_dtype(self) -> torch.dtype:
        """What products come out in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def round(self, exact: Tensor) -> Tensor:
        """Round float64 numbers to `bits`, stored as `dtype`."""
        if self.dtype == torch.float64:
            return exact
        single = exact.float()
        drop = 24 - self.bits
        if drop == 0:
            return single
        short = ((single.view(torch.int32) + (1 << (drop - 1))) & -(1 << drop)).view(torch.float32)
        return short.to(self.dtype)

    def gamma(self, n_columns: int) -> float:
        """γ for sums of D products and four more terms; in float64 these are no better known than
        the sum."""
        n_terms = n_columns + 4
        if self.dtype == torch.float64:
            n_terms *= 2
        nu = n_terms * self.unit
        return nu / (1 - nu) if nu < 0.5 else float("inf")


BFLOAT16 = Precision(torch.float32, 8, 2.0**-24, "medium")
TENSOR_BFLOAT16 = Precision(torch.bfloat16, 8, 2.0**-22)
TENSOR_TFLOAT32 = Precision(torch.float32, 11, 2.0**-22, "high")
FLOAT32 = Precision(torch.float32, 24, 2.0**-24)
FLOAT64 = Precision(torch.float64, 53, 2.0**-53)


@dataclass(slots=True)
class Points:
    """(C, D) centered centroids, rounded; (C,) half their squared lengths; (C,) the most that
    rounding moved them."""

    points: Tensor
    half: Tensor
    reach: Tensor

    @classmethod
    def of(cls, centroids: Tensor, center: Tensor, precision: Precision) -> "Points":
        """Round centered centroids and measure, in float64, what that did to each."""
        exact = centroids - center
        points = precision.round(exact)
        wide = points.double()
        length = torch.linalg.vector_norm(wide, dim=1)
        moved = torch.linalg.vector_norm(exact - wide, dim=1)
        # Norms in float64 are off by far less than 1e-9; the second term is the rounding of the
        # centring itself, which is at most 2^-53 of a length of at most `length` + `moved`.
        reach = moved * (1 + 1e-9) + (length + moved) * 2.0**-52 + 1e-200
        return cls(points, length.square() / 2, reach)

    @classmethod
    def of_all(
        cls, centroids: Tensor, center: Tensor, precision: Precision, workers: Workers
    ) -> "Points":
        """The same for many centroids, a chunk at a time."""
        points = cls.blank(centroids, precision)
        everyone = torch.arange(len(centroids), device=centroids.device)
        points.renew(everyone, centroids, center, precision, workers)
        return points

    def renew(
        self,
        rows: Tensor,
        centroids: Tensor,
        center: Tensor,
        precision: Precision,
        workers: Workers,
    ) -> None:
        """Round the centroids of some rows anew, a chunk at a time."""

        def work(part: Tensor) -> None:
            self.put(part, Points.of(centroids[part], center, precision))

        workers.map_rows(work, rows, at_most=ENCODE_ROWS[rows.device.type])

    @classmethod
    def blank(cls, like: Tensor, precision: Precision) -> "Points":
        """Room for the points of centroids like these."""
        half = torch.empty(len(like), dtype=torch.float64, device=like.device)
        return cls(torch.empty_like(like, dtype=precision.dtype), half, half.clone())

    def put(self, where: Tensor | slice, points: "Points") -> None:
        """Overwrite some of the rows."""
        self.points[where] = points.points
        self.half[where] = points.half
        self.reach[where] = points.reach

    def take(self, where: Tensor | slice) -> "Points":
        """The points of some rows."""
        return Points(self.points[where], self.half[where], self.reach[where])
