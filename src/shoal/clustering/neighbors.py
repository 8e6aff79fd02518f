"""Exact cosine neighbors: blocked matrix products find candidates, float64 sums in a fixed order
rank them.

The similarity of two rows (`sums.py`) has the same bits on every device. A matrix product does not,
so it is only used to rule out rows, with a bound on its rounding error. With the query q rounded to
p, the bank row b rounded to r, and the product of p and r summed in any order (`ward/bounds.py`),

    |product - q·b| <= eps = γ·|p|·|r| + |q - p|·|b| + |p|·|b - r| + γ(float64)·|q|·|b|

with γ from `Precision.gamma`. A bank row whose product is more than 2·eps below the k-th largest
cannot be among the k nearest. The few others are compared by their similarities; ties go to the
lowest index. Products are computed in bfloat16 on a CPU with AMX, else in float32. Queries with too
many candidates, such as near-duplicates, are searched again in the next precision, finally in
float64.

Shapes: Q queries, N bank rows, D columns, k neighbors, R queries per block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.products import (
    BFLOAT16,
    FEW_PRODUCTS,
    FLOAT32,
    FLOAT64,
    UNDERFLOW,
    Points,
    Precision,
    Rows,
    Scratch,
    all_workers,
    largest_columns,
    matmul_precision,
)
from shoal.clustering.sums import earlier_copies, equal_rows, similarities
from shoal.device import multiplies_bfloat16

# Largest number of candidates beyond k; a query with more is searched in the next precision
MARGIN = {BFLOAT16: 16, FLOAT32: 8}

# Bank rows below which a search in bfloat16 first is not faster: rounding the queries takes as long
# as their products
SMALL_BANK = 1024

# Memory of one block of products
BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}


@dataclass(frozen=True)
class Neighbors(Rows):
    """The k nearest bank rows of each query, nearest first, then by index.

    With `exact=True` no bank row outside a list is more similar than the last one in it. For unit
    rows, similarities differ from the inner products in real numbers by at most
    `FLOAT64.gamma(D)`.
    """

    indices: Tensor  # (Q, k) int64
    similarities: Tensor  # (Q, k) float64; with exact=False the dtype of the queries

    def first(self, k: int) -> "Neighbors":
        return self.each(lambda tensor: tensor[:, :k].contiguous())


@torch.no_grad()
def k_nearest(
    queries: Tensor,
    bank: Tensor,
    k: int,
    *,
    exclude: Tensor | None = None,
    block_rows: int | None = None,
    exact: bool = True,
) -> Neighbors:
    """Find the k rows of `bank` (N, D) with the largest inner product with each row of `queries`
    (Q, D).

    `exclude` (Q,) is the bank row to skip for each query, usually its own, or -1. Rows should be
    finite and of length 1; rows of other lengths, up to 1e18, are ranked by inner product. Cost:
    Q·N·D multiply-adds and about Q·k·D additions in float64; memory: 1.5 blocks, and a copy of the
    bank if it is not float32 or is rounded to bfloat16. `exact=False`, for training, ranks by the
    matrix product: ties and last bits depend on the device and on torch's settings.
    """
    assert queries.shape[1:] == bank.shape[1:], (queries.shape, bank.shape)
    if exclude is None:
        exclude = torch.full((len(queries),), -1, device=bank.device)
    # Reading `exclude` synchronizes with the GPU, so it is read only if k equals the bank size.
    assert 1 <= k <= len(bank) - int(k == len(bank) and bool((exclude >= 0).any())), k
    step = block_rows or max(64, BLOCK_BYTES[bank.device.type] // (4 * len(bank)))
    if not exact:
        parts = zip(torch.split(queries, step), torch.split(exclude, step), strict=True)
        tops = [_mask(rows @ bank.T, skipped).topk(k, dim=1) for rows, skipped in parts]
        values, indices = map(torch.cat, zip(*tops, strict=True))
        return Neighbors(indices, values)
    return _nearest(queries, bank, exclude, k, step)


def _nearest(queries: Tensor, bank: Tensor, exclude: Tensor, k: int, step: int) -> Neighbors:
    """Return exact neighbors, searched one block of queries at a time."""
    indices = torch.empty(len(queries), k, dtype=torch.int64, device=bank.device)
    neighbors = Neighbors(indices, torch.empty_like(indices, dtype=torch.float64))
    banks = {}
    n_products = len(queries) * bank.numel()
    if n_products > FEW_PRODUCTS and len(bank) >= SMALL_BANK and multiplies_bfloat16(bank.device):
        banks[BFLOAT16] = _rounded(bank, BFLOAT16)
    banks[FLOAT32] = _rounded(bank, FLOAT32)
    # Reuse buffers: on a CPU, allocating new pages for each block costs 10 % of the time.
    scratch = Scratch(bank.device)
    left = [indices.new_empty(0)]

    def search(rows: Tensor, precision: Precision, is_copy: Tensor | None = None) -> Tensor:
        """Search some queries, and return those that may have more candidates."""
        found, is_unresolved = _search(
            queries[rows], bank, exclude[rows], k, precision, banks[precision], scratch, is_copy
        )
        neighbors.put(rows, found)
        return rows[is_unresolved]

    for rows in torch.split(torch.arange(len(queries), device=bank.device), step):
        unresolved = rows
        for precision in tuple(banks):
            unresolved = search(unresolved, precision)
            if precision is BFLOAT16 and 2 * len(unresolved) > len(rows):
                del banks[BFLOAT16]  # too imprecise for these rows: skip it for the next blocks
            if not len(unresolved):
                break
        left.append(unresolved)
    last = torch.cat(left)
    if len(last):
        # Of equal rows, only the first k + 1 can be neighbors. Without this, all of a thousand
        # blank images would be candidates for each of them.
        is_copy = earlier_copies(equal_rows(bank)[1]) > k  # (N,)
        banks[FLOAT64] = _rounded(bank, FLOAT64)
        for rows in torch.split(last, step):
            search(rows, FLOAT64, is_copy)
    return neighbors


def _search(
    queries: Tensor,
    bank: Tensor,
    exclude: Tensor,
    k: int,
    precision: Precision,
    rounded: Points,
    scratch: Scratch,
    is_copy: Tensor | None,
) -> tuple[Neighbors, Tensor]:
    """Return neighbors by products of one precision with the `rounded` bank, and whether each query
    (R,) may have more candidates than were compared; in float64, all are compared.

    Bank rows marked in `is_copy` (N,) are left out.
    """
    n = len(bank)
    rounded_queries = _rounded(queries, precision)
    block = scratch.array("products", (len(queries), n), precision.value_dtype)
    with matmul_precision(precision.matmul, len(queries) * bank.numel()):
        products = torch.mm(rounded_queries.points, rounded.points.T, out=block)
    _mask(products, exclude)
    error = 2 * _error(rounded_queries, rounded, precision)
    if is_copy is None:
        n_candidates = min(k + MARGIN[precision], n)
    else:
        products.masked_fill_(is_copy, -torch.inf)
        lowest = products.topk(k, dim=1).values[:, -1] - error
        n_candidates = int((products >= lowest[:, None]).sum(dim=1).max())
    values, indices = largest_columns(products, n_candidates)
    limit = values[:, k - 1].double() - error
    is_candidate = values.double() >= limit[:, None]
    scores = torch.full(indices.shape, -torch.inf, dtype=torch.float64, device=bank.device)
    scores[:, :k] = similarities(queries, bank, indices[:, :k])
    # Beyond the k-th, only the few columns that the product cannot distinguish from it.
    row, column = is_candidate[:, k:].nonzero(as_tuple=True)
    column += k
    scores[row, column] = similarities(queries[row], bank, indices[row, column, None])[:, 0]
    # The k highest scores, ties to the lowest index.
    by_index = indices.argsort(dim=1)
    scores = scores.gather(1, by_index)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    found = Neighbors(indices.gather(1, by_index.gather(1, order)), scores.gather(1, order))
    return found, is_candidate[:, -1] & (n_candidates < n)


def _rounded(rows: Tensor, precision: Precision) -> Points:
    """Return the rows rounded to a precision, without centering."""
    if precision is FLOAT32 and rows.dtype == torch.float32:
        length = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return Points(rows, length.square() / 2, torch.zeros_like(length))
    origin = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    with all_workers(rows.device) as workers:
        return Points.of_all(rows, origin, precision, workers)


def _error(queries: Points, bank: Points, precision: Precision) -> Tensor:
    """Return eps (R,) of the module's docstring, with |q| <= |p| + |q - p| and the same for b and
    r."""
    n_columns = queries.points.shape[1]
    length = (2 * queries.half).sqrt()  # |p|
    longest = (2 * bank.half.max()).sqrt()  # max |r|
    reach = bank.reach.max()  # max |b - r|
    eps = queries.reach * (longest + reach) + length * reach
    eps += precision.gamma(n_columns) * length * longest
    eps += FLOAT64.gamma(n_columns) * (length + queries.reach) * (longest + reach)
    return eps * (1 + 1e-9) + n_columns * UNDERFLOW


def _mask(products: Tensor, exclude: Tensor) -> Tensor:
    """Overwrite the products (R, N) of excluded bank rows with -inf, in place."""
    # Indexing with a boolean mask would synchronize with the GPU in every training step. Rows with
    # nothing to exclude write the product of column 0 back instead.
    columns = exclude.clamp(min=0)[:, None]  # (R, 1)
    masked = torch.where(exclude[:, None] < 0, products.gather(1, columns), -torch.inf)
    return products.scatter_(1, columns, masked)
