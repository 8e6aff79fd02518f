"""Exact cosine neighbors: blocked matrix products propose, a fixed-order float64 sum decides.

The similarity of two rows is *defined* as their inner product, products taken in float64 and added along a halving
tree whose shape depends on D alone. Elementwise float64 operations round the same way everywhere, so this number does
not depend on the block size, the number of threads or the device. A float32 matrix product does, in its last bits, so
it is trusted only as far as its rounding bound goes:

    |product - similarity| <= eps = (γ_D(float32) + γ_D(float64)) · |query| · max |bank row|,   γ_D(u) = D·u / (1 - D·u)

holds for any order of summation. A bank row whose product lies more than 2·eps below the k-th largest product therefore
cannot be among the k nearest; the few that are not ruled out are compared by their similarities, ties to the lowest
index. Rows with too many contenders (near duplicates) take the same step with a float64 product.

Q queries, N bank rows, D columns, k neighbors, R rows of a block, M contenders.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.arrays import as_count
from shoal.clustering.sums import halving_sum
from shoal.errors import UsageError

MARGIN = 8
"""Contenders kept beyond k from the float32 product; more are looked for in float64."""

BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Memory of one block of products."""

GROUP = 64
"""Products of which only the largest is looked at, unless it is among the largest of all groups."""

