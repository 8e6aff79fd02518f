"""Bounds of rounding errors, which prove that a cluster is the nearest.

Notation: δ is the squared Ward height of two clusters in real numbers, 2ab/(a+b)·|cA - cB|², of the
stored float64 centroids and sizes; D is that number as `exact.py` computes it; a *low* is a proven
lower bound of δ.

**Low-precision products.** A row's point p is its centered centroid c - μ rounded to a few bits; ρ
>= |c - μ - p| is measured. Products of such short numbers are exact in float32 (or in the stated
unit), so a matrix product of points is off by summation alone: for any order of additions, with or
without fused multiply-add,

    |fl(p·q) - p·q| <= γ_n·Σ|p_k·q_k| <= γ_n·|p||q|, γ_n = n·u / (1 - n·u), n = D + 4 (Higham 3.1)

(Cauchy-Schwarz; the 4 pay for the half norms |p|²/2 added to it, which are known in float64; among
products in float64 these are sums of D rounded terms themselves, so n = 2D + 8 there). u is 2^-24
for float32 rounded to nearest, 2^-53 for float64. Tensor cores add with truncation and a few guard
bits; u = 2^-22 covers each of their additions. So the squared distance of two points is known up to
E = 2γ(|p||q| + |p|²/2 + |q|²/2), and by the triangle inequality

    |cA - cB| >= sqrt(|p - q|² - E) - ρA - ρB                              (`product_low`)

**Direct differences.** D differs from δ by a factor within 1 ± η: one rounding for a difference,
one for its square, one per level of the halving tree, two if it is odd, a few for the weight;
the additive TINY covers underflow.

**Merges.** By Lance and Williams' formula δ(A+B, C) = [(a+c)·δ(A,C) + (b+c)·δ(B,C) - c·δ(A,B)] /
(a+b+c), so lows of the two distances give a low of the union's (`merged_low`, which includes every
rounding). The *floor* of a cluster, a low for all other clusters, is D of its nearest up to
rounding, and replaces smaller lows. A and B are nearest to each other, so their union is no nearer
to C than its parts were, up to rounding: a low L for both parts is one for their union if
L >= δ(A,B), and otherwise min(L, 2f - δ(A,B)) is, f being the smaller floor of A and B (use the
larger of L and f for both distances). Last, the union's centroid is rounded when it is stored,
which moves it by at most κ, and the square root of δ by at most sqrt(2·size)·κ, `size` being that
of either cluster (`moved`). Lows and floors are lowered by all of this in every round, so that they
always hold for the stored centroids, and no error accumulates in the formula, which can double it.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from shoal.clustering.products import UNDERFLOW, Points, Precision

# More than underflow can take from a sum of squares (rows are scaled to a largest entry between 1/2
# and 1)
TINY = 1e-290

# Upper bound of the rounding of a union's centroid, relative to the lengths of its parts'
KAPPA = 16 * 2.0**-53


def weight(a: Tensor, b: Tensor) -> Tensor:
    """Return 2ab/(a+b), the factor from a squared distance of centroids to a squared Ward height,
    symmetric to the bit."""
    return (2.0 * (a * b)) / (a + b)


def product_low(
    heights: Tensor,
    row_points: Points,
    own_sizes: Tensor,
    half: Tensor,
    reach: Tensor,
    sizes: Tensor,
    precision: Precision,
) -> Tensor:
    """Return the lows of heights (R, C) by products, inf for infinite heights, from the points and
    sizes (R,) of the rows, and the half squared lengths, reach and sizes of the other clusters.

    A low falls as the other cluster's size, half squared length or reach grows, so their maxima
    give a low for all clusters with at least this height.
    """
    n_columns = row_points.points.shape[1]
    own_half = row_points.half[:, None]
    magnitude = 2 * (own_half * half).sqrt() + own_half + half
    lost = TINY if precision.dtype == torch.float64 else UNDERFLOW
    error = 2.0001 * precision.gamma(n_columns) * magnitude + n_columns * lost
    weights = weight(own_sizes[:, None], sizes)
    least = heights * (1 - 16 * precision.unit)  # the weight's own roundings
    root = (least - weights * error).clamp(min=0).sqrt()
    low = (root - weights.sqrt() * (row_points.reach[:, None] + reach)).clamp(min=0).square()
    return torch.where(torch.isinf(heights), torch.inf, low)


@dataclass(frozen=True)
class Margins:
    """Rounding errors of float64 arithmetic, for rows of D columns and centroids of lengths up to
    `radius`."""

    eta: float
    kappa: float

    @classmethod
    def of(cls, n_columns: int, radius: float) -> "Margins":
        """Return η and κ, which include every rounding."""
        n_additions = 2 * (n_columns.bit_length() - 1) + 1
        return cls(eta=(n_additions + 16) * 2.0**-53, kappa=KAPPA * radius)

    def low(self, distance: Tensor) -> Tensor:
        """Return the low of a directly computed distance."""
        return (distance * (1 - 2 * self.eta) - TINY).clamp(min=0)

    def bar(self, low: Tensor) -> Tensor:
        """Return a lower bound of the computed D of all clusters with this `low`; inf for an
        infinite low."""
        return low * (1 - 4 * self.eta) - TINY

    def moved(self, low: Tensor, sizes: Tensor) -> Tensor:
        """Return the low after one of the two clusters was merged and stored, with the `sizes` of
        either."""
        root = low.sqrt() - sizes.sqrt() * (1.01 * sqrt(2.0) * self.kappa)
        return root.clamp(min=0).square() * (1 - self.eta)


def merged_low(
    x: Tensor, y: Tensor, h: Tensor, a: Tensor, b: Tensor, c: Tensor, eta: float
) -> Tensor:
    """Return the low of δ(A+B, C) from lows x of δ(A,C) and y of δ(B,C), with A and B of sizes a
    and b at D = h.

    η covers 16 roundings; the positive terms have five, the negative one four, their difference
    two.
    """
    low = ((a + c) * x + (b + c) * y) * (1 - eta) - c * (h * (1 + 2 * eta))
    return (low / (a + b + c)).clamp_(min=0) * (1 - eta)
