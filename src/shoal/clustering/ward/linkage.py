"""Exact Ward linkage of a matrix, in scipy's format.

Small matrices are linked by scipy, because the calls of torch would take longer than the
arithmetic, and so are matrices with ties up to 10,000 rows, because ties defeat the bounds and
leave few merges per round. Which path is taken depends only on the matrix.

Shapes: N rows, D columns, M distinct rows.
"""

import math

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import pdist
from torch import Tensor

from shoal.arrays import Floats, as_matrix, name_rows
from shoal.clustering.neighbors import Neighbors
from shoal.clustering.products import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    TENSOR_BFLOAT16,
    TENSOR_TFLOAT32,
    Precision,
    Workers,
    all_workers,
)
from shoal.clustering.sums import earlier_copies, equal_rows, halving_sum
from shoal.clustering.ward import triton_rounds, triton_scan
from shoal.clustering.ward.bounds import Margins
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import Lists, empty_lists, ready_lists
from shoal.clustering.ward.rounds import as_merges, merge_round
from shoal.clustering.ward.scan import Clusters
from shoal.device import AnyDevice, choose_device, free_memory, multiplies_bfloat16
from shoal.errors import DataError

# Entries of a cluster's neighbor list; with one more, the fused kernel has a power of two
N_LISTED = {"cpu": 16, "cuda": 15}

# Memory of the block of products, if an eighth of the free memory is not less
BLOCK_BYTES = {"cpu": 128 << 20, "cuda": 8 << 30}

# N² D up to which scipy links the rows
FEW_PRODUCTS = 1 << 22

# Tied rows up to which scipy links them; it holds all distances twice, 0.8 GB for this many
MAX_TIED = 10_000

# Largest entry; squares of larger numbers come near the end of float64
LARGEST = 1e150


def ward_linkage(
    X: Tensor | ArrayLike,
    *,
    device: AnyDevice = None,
) -> Floats:
    """Link the rows of an (N, D) matrix by Ward's method, exactly, without an N² matrix.

    A drop-in for `scipy.cluster.hierarchy.linkage(X, "ward")`: a float64 (N-1, 4) matrix, rows
    sorted by height, each with two nodes, the height and the number of leaves. A single row gives
    an empty (0, 4) matrix.

    Distances are summed in float64, in a fixed order, from direct differences, and two clusters are
    merged only when rounding bounds prove that none is nearer (`bounds.py`). So the tree does not
    depend on the device or the number of threads. Ties go to the pair of lowest rows.
    Small matrices, and those with ties up to 10,000 rows, are linked by scipy. Cost: about N² D
    products in the lowest precision that decides; memory: N·(12 D + 16 k) bytes in addition to X
    and one block.

    Parameters
    ----------
    X
        Numpy array or torch tensor of floats; a CUDA tensor stays on its device. NaN and infinity
        raise an error.
    device
        'cpu', 'cuda' or 'cuda:1'; None takes the tensor's own, and for an array CUDA when there is
        one.

    Returns
    -------
    Floats
        (N-1, 4) the linkage matrix.

    Examples
    --------
    >>> import numpy as np
    >>> ward_linkage(np.array([[0.0], [1.0], [5.0]]), device="cpu")[:, :2]
    array([[0., 1.],
           [2., 3.]])
    """
    return link_rows(_as_rows(X, device))


