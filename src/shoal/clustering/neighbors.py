"""Exact cosine neighbors: blocked matrix products propose, a fixed-order float64 sum decides.

The similarity of two rows (`sums.py`) has the same bits everywhere. A matrix product has not, so it
is trusted only as far as its rounding bound goes. With the query q rounded to p, the bank row b to
r, and the product of p and r added up in any order (`ward/bounds.py`),

    |product - q·b| <= eps = γ·|p|·|r| + |q - p|·|b| + |p|·|b - r| + γ_D(float64)·|q|·|b|,   γ_D(u) = D·u / (1 - D·u)

A bank row whose product lies more than 2·eps below the k-th largest product therefore cannot be
among the k nearest; the few that are not ruled out are compared by their similarities, ties to the
lowest index. Products are bfloat16 where the CPU multiplies tiles of it, else float32; queries with
too many contenders take the same step in the next precision, at last (near duplicates) in float64.

Q queries, N bank rows, D columns, k neighbors, R rows of a block, M contenders.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.duplicates import equal_rows
from shoal.clustering.products import BFLOAT16, ENCODE_ROWS, FLOAT32, UNDERFLOW, Points, Precision
from shoal.clustering.sums import pair_similarities, similarities
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

    @classmethod
    def blank(cls, n_queries: int, k: int, device: torch.device) -> "Neighbors":
        """Room for the lists of some queries."""
        indices = torch.empty(n_queries, k, dtype=torch.int64, device=device)
        return cls(indices, torch.empty_like(indices, dtype=torch.float64))

    def put(self, rows: Tensor, lists: "Neighbors") -> None:
        """Overwrite the lists of some queries."""
        self.indices[rows] = lists.indices
        self.similarities[rows] = lists.similarities


Search = Callable[[Tensor, Tensor | None], Neighbors]


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
    _check(queries, bank, k, exclude)
    if exact and can_share(bank.device, len(queries) * bank.numel(), SHARED_PRODUCTS):
        return _nearest_of_all(queries, bank, k, exclude)
    return _nearest(queries, bank, k, exclude, block_rows, exact)


def _nearest(
    queries: Tensor,
    bank: Tensor,
    k: int,
    exclude: Tensor | None,
    block_rows: int | None = None,
    exact: bool = True,
) -> Neighbors:
    usual = max(64, BLOCK_BYTES[queries.device.type] // (4 * len(bank)))
    step = block_rows or usual
    nearest = (
        _exact_search(bank, k, min(step, len(queries)), len(queries))
        if exact
        else _raw_search(bank, k)
    )
    blocks = [slice(start, start + step) for start in range(0, max(len(queries), 1), step)]
    return _stack(
        [nearest(queries[rows], None if exclude is None else exclude[rows]) for rows in blocks]
    )


def _nearest_of_all(queries: Tensor, bank: Tensor, k: int, exclude: Tensor | None) -> Neighbors:
    """Have every process search for its share of the queries; lists are exact, so it does not
    matter who searches."""
    given = {"bank": bank, "queries": None if queries is bank else queries, "exclude": exclude}
    tell_others(
        search_with_main,
        {name: rows for name, rows in given.items() if rows is not None},
        bank.device,
        k=k,
    )
    return search_with_main(bank, queries, exclude, k=k)


@torch.no_grad()
def search_with_main(
    bank: Tensor, queries: Tensor | None = None, exclude: Tensor | None = None, *, k: int
) -> Neighbors:
    """All lists, in every process, of which each finds a share; queries that are not given are the
    bank itself."""
    queries = bank if queries is None else queries
    rows = shard(len(queries))
    own_lists = _nearest(queries[rows], bank, k, None if exclude is None else exclude[rows])
    return Neighbors(gather_rows(own_lists.indices), gather_rows(own_lists.similarities))


def _raw_search(bank: Tensor, k: int) -> Search:
    def nearest(queries: Tensor, exclude: Tensor | None) -> Neighbors:
        top = _without(queries @ bank.T, exclude).topk(k, dim=1)
        return Neighbors(top.indices, top.values)

    return nearest


def _exact_search(bank: Tensor, k: int, block_rows: int, n_queries: int) -> Search:
    n = len(bank)
    longest = _lengths(bank).max()
    # Cheapest first.
    banks = {precision: _rounded(bank, precision) for precision in _precisions(bank, n_queries)}
    # One block of memory for all products: fresh pages for each block cost a tenth of the time on
    # the CPU.
    block = torch.full((block_rows, GROUP * -(-n // GROUP)), -torch.inf, device=bank.device)

    def propose(
        queries: Tensor, exclude: Tensor | None, precision: Precision
    ) -> tuple[Neighbors, Tensor]:
        """Neighbors by products of one precision, and which rows have more contenders than were
        kept."""
        own = _rounded(queries, precision)
        theirs = banks[precision]
        width = min(k + MARGIN[precision], n)
        with matmul_precision(precision.matmul, len(queries) * bank.numel()):
            products = torch.mm(own.points, theirs.points.T, out=block[: len(queries), :n])
        # (R, width) each
        values, indices = _largest(_without(products, exclude), block[: len(queries)], width)
        eps = _eps(own, theirs, _lengths(queries) * longest, precision)  # (R,)
        contends = values.double() >= (values[:, k - 1].double() - 2 * eps)[:, None]  # (R, width)
        return _decide(queries, bank, indices, contends, k), contends[:, -1] & (width < n)

    def nearest(queries: Tensor, exclude: Tensor | None) -> Neighbors:
        lists = Neighbors.blank(len(queries), k, queries.device)
        rows = torch.arange(len(queries), device=bank.device)
        for precision in tuple(banks):
            own = None if exclude is None else exclude[rows]
            part, is_open = propose(queries[rows], own, precision)
            lists.put(rows, part)
            if precision is not FLOAT32 and 2 * int(is_open.sum()) > len(rows):
                del banks[precision]  # so would the next blocks
            rows = rows[is_open]
            if not len(rows):
                return lists
        own = None if exclude is None else exclude[rows]
        lists.put(rows, _nearest_in_float64(queries[rows], bank, k, own))
        return lists

    return nearest


def _precisions(bank: Tensor, n_queries: int) -> tuple[Precision, ...]:
    """The formats of products to try, cheapest first, before float64."""
    is_worth_it = n_queries * bank.numel() > MANY_PRODUCTS and len(bank) >= SMALL_BANK
    return (BFLOAT16, FLOAT32) if is_worth_it and multiplies_bfloat16(bank.device) else (FLOAT32,)


def _rounded(rows: Tensor, precision: Precision) -> Points:
    """The rows in a format of products, half their squared lengths, and how far rounding moved each
    at most."""
    if precision is FLOAT32 and rows.dtype == torch.float32:
        half = _lengths(rows).square() / 2
        return Points(rows, half, torch.zeros_like(half))
    origin = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    parts = [
        Points.of(part.double(), origin, precision)
        for part in torch.split(rows, ENCODE_ROWS[rows.device.type])
    ]
    return Points(
        *(torch.cat([getattr(part, name) for part in parts]) for name in Points.__slots__)
    )


def _largest(products: Tensor, padded: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest products (R, N) of each row, descending, and their columns.

    `padded` is the same memory with -inf up to whole groups of columns. Fewer than `width` groups
    hold a product above the last one wanted, so the `width` groups with the largest maxima hold all
    that are wanted.
    """
    n_rows = len(padded)
    n_groups = padded.shape[1] // GROUP
    if products.shape[1] <= 2 * width * GROUP:
        top = products.topk(width, dim=1)
        return top.values, top.indices
    maxima = padded.view(n_rows, n_groups, GROUP).amax(dim=2)  # (R, groups)
    best = maxima.topk(width, dim=1, sorted=False).indices  # (R, width)
    # Each row's first group.
    first = torch.arange(0, n_rows * n_groups, n_groups, device=best.device)
    held = padded.view(-1, GROUP)[(best + first[:, None]).flatten()].view(n_rows, width * GROUP)
    top = held.topk(width, dim=1)
    return top.values, best.gather(1, top.indices // GROUP) * GROUP + top.indices % GROUP


def _decide(queries: Tensor, bank: Tensor, indices: Tensor, contends: Tensor, k: int) -> Neighbors:
    """Order the contenders of each row by similarity and keep k; columns below k always contend."""
    scores = torch.full(indices.shape, -torch.inf, dtype=torch.float64, device=queries.device)
    scores[:, :k] = similarities(queries, bank, indices[:, :k])
    # Few: those as near as the k-th, as far as a product tells.
    row, column = contends[:, k:].nonzero(as_tuple=True)
    column += k
    scores[row, column] = pair_similarities(queries, bank, row, indices[row, column])
    return _sorted(indices, scores, k)


def _sorted(indices: Tensor, scores: Tensor, k: int) -> Neighbors:
    by_index = indices.argsort(dim=1)
    indices = indices.gather(1, by_index)
    scores = scores.gather(1, by_index)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return Neighbors(indices.gather(1, order), scores.gather(1, order))


def _nearest_in_float64(queries: Tensor, bank: Tensor, k: int, exclude: Tensor | None) -> Neighbors:
    """The same step with a float64 product, every row not ruled out by its bound contending.

    Of rows that are equal only the first k + 1 can be neighbors, so later copies are left out: a
    thousand blank images would otherwise contend with one another.
    """
    # Ascending, so ties still go to the lowest index.
    kept = (equal_rows(bank).earlier_copies() <= k).nonzero()[:, 0]
    if exclude is not None:
        position = torch.full((len(bank),), -1, device=bank.device)
        position[kept] = torch.arange(len(kept), device=bank.device)
        exclude = torch.where(exclude < 0, -1, position[exclude.clamp(min=0)])
    bank = bank[kept]
    step = max(1, BLOCK_BYTES[queries.device.type] // (8 * len(bank)))
    longest = _lengths(bank).max()
    parts = []
    for start in range(0, len(queries), step):
        rows = queries[start : start + step]
        products = _products64(
            rows, bank, None if exclude is None else exclude[start : start + step]
        )
        eps = (
            2 * rounding_bound(rows.shape[1] + 2) * _lengths(rows) * longest + rows.shape[1] * TINY
        )
        limit = products.topk(k, dim=1).values[:, -1] - 2 * eps
        parts.append(_decide_listed(rows, bank, products >= limit[:, None], k))
    lists = _stack(parts)
    return Neighbors(kept[lists.indices], lists.similarities)


def _decide_listed(queries: Tensor, bank: Tensor, contends: Tensor, k: int) -> Neighbors:
    """As `_decide`, for contenders marked in a mask (R, N) and of any number per row."""
    row, column = contends.nonzero(as_tuple=True)  # columns ascend within a row
    counts = contends.sum(dim=1)
    position = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    shape = (len(queries), int(counts.max()))
    indices = torch.full(shape, len(bank), device=row.device)  # padding sorts after every real row
    indices[row, position] = column
    scores = torch.full(shape, -torch.inf, dtype=torch.float64, device=row.device)
    scores[row, position] = pair_similarities(queries, bank, row, column)
    return _sorted(indices, scores, k)


def _products64(queries: Tensor, bank: Tensor, exclude: Tensor | None) -> Tensor:
    """Products in float64, the bank converted a slice at a time: it may fill half of the memory in
    float32 already."""
    step = max(1, BLOCK_BYTES[queries.device.type] // (8 * bank.shape[1]))
    wide = queries.double()
    slices = [wide @ bank[start : start + step].double().T for start in range(0, len(bank), step)]
    return _without(torch.cat(slices, dim=1), exclude)


def _without(products: Tensor, exclude: Tensor | None) -> Tensor:
    if exclude is not None:
        # No selection of rows: their number would have to be known, and every step of training
        # waited for the device.
        own = exclude.clamp(min=0)[:, None]  # (R, 1)
        products.scatter_(
            1, own, torch.where(exclude[:, None] < 0, products.gather(1, own), -torch.inf)
        )
    return products


def _lengths(rows: Tensor) -> Tensor:
    """Upper bounds of the rows' lengths: float32 norms and what they may be short by."""
    norms: Tensor = torch.linalg.vector_norm(rows.float(), dim=1).double()
    return norms * (1 + rounding_bound(rows.shape[1] + 2, torch.float32))


def rounding_bound(n_columns: int, dtype: torch.dtype = torch.float64) -> float:
    """γ_D of `dtype`: how far an inner product of unit rows may be off, whatever the order of its
    additions."""
    u = n_columns * torch.finfo(dtype).eps / 2
    return u / (1 - u)


def _eps(own: Points, theirs: Points, scale: Tensor, precision: Precision) -> Tensor:
    """(R,) how far a product may lie from the similarity; `scale` is |query| · max |bank row|."""
    n_columns = own.points.shape[1]
    # |p|, max |r|
    length = (2 * own.half).sqrt()
    longest = (2 * theirs.half.max()).sqrt()
    moved = own.reach * (longest + theirs.reach.max()) + length * theirs.reach.max()
    gamma = precision.gamma(n_columns) * length * longest + rounding_bound(n_columns) * scale
    return (gamma + moved) * (1 + 1e-9) + n_columns * UNDERFLOW


def _stack(parts: list[Neighbors]) -> Neighbors:
    return Neighbors(
        torch.cat([part.indices for part in parts]),
        torch.cat([part.similarities for part in parts]),
    )


def _check(queries: Tensor, bank: Tensor, k: int, exclude: Tensor | None) -> None:
    assert queries.ndim == bank.ndim == 2, (queries.shape, bank.shape)
    assert queries.shape[1] == bank.shape[1], (queries.shape, bank.shape)
    assert exclude is None or (exclude.shape, exclude.dtype) == ((len(queries),), torch.int64), (
        exclude
    )
    # Whether any row is left out is asked of the device only where it makes a difference.
    assert 1 <= k < len(bank) or (
        k == len(bank) and (exclude is None or not bool((exclude >= 0).any()))
    ), k
