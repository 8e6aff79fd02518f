"""The way in: a matrix of embeddings, checked, and its Ward tree in scipy's format.

Few rows, and rows of which several may be the nearest of another, as far as a product in float64
can tell, are linked by scipy: for few rows every call of torch costs more than their arithmetic,
and among ties bounds rule out nothing and a round merges few pairs. Which rows these are depends on
the matrix alone.

N rows, D columns, M distinct rows.
"""

import math
from threading import Lock

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import pdist
from torch import Tensor

from shoal.arrays import Floats, as_count, as_embeddings, as_matrix, name_rows
from shoal.clustering.duplicates import Groups, equal_rows
from shoal.clustering.neighbors import Neighbors
from shoal.clustering.products import (
    BFLOAT16,
    ENCODE_ROWS,
    FLOAT32,
    FLOAT64,
    TENSOR_BFLOAT16,
    TENSOR_TFLOAT32,
    Precision,
)
from shoal.clustering.sums import halving_sum
from shoal.clustering.ward import triton_rounds, triton_scan
from shoal.clustering.ward.bounds import Margins
from shoal.clustering.ward.exact import Geometry
from shoal.clustering.ward.lists import ready_lists
from shoal.clustering.ward.rounds import RoundMerges, Rounds
from shoal.clustering.ward.scan import ELEMENT_BYTES, WIDTH, Scanner
from shoal.clustering.workers import Workers
from shoal.device import choose_device, computing_device, free_memory, multiplies_bfloat16
from shoal.distributed import can_share, object_from_main, tell_others
from shoal.errors import DataError, UsageError
from shoal.progress import Progress

N_LISTED = {"cpu": 16, "cuda": 15}
"""Entries of a cluster's list, unless lists are handed in; the fused kernel keeps one more, a power
of two."""

BLOCK_BYTES = {"cpu": 128 << 20, "cuda": 8 << 30}
"""Memory of the scan's block when none is given, at most; an eighth of what is free where that is
less."""

FEW_PRODUCTS = 1 << 22
"""N² D up to which rows are linked by scipy."""

MAX_TIED = 10_000
"""Tied rows up to which scipy links them: it holds their distances twice, 0.8 GB for so many."""

N_SAMPLED = 3
"""Rows that say whether there are ties."""

LARGEST = 1e150
"""Numbers beyond this have squares near the end of float64."""

SHARED_PRODUCTS = 2e10
"""N² D from which on a tree is linked by all processes that wait for work, instead of by one."""