CHUNK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Products added up at once; on the CPU few enough to stay in the cache."""


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The k nearest bank rows of each query, nearest first, ties to the lowest index.

    With `exact=True` no bank row outside a list has a similarity above the list's last one, so `similarities[:, -1]`
    bounds everything outside; as a bound on the inner product in real numbers add `rounding_bound(D)` (unit rows).
    """

    indices: Tensor  # (Q, k) int64
    similarities: Tensor  # (Q, k) float64; of the queries' dtype with exact=False

    def first(self, k: int) -> "Neighbors":
        """The lists cut down to the k nearest."""
        return Neighbors(self.indices[:, :k], self.similarities[:, :k])


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
    """Find the k rows of `bank` (N, D) with the largest inner product with each row of `queries` (Q, D).

    `exclude` (Q,) names one bank row that each query must not be given (its own), -1 for none. Rows are expected to be
    finite and of length 1; other lengths are ranked by inner product. Cost: Q·N·D products and about Q·k·D additions in
    float64; memory: one block. `exact=False` ranks by the raw product (for training: ties and last bits are the
    device's, reduced matrix-product precision is used where torch is told to).
    """
    _check(queries, bank, k, exclude)
    usual = max(64, BLOCK_BYTES[queries.device.type] // (4 * len(bank)))
    step = usual if block_rows is None else as_count(block_rows, name="block_rows", least=1)
    nearest = _exact_search(bank, k, min(step, len(queries))) if exact else _raw_search(bank, k)
    blocks = [slice(start, start + step) for start in range(0, max(len(queries), 1), step)]
    return _stack([nearest(queries[rows], None if exclude is None else exclude[rows]) for rows in blocks])


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


def rounding_bound(n_columns: int, dtype: torch.dtype = torch.float64) -> float:
    """γ_D of `dtype`: how far an inner product of unit rows may be off, whatever the order of its additions."""
    u = n_columns * torch.finfo(dtype).eps / 2
    return u / (1 - u)


def _raw_search(bank: Tensor, k: int) -> Search:
    def nearest(queries: Tensor, exclude: Tensor | None) -> Neighbors:
        top = _without(queries @ bank.T, exclude).topk(k, dim=1)
        return Neighbors(top.indices, top.values)

    return nearest


def _exact_search(bank: Tensor, k: int, block_rows: int) -> Search:
    n, narrow, longest = len(bank), bank.float(), _lengths(bank).max()
    width = min(k + MARGIN, n)
    # One block of memory for all products: fresh pages for each block cost a tenth of the time on the CPU.
    block = torch.full((block_rows, GROUP * -(-n // GROUP)), -torch.inf, device=bank.device)

    def nearest(queries: Tensor, exclude: Tensor | None) -> Neighbors:
        with _full_precision():
            products = torch.mm(queries.float(), narrow.T, out=block[: len(queries), :n])
        values, indices = _largest(_without(products, exclude), block[: len(queries)], width)  # (R, width) each
        eps = _eps(_lengths(queries) * longest, queries.shape[1], torch.float32)  # (R,)
        contends = values.double() >= (values[:, k - 1].double() - 2 * eps)[:, None]  # (R, width)
        found = _decide(queries, bank, indices, contends, k)
        if width < n and bool(contends[:, -1].any()):
            rows = contends[:, -1].nonzero()[:, 0]
            redone = _nearest_in_float64(queries[rows], bank, k, None if exclude is None else exclude[rows])
            found.indices[rows], found.similarities[rows] = redone.indices, redone.similarities
        return found

    return nearest


def _largest(products: Tensor, padded: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` largest products (R, N) of each row, descending, and their columns.

    `padded` is the same memory with -inf up to whole groups of columns. Fewer than `width` groups hold a product above
    the last one wanted, so the `width` groups with the largest maxima hold all that are wanted.
    """
    n_rows, n_groups = len(padded), padded.shape[1] // GROUP
    if products.shape[1] <= 2 * width * GROUP:
        top = products.topk(width, dim=1)
        return top.values, top.indices
    maxima = padded.view(n_rows, n_groups, GROUP).amax(dim=2)  # (R, groups)
    best = maxima.topk(width, dim=1, sorted=False).indices  # (R, width)
    first = torch.arange(0, n_rows * n_groups, n_groups, device=best.device)  # each row's first group
    held = padded.view(-1, GROUP)[(best + first[:, None]).flatten()].view(n_rows, width * GROUP)
    top = held.topk(width, dim=1)
    return top.values, best.gather(1, top.indices // GROUP) * GROUP + top.indices % GROUP


def _decide(queries: Tensor, bank: Tensor, indices: Tensor, contends: Tensor, k: int) -> Neighbors:
    """Order the contenders of each row by similarity and keep k; columns below k always contend."""
    scores = torch.full(indices.shape, -torch.inf, dtype=torch.float64, device=queries.device)
    scores[:, :k] = similarities(queries, bank, indices[:, :k])
    rows = contends[:, k:].any(dim=1).nonzero()[:, 0]  # few: where the k-th and the next are nearly equal
    if len(rows):
        rest = similarities(queries[rows], bank, indices[rows, k:])
        scores[rows, k:] = rest.masked_fill(~contends[rows, k:], -torch.inf)
    return _sorted(indices, scores, k)


def _sorted(indices: Tensor, scores: Tensor, k: int) -> Neighbors:
    by_index = indices.argsort(dim=1)
    indices, scores = indices.gather(1, by_index), scores.gather(1, by_index)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return Neighbors(indices.gather(1, order), scores.gather(1, order))


def _nearest_in_float64(queries: Tensor, bank: Tensor, k: int, exclude: Tensor | None) -> Neighbors:
    """The same step with a float64 product, every row not ruled out by its bound contending.

    Of rows that are equal only the first k + 1 can be neighbors, so later copies are left out: a thousand blank images
    would otherwise contend with one another.
    """
    kept = _first_copies(bank, k + 1)  # ascending, so ties still go to the lowest index
    if exclude is not None:
        place = torch.full((len(bank),), -1, device=bank.device)
        place[kept] = torch.arange(len(kept), device=bank.device)
        exclude = torch.where(exclude < 0, -1, place[exclude.clamp(min=0)])
    bank = bank[kept]
    step = max(1, BLOCK_BYTES[queries.device.type] // (8 * len(bank)))
    longest = _lengths(bank).max()
    parts = []
    for start in range(0, len(queries), step):
        rows = queries[start : start + step]
        products = _products64(rows, bank, None if exclude is None else exclude[start : start + step])
        eps = _eps(_lengths(rows) * longest, rows.shape[1], torch.float64)
        limit = products.topk(k, dim=1).values[:, -1] - 2 * eps
        parts.append(_decide_listed(rows, bank, products >= limit[:, None], k))
    found = _stack(parts)
    return Neighbors(kept[found.indices], found.similarities)


def _first_copies(bank: Tensor, n_copies: int) -> Tensor:
    """The rows, ascending, that are among the first `n_copies` of their value."""
    order, first = _grouped(_row_keys(bank))
    place = torch.arange(len(order), device=order.device)
    # Different rows may share a key, so a group is thinned only if each of its rows equals its first.
    is_pure = torch.ones(len(order), dtype=torch.bool, device=order.device)
    doubtful = (first != place).nonzero()[:, 0]
    step = max(1, CHUNK_ELEMENTS[bank.device.type] // bank.shape[1])
    for start in range(0, len(doubtful), step):
        part = doubtful[start : start + step]
        differs = (bank[order[part]] != bank[order[first[part]]]).any(dim=1)
        is_pure[first[part[differs]]] = False
    keep = torch.ones_like(is_pure)
    keep[order[(place - first >= n_copies) & is_pure[first]]] = False
    return keep.nonzero()[:, 0]


def _row_keys(bank: Tensor) -> Tensor:
    """A number per row, the same for equal rows and hardly ever for others."""
    d = bank.shape[1]
    weights = torch.rand(d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(bank.device)
    step = max(1, CHUNK_ELEMENTS[bank.device.type] // d)
    blocks = [slice(start, start + step) for start in range(0, len(bank), step)]
    return torch.cat([halving_sum(bank[rows].double() * weights) for rows in blocks])


def _grouped(keys: Tensor) -> tuple[Tensor, Tensor]:
    """An order that puts equal keys side by side, lowest row first, and where each one's group begins in it."""
    order = keys.argsort(stable=True)
    begins = torch.ones_like(order, dtype=torch.bool)
    begins[1:] = keys[order][1:] != keys[order][:-1]
    return order, begins.nonzero()[:, 0][begins.cumsum(0) - 1]


def _decide_listed(queries: Tensor, bank: Tensor, contends: Tensor, k: int) -> Neighbors:
    """As `_decide`, for contenders marked in a mask (R, N) and of any number per row."""
    row, column = contends.nonzero(as_tuple=True)  # columns ascend within a row
    counts = contends.sum(dim=1)
    position = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    shape = (len(queries), int(counts.max()))
    indices = torch.full(shape, len(bank), device=row.device)  # padding sorts after every real row
    indices[row, position] = column
    scores = torch.full(shape, -torch.inf, dtype=torch.float64, device=row.device)
    step = max(1, CHUNK_ELEMENTS[queries.device.type] // queries.shape[1])
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        terms = queries[row[part]].double() * bank[column[part]].double()  # (step, D)
        scores[row[part], position[part]] = halving_sum(terms)
    return _sorted(indices, scores, k)


def _products64(queries: Tensor, bank: Tensor, exclude: Tensor | None) -> Tensor:
    """Products in float64, the bank converted a slice at a time: it may fill half of the memory in float32 already."""
    step = max(1, BLOCK_BYTES[queries.device.type] // (8 * bank.shape[1]))
    wide = queries.double()
    slices = [wide @ bank[start : start + step].double().T for start in range(0, len(bank), step)]
    return _without(torch.cat(slices, dim=1), exclude)


def _without(products: Tensor, exclude: Tensor | None) -> Tensor:
    if exclude is not None:
        # No selection of rows: their number would have to be known, and every step of training waited for the device.
        own = exclude.clamp(min=0)[:, None]  # (R, 1)
        products.scatter_(1, own, torch.where(exclude[:, None] < 0, products.gather(1, own), -torch.inf))
    return products


def _lengths(rows: Tensor) -> Tensor:
    """Upper bounds of the rows' lengths: float32 norms and what they may be short by."""
    norms: Tensor = torch.linalg.vector_norm(rows.float(), dim=1).double()
    return norms * (1 + rounding_bound(rows.shape[1] + 2, torch.float32))


def _eps(scale: Tensor, n_columns: int, dtype: torch.dtype) -> Tensor:
    """How far a product in `dtype` may lie from the similarity; `scale` is |query| · max |bank row|."""
    # float64 rows are rounded to float32 first, which costs two more roundings a term; `tiny` covers underflow.
    gamma = rounding_bound(n_columns + 2, dtype) + rounding_bound(n_columns)
    return gamma * scale + n_columns * torch.finfo(dtype).tiny


def _stack(parts: list[Neighbors]) -> Neighbors:
    return Neighbors(torch.cat([part.indices for part in parts]), torch.cat([part.similarities for part in parts]))


class _full_precision:
    """While inside, float32 matrix products are float32: a caller may have allowed TF32 or bfloat16 for training."""

    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        if self.before != "highest":
            torch.set_float32_matmul_precision("highest")

    def __exit__(self, *_: object) -> None:
        if self.before != "highest":
            torch.set_float32_matmul_precision(self.before)


def _check(queries: Tensor, bank: Tensor, k: int, exclude: Tensor | None) -> None:
    if queries.ndim != 2 or bank.ndim != 2 or queries.shape[1] != bank.shape[1]:
        raise UsageError(
            f"k_nearest: found queries {tuple(queries.shape)} and bank {tuple(bank.shape)}, expected (Q, D) and (N, D)"
        )
    if exclude is not None and (exclude.shape != (len(queries),) or exclude.dtype != torch.int64):
        raise UsageError(
            f"k_nearest: found exclude {tuple(exclude.shape)} of {exclude.dtype}, "
            f"expected ({len(queries)},) of {torch.int64}, one per query"
        )
    if 1 <= as_count(k, name="k") < len(bank):
        return  # whether any row is left out makes no difference, and is not asked of the device
    others = len(bank) - (exclude is not None and bool((exclude >= 0).any()))
    if not 1 <= k <= others:
        raise UsageError(f"k_nearest: found k={k} with {others} other rows, expected 1 <= k <= {others}; lower k")
