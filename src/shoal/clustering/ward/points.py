"""Centroids made ready for matrix products, and the best of each row of a block of products.

C clusters of a block of columns, R rows, D dimensions.
"""

from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor

from shoal.clustering.ward.bounds import Precision

GROUP = 8
"""Columns whose maximum stands for them in the first stage of `top`; a power of two."""

ENCODE_ROWS = 4096
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
    def of_all(cls, centroids: Tensor, center: Tensor, precision: Precision) -> "Points":
        """The same in chunks, for any number of rows."""
        parts = [cls.of(part, center, precision) for part in torch.split(centroids, ENCODE_ROWS)]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("points", "half", "reach")))

    def take(self, where: Tensor | slice) -> "Points":
        """Some of the rows."""
        return Points(self.points[where], self.half[where], self.reach[where])


class MatmulPrecision:
    """While inside, float32 products may round their inputs to fewer bits, or may not, whatever the caller allows.

    Points of a reduced precision fit it exactly, so nothing is lost; products of full float32 must stay that.
    """

    def __init__(self, precision: Precision) -> None:
        self.wanted = precision.matmul

    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.wanted)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.set_float32_matmul_precision(self.before)


class Block:
    """Reused memory for one block of products: fresh pages would cost as much as a pass over them."""

    BYTES = 24
    """Per element: values and a second array of at most 8 bytes each, and what the top-k takes."""

    def __init__(self, n_bytes: int, device: torch.device) -> None:
        self.n_elements = n_bytes // self.BYTES
        self._device = device
        self._arrays: dict[tuple[str, torch.dtype], Tensor] = {}

    def array(self, name: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """An uninitialised (R, C) array, the same memory each time."""
        n = shape[0] * shape[1]
        kept = self._arrays.get((name, dtype))
        if kept is None or len(kept) < n:
            kept = self._arrays[name, dtype] = torch.empty(n, dtype=dtype, device=self._device)
        return kept[:n].view(shape)


def top(values: Tensor, k: int, block: Block) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (R, C), descending, and their columns.

    The k largest lie in the k groups of the largest maxima, so only those are searched.
    """
    n_rows, n_columns = values.shape
    n_groups = n_columns // GROUP
    if n_groups < 2 * k:
        best = values.topk(min(k, n_columns), 1)
        return best.values, best.indices
    width = n_groups * GROUP // 2  # group g holds the columns g, g + n_groups, g + 2·n_groups, …
    heads = block.array("heads", (n_rows, width), values.dtype)
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
