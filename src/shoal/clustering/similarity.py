"""The similarity of two rows: their inner product, to the same bits on every device.

Products are taken in float64 and added along a halving tree whose shape depends on D alone. Elementwise float64
operations round the same way everywhere, so the number does not depend on the block size, the number of threads or the
device, as that of a matrix product does.

Q queries, D columns, R rows of a chunk, M bank rows for each query, E pairs.
"""

import torch
from torch import Tensor

from shoal.clustering.sums import halving_sum

CHUNK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Products added up at once; on the CPU few enough to stay in the cache."""


@torch.no_grad()
def similarities(queries: Tensor, bank: Tensor, indices: Tensor) -> Tensor:
    """Inner products of query i with the bank rows `indices[i]`, float64, the same on every device: (Q, M)."""
    q, m = indices.shape
    step = max(1, CHUNK_ELEMENTS[queries.device.type] // (m * queries.shape[1]))
    out = torch.empty(q, m, dtype=torch.float64, device=queries.device)
    for start in range(0, q, step):
        rows = slice(start, start + step)
        products = bank[indices[rows]].double()  # (R, M, D)
        out[rows] = halving_sum(products.mul_(queries[rows, None].double()))
    return out


@torch.no_grad()
def pair_similarities(queries: Tensor, bank: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Inner products of the queries `row[e]` with the bank rows `column[e]`, as `similarities` has them: (E,)."""
    step = max(1, CHUNK_ELEMENTS[queries.device.type] // queries.shape[1])
    out = torch.empty(len(row), dtype=torch.float64, device=queries.device)
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        out[part] = halving_sum(bank[column[part]].double().mul_(queries[row[part]].double()))
    return out


def rounding_bound(n_columns: int, dtype: torch.dtype = torch.float64) -> float:
    """γ_D of `dtype`: how far an inner product of unit rows may be off, whatever the order of its additions."""
    u = n_columns * torch.finfo(dtype).eps / 2
    return u / (1 - u)