def ward_linkage(
    X: Tensor | ArrayLike,
    *,
    device: str | torch.device | None = None,
    memory: int | None = None,
    progress: Progress | None = None,
) -> Floats:
    """Link the rows of an (N, D) matrix by Ward's method, exactly, without an N² matrix.

    A drop-in for `scipy.cluster.hierarchy.linkage(X, "ward")`: a float64 (N-1, 4) matrix, rows
    sorted by height, each with two nodes, the height and the number of leaves. A single row gives
    an empty (0, 4) matrix.

    Every decision is made on distances that are summed in float64 in a fixed order from direct
    differences, and only once rounding bounds prove that nothing else can be nearer (`bounds.py`
    states them). So the tree depends on X alone: not on the device, the number of threads or
    `memory`. Ties go to the pair of lowest rows. Few rows, and up to 10,000 rows among which there
    are ties, are linked by scipy itself. Cost: about N² D products in the lowest precision that
    decides; memory: N·(12 D + 16 k) bytes beside X and the block.

    Parameters
    ----------
    X
        Numpy array or torch tensor of floats; a CUDA tensor stays on its device. NaN and infinity
        are refused.
    device
        'cpu', 'cuda' or 'cuda:1'; None takes the tensor's own, and for an array CUDA when there is
        one.
    memory
        Bytes for the block of products; None takes a share of what is free. Only time depends on
        it.
    progress
        Called as progress(done, total) after every block of the first scan and every round of
        merges, one call at a time but not always from the caller's thread. What it raises ends the
        work.

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
    rows = _as_rows(X, device)
    memory = None if memory is None else as_count(memory, name="memory", least=1)
    if progress is not None and not callable(progress):
        raise UsageError(
            f"progress: found {type(progress).__name__}, expected a function of (done, total)"
        )
    return link_rows(rows, memory=memory, progress=progress)


def link_rows(
    rows: Tensor,
    lists: Neighbors | None = None,
    *,
    memory: int | None = None,
    progress: Progress | None = None,
    is_called: bool = False,
) -> Floats:
    """As `ward_linkage`, of finite float32 or float64 rows where they are to be linked, with exact
    lists of theirs.

    `is_called` where another process has called this one to take part.
    """
    n = len(rows)
    if n == 1:
        return np.zeros((0, 4))
    report = _Progress(progress, 2 * n - 1)
    origin, scale = _origin_and_scale(rows)
    with Workers(rows.device) as workers:
        room = _room(rows, memory, workers)
        if n * rows.numel() <= FEW_PRODUCTS:
            return _link_by_scipy(rows, origin, scale, report)
        groups = equal_rows(rows)
        geometry = _geometry(rows, groups, origin, scale, workers)
        if n <= MAX_TIED and _are_tied(geometry):
            return _link_by_scipy(rows, origin, scale, report)
        is_shared = is_called or can_share(rows.device, n * rows.numel(), SHARED_PRODUCTS)
        if is_shared:
            if not is_called:
                sent = {"rows": rows}
                if lists is not None:
                    sent |= {"indices": lists.indices, "similarities": lists.similarities}
                tell_others(link_with_main, sent, rows.device)
            room = object_from_main(room, rows.device)
        if origin.any():
            lists = None  # their inner products are about another origin
        merges = _merges(geometry, groups, lists, scale, room, report, workers, is_shared=is_shared)
    report.finish()
    return _sorted_by_height(merges, n, scale)


def link_with_main(
    rows: Tensor, indices: Tensor | None = None, similarities: Tensor | None = None
) -> None:
    """Take part, in another process than the main one, in linking rows that it has sent
    (`scan.py`)."""
    lists = None
    if indices is not None and similarities is not None:
        lists = Neighbors(indices, similarities)
    link_rows(rows, lists, is_called=True)


def _link_by_scipy(rows: Tensor, origin: Tensor, scale: float, report: "_Progress") -> Floats:
    """scipy's tree, of rows that are centered and scaled as everywhere: distances of large numbers
    stay finite."""
    points = (rows.double() - origin) * scale
    # Of distances: scipy warns of rows that look like a square matrix of them.
    linkage: Floats = scipy_linkage(pdist(points.cpu().numpy()), "ward")
    linkage[:, 2] /= scale
    report.finish()
    return linkage


def _geometry(
    rows: Tensor, groups: Groups, origin: Tensor, scale: float, workers: Workers
) -> Geometry:
    """The distinct rows in float64, about the origin and scaled, with how often each occurs."""
    shape = (len(groups.first), rows.shape[1])
    centroids = torch.empty(shape, dtype=torch.float64, device=rows.device)

    def work(part: Tensor, source: Tensor) -> None:
        torch.mul(rows[source].double().sub_(origin), scale, out=part)

    step = ENCODE_ROWS[rows.device.type]
    workers.map_rows(work, centroids, groups.first, at_most=step)
    return Geometry(centroids, torch.bincount(groups.member).double())


def _are_tied(geometry: Geometry) -> bool:
    """Whether any of some rows has several nearest ones, as far as products in float64 can tell."""
    n, n_columns = geometry.centroids.shape
    others = torch.arange(n, device=geometry.sizes.device)
    for row in others[torch.arange(N_SAMPLED) * n // N_SAMPLED]:
        distances = geometry.distances(row.expand(n), others)
        distances[row] = torch.inf
        squares = halving_sum(geometry.centroids[row].square())
        error = 8 * FLOAT64.gamma(n_columns) * geometry.sizes[row] * squares
        if n > 2 and int((distances <= distances.amin() + error).sum()) > 1:
            return True
    return False


def _merges(
    geometry: Geometry,
    groups: Groups,
    lists: Neighbors | None,
    scale: float,
    room: int,
    report: "_Progress",
    workers: Workers,
    *,
    is_shared: bool,
) -> RoundMerges:
    """All merges: of equal rows at height 0, then a round at a time."""
    n = len(groups.member)
    chains, nodes = _chains(groups)
    merges = [chains]
    next_node = n + len(chains.left)
    n_columns = geometry.centroids.shape[1]
    device = nodes.device
    if triton_rounds.can_merge(device, len(nodes), n_columns, room):
        report.add(next_node)
        merges.append(triton_rounds.merge_all(geometry, nodes, next_node))
    elif len(nodes) > 1:
        k = N_LISTED[device.type]
        ready = None
        if lists is not None:
            ready = ready_lists(lists, groups, geometry, scale, k)
            k = ready.index.shape[1]
        lengths = torch.linalg.vector_norm(geometry.centroids, dim=1)
        margins = Margins.of(n_columns, 1.0001 * float(lengths.max()))
        scanner = Scanner(
            geometry, precisions(device), margins, k, room, workers, is_shared=is_shared
        )
        rounds = Rounds(scanner, margins, workers, nodes, next_node)
        report.add(n - len(nodes) + len(chains.left))
        rounds.start(ready, report.add)
        while rounds.n_live > 1:
            if triton_rounds.can_merge(device, rounds.n_live, n_columns, room):
                rounds.close_gaps()
                made = triton_rounds.merge_all(
                    geometry, rounds.nodes, rounds.next_node, rounds.decision, rounds.heights
                )
                rounds.n_live = 1
            else:
                made = rounds.step()
            merges.append(made)
            report.add(len(made.left))
    return RoundMerges(
        torch.cat([merge.left for merge in merges]),
        torch.cat([merge.right for merge in merges]),
        torch.cat([merge.distance for merge in merges]),
        torch.cat([merge.size for merge in merges]),
    )


def _as_rows(X: Tensor | ArrayLike, device: str | torch.device | None) -> Tensor:
    """A checked float32 or float64 tensor on the device to compute on; not copied where it need not
    be."""
    if not isinstance(X, Tensor):
        # torch warns of read-only memory, so that is copied.
        rows = np.require(as_embeddings(X), requirements=["C", "W"])
        return torch.as_tensor(rows).to(choose_device(device))
    if X.layout != torch.strided or X.is_quantized or X.device.type == "meta":
        raise DataError("X: found a sparse, quantized or empty tensor; give X.to_dense() or so")
    tensor = X.detach().resolve_conj().resolve_neg()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float()  # numpy has no bfloat16, nor anything shorter
    if tensor.device.type == "cuda" and device is None:
        return _checked_on_gpu(tensor)
    home = computing_device(tensor.device) if device is None else choose_device(device)
    rows = np.require(as_embeddings(tensor.cpu().numpy()), requirements="C")
    return torch.as_tensor(rows).to(home)


def _checked_on_gpu(tensor: Tensor) -> Tensor:
    """What `as_embeddings` checks, without leaving the GPU."""
    as_matrix(np.broadcast_to(torch.zeros((), dtype=tensor.dtype).numpy(), tensor.shape))
    if not tensor.is_floating_point():
        tensor = tensor.double()
    is_bad = ~torch.isfinite(tensor).all(1)
    if is_bad.any():
        raise DataError(
            f"X: NaN or infinity in {name_rows(is_bad.cpu().numpy())}; remove or repair them"
        )
    return tensor


def _origin_and_scale(rows: Tensor) -> tuple[Tensor, float]:
    """(D,) what is taken off all rows, and a power of two that brings the largest entry that is
    left between 1/2 and 1: exact, and no square can overflow after it.

    Taken off is a row's entry in columns far from zero, of one sign and within a factor of two.
    Differences within such a column are exact (Sterbenz), so that changes no distance; left on, it
    would take bits from every centroid: times, coordinates and the like.
    """
    low = rows.amin(0).double()
    high = rows.amax(0).double()
    is_far = ((low > 0) & (high <= 2 * low)) | ((high < 0) & (low >= 2 * high))
    origin = torch.where(is_far, rows[0].double(), 0.0)
    largest = float(torch.maximum(high - origin, origin - low).max())
    if largest > LARGEST:
        raise DataError(
            f"X: found entries of {largest:.3g}, expected at most {LARGEST:g}; "
            "divide X by a constant"
        )
    if largest == 0:
        return origin, 1.0
    return origin, 2.0 ** -max(math.frexp(largest)[1], -1000)


def precisions(device: torch.device) -> tuple[Precision, ...]:
    """The formats of products, cheapest first, that this device is fast in."""
    has_kernel = triton_scan.is_available(device)
    if device.type == "cuda":
        reduced = (TENSOR_BFLOAT16, TENSOR_TFLOAT32) if has_kernel else (TENSOR_TFLOAT32,)
    elif has_kernel:
        reduced = (TENSOR_BFLOAT16,)
    elif multiplies_bfloat16(device):
        reduced = (BFLOAT16, FLOAT32)
    else:
        reduced = (FLOAT32,)
    return (*reduced, FLOAT64)


def _chains(groups: Groups) -> tuple[RoundMerges, Tensor]:
    """Merge equal rows at height 0, in ascending order: the merges, and the node that holds each
    distinct row."""
    n = len(groups.member)
    order = torch.argsort(groups.member, stable=True)
    n_before = groups.earlier_copies()[order]
    joins = n_before.nonzero()[:, 0]
    held = order.clone()  # the node that holds the group up to and including each row
    held[joins] = n + torch.arange(len(joins), device=held.device)
    sizes = (n_before[joins] + 1).double()
    merges = RoundMerges(held[joins - 1], order[joins], torch.zeros_like(sizes), sizes)
    is_last = torch.ones_like(n_before, dtype=torch.bool)
    is_last[:-1] = n_before[1:] == 0
    return merges, held[is_last]


def _room(rows: Tensor, memory: int | None, workers: Workers) -> int:
    """Bytes for the block of products."""
    kind = rows.device.type
    needed = ELEMENT_BYTES * min(WIDTH[kind], len(rows)) * workers.n
    if memory is None:
        return max(needed, min(BLOCK_BYTES[kind], free_memory(rows.device) // 8))
    if memory < needed:
        raise UsageError(
            f"memory: found {memory:,} bytes, expected at least {needed:,}, one row's products "
            "with the others"
        )
    return memory


def _sorted_by_height(merges: RoundMerges, n: int, scale: float) -> Floats:
    """scipy's matrix: by height, and among equals in the order made, so that children come
    first."""
    order = torch.argsort(merges.distance, stable=True)
    node = torch.arange(2 * n - 1, device=order.device)
    node[n + order] = torch.arange(n, 2 * n - 1, device=order.device)
    both = node[torch.stack([merges.left, merges.right])[:, order]]  # (2, N-1)
    columns = [both.amin(0).double(), both.amax(0).double(), merges.distance[order]]
    linkage: Floats = torch.stack([*columns, merges.size[order]], 1).cpu().numpy()
    # Numpy's, since torch's is not always the nearest float64.
    linkage[:, 2] = np.sqrt(linkage[:, 2]) / scale
    return linkage


class _Progress:
    """Counts rows that have found their nearest, then merges, and tells the caller."""

    def __init__(self, callback: Progress | None, total: int) -> None:
        self.callback = callback
        self.total = total
        self.done = 0
        self.lock = Lock()

    def add(self, n: int) -> None:
        with self.lock:  # workers report too
            self.done += n
            if self.callback is not None and n:
                # What the caller computes is not ours to restrict.
                with torch.inference_mode(False):
                    self.callback(self.done, self.total)

    def finish(self) -> None:
        if self.done < self.total:
            self.add(self.total - self.done)
