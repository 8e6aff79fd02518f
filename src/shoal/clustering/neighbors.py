"""Exact cosine neighbors: blocked matrix products propose, a fixed-order float64 sum decides.

The similarity of two rows (`sums.py`) has the same bits everywhere. A matrix product has not, so it
is trusted only as far as its rounding bound goes. With the query q rounded to p, the bank row b to
r, and the product of p and r added up in any order (`ward/bounds.py`),

    |product - q·b| <= eps = γ·|p|·|r| + |q - p|·|b| + |p|·|b - r| + γ_D(float64)·|q|·|b|

with γ_D(u) = D·u / (1 - D·u). A bank row whose product lies more than 2·eps below the k-th largest
product therefore cannot be among the k nearest; the few that are not ruled out are compared by
their similarities, ties to the lowest index. Products are bfloat16 where the CPU multiplies tiles
of it, else float32; queries with too many contenders take the same step in the next precision, at
last (near duplicates) in float64.

Q queries, N bank rows, D columns, k neighbors, R queries of a block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.duplicates import equal_rows
from shoal.clustering.products import BFLOAT16, ENCODE_ROWS, FLOAT32, UNDERFLOW, Points, Precision
from shoal.clustering.sums import similarities
from shoal.clustering.workers import matmul_precision
from shoal.device import multiplies_bfloat16
from shoal.distributed import can_share, gather_rows, shard, tell_others

MARGIN = {BFLOAT16: 16, FLOAT32: 8}
"""Contenders kept beyond k from a product; a query with more is left to the next precision."""

MANY_PRODUCTS = 1e9
"""Multiply-adds from which rounding the rows to bfloat16 first pays."""

SMALL_BANK = 1024
"""Bank rows below which it does not: the queries' rounding takes as long as their products."""

SHARED_PRODUCTS = 2e10
"""Multiply-adds from which on all processes that wait for work search, instead of one."""

BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Memory of one block of products."""

TINY = torch.finfo(torch.float64).tiny
"""More than underflow can take from a float64 product."""

GROUP = 64
"""Products of which only the largest is looked at, unless it is among the largest of all groups."""


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The k nearest bank rows of each query, nearest first, ties to the lowest index.

    With `exact=True` no bank row outside a list has a similarity above the list's last one, so
    `similarities[:, -1]` bounds everything outside; as a bound on the inner product in real numbers
    add `rounding_bound(D)` (unit rows).
    """

    indices: Tensor  # (Q, k) int64
    similarities: Tensor  # (Q, k) float64; of the queries' dtype with exact=False

    def first(self, k: int) -> "Neighbors":
        """The nearest k alone, in memory of their own."""
        return Neighbors(self.indices[:, :k].contiguous(), self.similarities[:, :k].contiguous())


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

    `exclude` (Q,) names one bank row that each query must not be given (its own), -1 for none. Rows
    are expected to be finite and of length 1; other lengths, up to 1e18, are ranked by inner
    product. Cost: Q·N·D products and about Q·k·D additions in float64; memory: one block, and a
    copy of the bank where it is not float32 or is rounded to bfloat16. `exact=False` ranks by the
    raw product (for training: ties and last bits are the device's, reduced matrix-product precision
    is used where torch is told to).
    """
    assert queries.shape[1:] == bank.shape[1:], (queries.shape, bank.shape)
    if exclude is None:
        exclude = torch.full((len(queries),), -1, device=bank.device)
    # Whether any row is left out is asked of the device only where it makes a difference.
    assert 1 <= k <= len(bank) - int(k == len(bank) and bool((exclude >= 0).any())), k
    step = block_rows or max(64, BLOCK_BYTES[bank.device.type] // (4 * len(bank)))
    if not exact:
        parts = zip(torch.split(queries, step), torch.split(exclude, step), strict=True)
        tops = [_without(rows @ bank.T, own).topk(k, dim=1) for rows, own in parts]
        return Neighbors(
            torch.cat([top.indices for top in tops]), torch.cat([top.values for top in tops])
        )
    if can_share(bank.device, len(queries) * bank.numel(), SHARED_PRODUCTS):
        tensors = {"bank": bank, "exclude": exclude}
        if queries is not bank:
            tensors["queries"] = queries
        tell_others(search_with_main, tensors, bank.device, k=k, step=step)
        return search_with_main(bank, exclude, queries, k=k, step=step)
    return _nearest(queries, bank, k, exclude, step)


@torch.no_grad()
def search_with_main(
    bank: Tensor, exclude: Tensor, queries: Tensor | None = None, *, k: int, step: int
) -> Neighbors:
    """All lists, in every process, of which each finds a share; queries that are not given are the
    bank itself."""
    if queries is None:
        queries = bank
    rows = shard(len(queries))
    own = _nearest(queries[rows], bank, k, exclude[rows], step)
    return Neighbors(gather_rows(own.indices), gather_rows(own.similarities))


def _nearest(queries: Tensor, bank: Tensor, k: int, exclude: Tensor, step: int) -> Neighbors:
    """Exact lists, a block of queries at a time."""
    indices = torch.empty(len(queries), k, dtype=torch.int64, device=bank.device)
    lists = Neighbors(indices, torch.empty_like(indices, dtype=torch.float64))
    banks = {}
    n_products = len(queries) * bank.numel()
    if n_products > MANY_PRODUCTS and len(bank) >= SMALL_BANK and multiplies_bfloat16(bank.device):
        banks[BFLOAT16] = _rounded(bank, BFLOAT16)
    banks[FLOAT32] = _rounded(bank, FLOAT32)
    # One block of memory for all products: fresh pages for each block cost a tenth of the time on
    # the CPU.
    n_columns = GROUP * -(-len(bank) // GROUP)
    block = torch.full((min(step, len(queries)), n_columns), -torch.inf, device=bank.device)
    for start in range(0, len(queries), step):
        rows = torch.arange(start, min(start + step, len(queries)), device=bank.device)
        for precision, rounded in tuple(banks.items()):
            found, is_open = _propose(
                queries[rows], bank, k, exclude[rows], precision, rounded, block[: len(rows)]
            )
            lists.indices[rows] = found.indices
            lists.similarities[rows] = found.similarities
            if precision is BFLOAT16 and 2 * int(is_open.sum()) > len(rows):
                del banks[BFLOAT16]  # so would the next blocks
            rows = rows[is_open]
            if not len(rows):
                break
        else:
            found = _nearest_in_float64(queries[rows], bank, k, exclude[rows])
            lists.indices[rows] = found.indices
            lists.similarities[rows] = found.similarities
    return lists


def _propose(
    queries: Tensor,
    bank: Tensor,
    k: int,
    exclude: Tensor,
    precision: Precision,
    rounded: Points,
    block: Tensor,
) -> tuple[Neighbors, Tensor]:
    """Neighbors by products of one precision, and which rows have more contenders than were kept.

    `rounded` is the bank, `block` (R, N or more) the memory of the products.
    """
    n, n_columns = bank.shape
    own = _rounded(queries, precision)
    width = min(k + MARGIN[precision], n)
    with matmul_precision(precision.matmul, len(queries) * bank.numel()):
        products = torch.mm(own.points, rounded.points.T, out=block[:, :n])
    values, indices = _largest(_without(products, exclude), block, width)  # (R, width) each
    length = (2 * own.half).sqrt()  # |p|
    longest = (2 * rounded.half.max()).sqrt()  # max |r|
    reach = rounded.reach.max()
    eps = own.reach * (longest + reach) + length * reach
    eps += precision.gamma(n_columns) * length * longest
    eps += rounding_bound(n_columns) * (length + own.reach) * (longest + reach)
    eps = eps * (1 + 1e-9) + n_columns * UNDERFLOW
    contends = values.double() >= (values[:, k - 1].double() - 2 * eps)[:, None]  # (R, width)
    scores = torch.full(indices.shape, -torch.inf, dtype=torch.float64, device=bank.device)
    scores[:, :k] = similarities(queries, bank, indices[:, :k])
    # Few: those as near as the k-th, as far as a product tells.
    row, column = contends[:, k:].nonzero(as_tuple=True)
    column += k
    scores[row, column] = similarities(queries[row], bank, indices[row, column, None])[:, 0]
    return _ordered(indices, scores, k), contends[:, -1] & (width < n)


def _rounded(rows: Tensor, precision: Precision) -> Points:
    """The rows in a format of products, half their squared lengths, and how far rounding moved each
    at most."""
    if precision is FLOAT32 and rows.dtype == torch.float32:
        half = _lengths(rows).square() / 2
        return Points(rows, half, torch.zeros_like(half))
    points = Points.blank(rows, precision)
    origin = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    step = ENCODE_ROWS[rows.device.type]
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        points.put(part, Points.of(rows[part], origin, precision))
    return points


def _largest(products: Tensor, padded: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest products (R, N) of each row, descending, and their columns.

    `padded` is the same memory with -inf up to whole groups of columns. Fewer than `width` groups
    hold a product above the last one wanted, so the `width` groups with the largest maxima hold all
    that are wanted.
    """
    if products.shape[1] <= 2 * width * GROUP:
        top = products.topk(width, dim=1)
        return top.values, top.indices
    n_rows = len(padded)
    n_groups = padded.shape[1] // GROUP
    maxima = padded.view(n_rows, n_groups, GROUP).amax(dim=2)  # (R, groups)
    best = maxima.topk(width, dim=1, sorted=False).indices  # (R, width)
    # Each row's first group.
    first = torch.arange(0, n_rows * n_groups, n_groups, device=best.device)
    held = padded.view(-1, GROUP)[(best + first[:, None]).flatten()].view(n_rows, width * GROUP)
    top = held.topk(width, dim=1)
    return top.values, best.gather(1, top.indices // GROUP) * GROUP + top.indices % GROUP


def _ordered(indices: Tensor, scores: Tensor, k: int) -> Neighbors:
    """The k highest scores of each row, ties to the lowest index."""
    by_index = indices.argsort(dim=1)
    scores = scores.gather(1, by_index)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return Neighbors(indices.gather(1, by_index.gather(1, order)), scores.gather(1, order))


def _nearest_in_float64(queries: Tensor, bank: Tensor, k: int, exclude: Tensor) -> Neighbors:
    """The same step with a float64 product, every row not ruled out by its bound contending.

    Of rows that are equal only the first k + 1 can be neighbors, so later copies are left out: a
    thousand blank images would otherwise contend with one another.
    """
    # Ascending, so ties still go to the lowest index.
    kept = (equal_rows(bank).earlier_copies() <= k).nonzero()[:, 0]
    position = torch.full((len(bank),), -1, device=bank.device)
    position[kept] = torch.arange(len(kept), device=bank.device)
    exclude = torch.where(exclude < 0, -1, position[exclude.clamp(min=0)])
    bank = bank[kept]
    n_columns = bank.shape[1]
    at_once = BLOCK_BYTES[bank.device.type] // 8
    longest = _lengths(bank).max()
    parts = []
    for start in range(0, len(queries), max(1, at_once // len(bank))):
        part = slice(start, start + max(1, at_once // len(bank)))
        rows = queries[part]
        # The bank is converted a slice at a time: it may fill half of the memory already.
        slices = torch.split(bank, max(1, at_once // n_columns))
        products = torch.cat([rows.double() @ each.double().T for each in slices], dim=1)
        products = _without(products, exclude[part])
        eps = 2 * rounding_bound(n_columns + 2) * _lengths(rows) * longest + n_columns * TINY
        limit = products.topk(k, dim=1).values[:, -1] - 2 * eps
        width = int((products >= limit[:, None]).sum(dim=1).max())
        top = products.topk(width, dim=1)
        scores = similarities(rows, bank, top.indices)
        parts.append(_ordered(top.indices, scores.where(top.values > -torch.inf, -torch.inf), k))
    return Neighbors(
        kept[torch.cat([part.indices for part in parts])],
        torch.cat([part.similarities for part in parts]),
    )


def _without(products: Tensor, exclude: Tensor) -> Tensor:
    """The products (R, N), overwritten with -inf where a bank row is left out."""
    # No selection of rows: their number would have to be known, and every step of training waited
    # for the device.
    own = exclude.clamp(min=0)[:, None]  # (R, 1)
    left = torch.where(exclude[:, None] < 0, products.gather(1, own), -torch.inf)
    return products.scatter_(1, own, left)


def _lengths(rows: Tensor) -> Tensor:
    """Upper bounds of the rows' lengths: float32 norms and what they may be short by."""
    norms: Tensor = torch.linalg.vector_norm(rows.float(), dim=1).double()
    return norms * (1 + rounding_bound(rows.shape[1] + 2, torch.float32))


def rounding_bound(n_columns: int, dtype: torch.dtype = torch.float64) -> float:
    """γ_D of `dtype`: how far an inner product of unit rows may be off, whatever the order of its
    additions."""
    u = n_columns * torch.finfo(dtype).eps / 2
    return u / (1 - u)
