"""What rounding can do to a distance, and when a winner is certain in spite of it.

Notation: δ is the squared Ward height of two clusters in real numbers, 2ab/(a+b)·|cA - cB|², of the
float64 centroids and sizes as they are stored; D is that number as `exact.py` computes it; a *low*
is a number proven not to exceed δ.

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

    |cA - cB| >= sqrt(|p - q|² - E) - ρA - ρB                                      (`lower`)

**Direct differences.** D differs from δ by a factor within 1 ± η: one rounding for a difference,
one for its square, one per level of the halving tree, two where it is odd, a few for the weight;
the additive TINY covers underflow.

**Merges.** By Lance and Williams' formula δ(A+B, C) = [(a+c)·δ(A,C) + (b+c)·δ(B,C) - c·δ(A,B)] /
(a+b+c), so lows of the two distances make one of the union's (`merged_low`, which counts every
rounding). A and B are nearest to each other: the *floor* of a cluster, a low for all others, is D
of its nearest but for roundings, and stands in for lows that are smaller. So a union is no nearer
to C than its parts were, but for roundings again: a low L for both parts is one for their union if
L >= δ(A,B), and min(L, 2f - δ(A,B)) is if not, f being the smaller floor of A and B (put the larger
of L and f for both distances). Last, the union's centroid is stored rounded, which moves it by at
most κ, and the square root of δ by at most sqrt(2·size)·κ, `size` being that of either cluster
(`moved`). All of it is given away in every round, of floors too, before a low is used again. So a
low is true of the centroids as they are stored, however long it has waited, and nothing is owed
that the formula, which can double an error, could multiply.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from shoal.clustering.products import UNDERFLOW, Precision

TINY = 1e-290
"""More than underflow can take from a sum of squares (rows are scaled to a largest entry between
1/2 and 1)."""

N_MIDDLE = 255
"""Clusters whose median stands for that of all."""

KAPPA = 16 * 2.0**-53
"""More than a union's centroid is rounded by, in lengths of its parts' centroids."""


def weight(a: Tensor, b: Tensor) -> Tensor:
    """2ab/(a+b), the factor that makes a squared distance of centroids a squared Ward height;
    symmetric bit for bit."""
    return (2.0 * (a * b)) / (a + b)


def product_error(half: Tensor, other: Tensor, n_columns: int, precision: Precision) -> Tensor:
    """E: how far the squared distance of points may be off in a product, from half their squared
    lengths."""
    magnitude = 2 * (half * other).sqrt() + half + other
    lost = TINY if precision.dtype == torch.float64 else UNDERFLOW
    return 2.0001 * precision.gamma(n_columns) * magnitude + n_columns * lost


def lower(height: Tensor, weights: Tensor, error: Tensor, reach: Tensor) -> Tensor:
    """The low of a computed squared height: `error` is E, `reach` is ρA + ρB; all float64,
    broadcast together."""
    least = (height - weights * error).clamp(min=0)
    return (least.sqrt() - weights.sqrt() * reach).clamp(min=0).square()


def product_low(
    heights: Tensor,
    sizes: tuple[Tensor, Tensor],
    half: tuple[Tensor, Tensor],
    reach: Tensor,
    n_columns: int,
    precision: Precision,
) -> Tensor:
    """The lows of heights by products, inf where they are; sizes and half squared lengths of both
    clusters.

    A low falls as the other's size, half squared length or reach grows: their maxima over all
    clusters give the low for everyone whose height is not below the given one.
    """
    error = product_error(*half, n_columns, precision)
    least = heights * (1 - 16 * precision.unit)  # the weight's own roundings
    low = lower(least, weight(*sizes), error, reach)
    return torch.where(torch.isinf(heights), torch.inf, low)


@dataclass(frozen=True, slots=True)
class Margins:
    """How much certainty float64 arithmetic costs, for rows of D columns and centroids no longer
    than `radius`."""

    eta: float
    kappa: float | Tensor

    @classmethod
    def of(cls, n_columns: int, radius: float) -> "Margins":
        """η and κ; each counts every rounding at least once."""
        n_additions = 2 * (n_columns.bit_length() - 1) + 1
        return cls(eta=(n_additions + 16) * 2.0**-53, kappa=KAPPA * radius)

    def low(self, distance: Tensor) -> Tensor:
        """The low of a directly computed distance."""
        return (distance * (1 - 2 * self.eta) - TINY).clamp(min=0)

    def bar(self, low: Tensor) -> Tensor:
        """What is not above the computed D of anything that `low` speaks for; inf where that is
        nobody."""
        return low * (1 - 4 * self.eta) - TINY

    def certain(self, best: Tensor, low: Tensor) -> Tensor:
        """Whether `best`, a computed D, is smaller than the computed D of everything that `low`
        speaks for."""
        return (best < self.bar(low)) | torch.isinf(low)

    def moved(self, low: Tensor, sizes: Tensor) -> Tensor:
        """The low after one of the two clusters, either of which has `sizes`, has been merged and
        stored."""
        root = low.sqrt() - sizes.sqrt() * (1.01 * sqrt(2.0) * self.kappa)
        return root.clamp(min=0).square() * (1 - self.eta)

    def within(self, radius: Tensor) -> "Margins":
        """The same for merges of clusters whose centroids are no longer than `radius`."""
        return Margins(self.eta, KAPPA * radius)


def merged_low(
    x: Tensor, y: Tensor, h: Tensor, a: Tensor, b: Tensor, c: Tensor, eta: float
) -> Tensor:
    """The low of δ(A+B, C) from lows x of δ(A,C) and y of δ(B,C), with A and B of sizes a and b at
    D = h.

    η is more than 16 roundings: the positive terms suffer five, the negative one four, and their
    difference two.
    """
    low = ((a + c) * x + (b + c) * y) * (1 - eta) - c * (h * (1 + 2 * eta))
    return (low / (a + b + c)).clamp_(min=0) * (1 - eta)
