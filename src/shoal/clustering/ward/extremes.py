"""The largest and smallest of what all live clusters measure, which bound those that a row was not compared with.

M clusters, R rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.products import Precision
from shoal.clustering.ward.bounds import lower, product_error, weight
from shoal.clustering.ward.points import N_MIDDLE

FAR = 64
"""Half squared lengths beyond this multiple of the middle one are far: eight times as long."""


@dataclass(frozen=True, slots=True)
class ClusterExtremes:
    """The largest and smallest over all live clusters, to bound those that a row was not compared with.

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
    near_reach: Tensor
    """The most that it moved one that is not far."""

    @classmethod
    def of(cls, sizes: Tensor, half: Tensor, reach: Tensor, is_live: Tensor) -> "ClusterExtremes":
        """Measure the live of some clusters, (M,) each; few operations, and a GPU is not waited for.

        Any threshold of what is far gives true bounds, so the middle of some half squared lengths does.
        """
        is_far = half > FAR * half[:: max(1, len(half) // N_MIDDLE)].median(0).values
        near, far = half.masked_fill(is_far, 0.0), half.masked_fill(~is_far, torch.inf)
        measures = torch.stack([sizes, -sizes, half, near, -far, reach, reach.masked_fill(is_far, 0.0)])  # (7, M)
        size, least, most, near, far, reach, near_reach = measures.masked_fill_(~is_live, -torch.inf).amax(1)
        return cls(size, -least, most, near, -far, reach, near_reach)

    def low(
        self, heights: Tensor, sizes: Tensor, own_half: Tensor, own_reach: Tensor, n_columns: int, precision: Precision
    ) -> Tensor:
        """The low for everyone whose computed height is not below `heights`; (R,) each."""
        least = heights * (1 - 16 * precision.unit)  # the weight's own roundings
        most = weight(sizes, self.size)

        def by_products(half: Tensor, reach: Tensor) -> Tensor:
            return lower(least, most, product_error(own_half, half, n_columns, precision), own_reach + reach)

        reach = own_reach + self.reach
        gap = (2 * self.far_half).sqrt() * (1 - 1e-9) - (2 * own_half).sqrt() * (1 + 1e-9) - reach
        far = weight(sizes, self.least_size) * gap.clamp(min=0).square() * (1 - 1e-9)
        near = by_products(self.near_half, self.near_reach)
        low = torch.maximum(by_products(self.half, self.reach), torch.minimum(near, far))
        return torch.where(torch.isinf(heights), torch.inf, low)