def link_rows(rows: Tensor, neighbors: Neighbors | None = None) -> Floats:
    """Link finite float32 or float64 rows (N, D) on their device, with their exact neighbors if
    these are known."""
    n = len(rows)
    if n == 1:
        return np.zeros((0, 4))
    scale = _scale(rows)
    with all_workers(rows.device) as workers:
        if n * rows.numel() <= FEW_PRODUCTS:
            return _link_by_scipy(rows, scale)
        first, group = equal_rows(rows)
        # The distinct rows, and how often each occurs.
        geometry = Geometry(rows[first].double().mul_(scale), torch.bincount(group).double())
        if n <= MAX_TIED and _are_tied(geometry):
            return _link_by_scipy(rows, scale)
        room = min(BLOCK_BYTES[rows.device.type], free_memory(rows.device) // 8)
        k = N_LISTED[rows.device.type]
        ready = empty_lists(len(first), k, rows.device)
        if neighbors is not None:
            ready = ready_lists(neighbors, first, group, geometry, scale, k)
        merges = _merges(geometry, group, ready, room, workers)
    return _sorted_by_height(merges.cpu().numpy(), scale)


def _link_by_scipy(rows: Tensor, scale: float) -> Floats:
    """Return scipy's tree of the rows, scaled so that distances of large numbers stay finite."""
    # From distances: scipy warns of rows that look like a square distance matrix.
    linkage = scipy_linkage(pdist((rows.double() * scale).cpu().numpy()), "ward")
    linkage[:, 2] /= scale
    return linkage


def _are_tied(geometry: Geometry) -> bool:
    """Return whether one of a few rows has several nearest rows, within the error of float64
    products."""
    n, n_columns = geometry.centroids.shape
    others = torch.arange(n, device=geometry.sizes.device)
    for row in (0, n // 3, 2 * n // 3):
        distances = geometry.distances(torch.full_like(others, row), others)
        distances[row] = torch.inf
        squares = halving_sum(geometry.centroids[row].square())
        error = 8 * FLOAT64.gamma(n_columns) * geometry.sizes[row] * squares
        if int((distances <= distances.amin() + error).sum()) > 1:
            return True
    return False


def _merges(geometry: Geometry, group: Tensor, lists: Lists, room: int, workers: Workers) -> Tensor:
    """Return all merges (N-1, 4): of equal rows at height 0, then round by round."""
    copies, nodes = _merge_copies(group)
    merges = [copies]
    n_rows = len(group)
    n_columns = geometry.centroids.shape[1]
    device = nodes.device
    if triton_rounds.can_merge(device, len(nodes), n_columns, room):
        merges.append(
            triton_rounds.merge_all(
                geometry, nodes, n_rows + len(copies), torch.zeros_like(geometry.sizes)
            )
        )
    elif len(nodes) > 1:
        lengths = torch.linalg.vector_norm(geometry.centroids, dim=1)
        margins = Margins.of(n_columns, 1.0001 * float(lengths.max()))
        clusters = Clusters(geometry, nodes, precisions(device), margins, lists, room, workers)
        clusters.find(torch.arange(len(nodes), device=device))
        while clusters.n_live > 1:
            next_node = n_rows + sum(map(len, merges))
            if triton_rounds.can_merge(device, clusters.n_live, n_columns, room):
                clusters.close_gaps()
                merges.append(
                    triton_rounds.merge_all(
                        geometry, clusters.nodes, next_node, clusters.heights, clusters.decision
                    )
                )
                break
            merges.append(merge_round(clusters, next_node))
    return torch.cat(merges)


def _as_rows(X: Tensor | ArrayLike, device: AnyDevice) -> Tensor:
    """Return X as a checked float32 or float64 tensor on the computing device, copied only if
    needed."""
    if not isinstance(X, Tensor):
        # Read-only memory is copied, because torch warns of it.
        rows = torch.from_numpy(np.require(as_matrix(X), requirements=["C", "W"]))
    else:
        rows = X.detach()
        device = rows.device if device is None else device
    is_dense = rows.layout == torch.strided
    if rows.ndim != 2 or 0 in rows.shape or rows.is_complex() or not is_dense:
        raise DataError(
            f"X: found shape {tuple(rows.shape)} and {rows.dtype}, expected dense (N, D) real "
            "numbers"
        )
    rows = rows.to(choose_device(device))
    if rows.dtype != torch.float32:
        rows = rows.double()
    is_bad = ~torch.isfinite(torch.linalg.vector_norm(rows, torch.inf, dim=1))
    if is_bad.any():
        raise DataError(
            f"X: NaN or infinity in {name_rows(is_bad.cpu().numpy())}; remove or repair them"
        )
    return rows.contiguous()


def _scale(rows: Tensor) -> float:
    """Return the power of two that scales the largest entry to between 1/2 and 1, so that no square
    overflows."""
    largest = float(rows.abs().amax())
    if largest > LARGEST:
        raise DataError(
            f"X: found entries of {largest:.3g}, expected at most {LARGEST:g}; "
            "divide X by a constant"
        )
    return 2.0 ** -max(math.frexp(largest)[1], -1000)


def precisions(device: torch.device) -> tuple[Precision, ...]:
    """Return the formats of products that are fast on this device, cheapest first."""
    if triton_scan.is_available(device):
        return (TENSOR_BFLOAT16, TENSOR_TFLOAT32, FLOAT64)
    if device.type == "cuda":
        return (TENSOR_TFLOAT32, FLOAT64)
    if multiplies_bfloat16(device):
        return (BFLOAT16, FLOAT32, FLOAT64)
    return (FLOAT32, FLOAT64)


def _merge_copies(group: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the rows of each `group` (N,) of equal rows at height 0, in ascending order; return the
    merges and the node (M,) of each distinct row."""
    n = len(group)
    order = torch.argsort(group, stable=True)
    n_before = earlier_copies(group)[order]
    joins = n_before.nonzero()[:, 0]
    node = order.clone()  # that holds the group up to and including each row
    node[joins] = n + torch.arange(len(joins), device=node.device)
    sizes = (n_before[joins] + 1).double()
    merges = as_merges(node[joins - 1], order[joins], torch.zeros_like(sizes), sizes)
    is_last = n_before.roll(-1) == 0  # the next row, or the first after the last, begins a group
    return merges, node[is_last]


def _sorted_by_height(merges: Floats, scale: float) -> Floats:
    """Return scipy's matrix: merges by height, equal ones in the order made, so that children come
    first."""
    n = len(merges) + 1
    order = np.argsort(merges[:, 2], kind="stable")
    linkage = merges[order]
    node = np.arange(2 * n - 1)
    node[n + order] = np.arange(n, 2 * n - 1)
    linkage[:, :2] = np.sort(node[linkage[:, :2].astype(np.int64)], axis=1)
    # numpy's root: torch's is not always the nearest float64.
    linkage[:, 2] = np.sqrt(linkage[:, 2]) / scale
    return linkage
