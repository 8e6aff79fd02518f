"""Exact neighbor lists from an earlier search, with which the tree starts without a scan.

What a list leaves out cannot be checked without a scan, so a bare array of neighbors proves nothing.
`as_exact_neighbors` is for a caller that has just searched this very matrix exactly; it stores 64-bit hashes of the
matrix and of the lists. Where either differs (another matrix or order of rows, a changed list) `ward_linkage` scans as
if it had been given nothing; `link_rows` is handed lists by the code that made them, and asks for no hash. What is
trusted is one sentence: *these are the inner products of the listed rows, and no row outside a list has a larger one
than the list's last.*
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.clustering.duplicates import Groups, matrix_hash, row_hashes
from shoal.clustering.neighbors import Neighbors
from shoal.clustering.ward.bounds import weight
from shoal.clustering.ward.lists import Lists
from shoal.errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class ExactNeighbors:
    """Exact k-nearest lists of one matrix: (N, k) rows, (N, k) float64 inner products, falling, and two hashes."""

    indices: Tensor
    similarities: Tensor
    matrix_hash: int
    lists_hash: int

    def is_of(self, hashes: Tensor) -> bool:
        """Whether these are, bit for bit, the lists as they were stated, of exactly the matrix of such row hashes."""
        if len(self.indices) != len(hashes) or self.lists_hash != _of_lists(
            self.indices, self.similarities
        ):
            return False
        return self.matrix_hash == matrix_hash(hashes)


def as_exact_neighbors(rows: Tensor, indices: Tensor, similarities: Tensor) -> ExactNeighbors:
    """State that `indices` (N, k) are the rows of largest inner product with each row of `rows`, itself left out.

    `similarities` are those products in float64, off by no more than summation in float64 may be; float32 says too
    little about what is outside and is refused.
    """
    if not all(isinstance(part, Tensor) for part in (rows, indices, similarities)):
        raise UsageError(
            "as_exact_neighbors: expected torch tensors; torch.as_tensor makes them of arrays"
        )
    if rows.dtype not in (torch.float32, torch.float64):
        raise UsageError(
            f"rows: found {rows.dtype}, expected the float32 or float64 that the tree is grown on"
        )
    _check(indices, len(rows))
    if similarities.shape != indices.shape or similarities.dtype != torch.float64:
        shape = f"{tuple(similarities.shape)} {similarities.dtype}"
        raise UsageError(
            f"similarities: found {shape}, expected {tuple(indices.shape)} torch.float64"
        )
    return ExactNeighbors(
        indices, similarities, matrix_hash(row_hashes(rows)), _of_lists(indices, similarities)
    )


def proven_lists(neighbors: Any, rows: Tensor) -> Neighbors | None:
    """The lists that a caller handed in, or None where they prove nothing of these rows; refuses what are no lists."""
    if not isinstance(neighbors, ExactNeighbors):
        _check(_as_indices(neighbors), len(rows))
        return None
    return (
        Neighbors(neighbors.indices, neighbors.similarities)
        if neighbors.is_of(row_hashes(rows))
        else None
    )


def ready_lists(
    neighbors: Neighbors, groups: Groups, centroids: Tensor, sizes: Tensor, scale: float, most: int
) -> Lists:
    """Lists of the distinct rows from exact lists of all rows.

    Of longer lists than `most` the first entries are kept: what they cost grows with the square of their length.
    """
    first = groups.first
    index = groups.member[neighbors.indices[:, :most].to(first.device)[first]]  # (M, k)
    products = (
        neighbors.similarities[:, : most + 1].to(first.device)[first] * scale * scale
    )  # (M, k) or (M, k + 1)
    similarity = products[:, :most]
    half = torch.linalg.vector_norm(centroids, dim=1).square() / 2  # (M,)
    slack = (
        2 * (centroids.shape[1] + 8) * 2.0**-52 * (2 * half.max())
    )  # two products and the norms, each off by γ
    gap = (2 * (half[:, None] + half[index] - similarity - slack)).clamp(
        min=0
    )  # (M, k) squared distances
    low = (weight(sizes[:, None], sizes[index]) * gap).masked_fill(
        index == _arange(index), torch.inf
    )
    last = (2 * (half + half.min() - products[:, -1] - slack)).clamp(min=0)
    return Lists(index, low, weight(sizes, sizes.min()) * last)


def _as_indices(neighbors: Any) -> Tensor:
    """Row numbers out of an array, or of lists of neighbors with `indices`."""
    indices = (
        neighbors if isinstance(neighbors, Tensor) else getattr(neighbors, "indices", neighbors)
    )
    try:
        return torch.as_tensor(
            torch.as_tensor(indices).cpu().numpy()
        )  # neither sparse nor without numbers
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"neighbors: found {type(neighbors).__name__}, expected (N, k) row numbers"
        ) from error


def _arange(index: Tensor) -> Tensor:
    return torch.arange(len(index), device=index.device)[:, None]


def _of_lists(indices: Tensor, similarities: Tensor) -> int:
    return matrix_hash(row_hashes(indices.double())) ^ (3 * matrix_hash(row_hashes(similarities)))


def _check(indices: Tensor, n_rows: int) -> None:
    shape = tuple(indices.shape)
    if indices.ndim != 2 or len(indices) != n_rows or not 1 <= shape[1] < max(n_rows, 2):
        most = max(n_rows - 1, 1)
        raise UsageError(
            f"neighbors: found shape {shape}, expected ({n_rows}, k) with k from 1 to {most}"
        )
    if indices.dtype not in (torch.int32, torch.int64):
        raise UsageError(f"neighbors: found dtype {indices.dtype}, expected int64 row numbers")
    if bool(((indices < 0) | (indices >= n_rows)).any()):
        raise UsageError(
            f"neighbors: found row numbers outside 0 to {n_rows - 1}; give the rows' own neighbors"
        )
