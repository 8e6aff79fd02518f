"""The way in: a matrix of embeddings, checked, and its Ward tree in scipy's format.

Few rows, and rows of which several may be the nearest of another, as far as a product in float64
can tell, are linked by scipy: for few rows every call of torch costs more than their arithmetic,
and among ties bounds rule out nothing and a round merges few pairs. Which rows these are depends on
the matrix alone.

N rows, D columns, M distinct rows.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import pdist
from torch import Tensor

from shoal.arrays import Floats, as_count, as_embeddings, name_rows
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
from shoal.clustering.ward.lists import Lists, ready_lists
from shoal.clustering.ward.rounds import FEW, RoundMerges, Rounds
from shoal.clustering.ward.scan import ELEMENT_BYTES, WIDTH, Scanner
from shoal.clustering.ward.table import TABLE_BYTES
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

WIDE = 2.0**-64
"""Scales below this take bits from distances that are small beside the largest entry."""

SMALLEST = 2.0**-970
"""Squared heights below this, the largest entry being near 1, have lost bits to underflow."""


def ward_linkage(
    X: Any,
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
) -> Floats:
    """As `ward_linkage`, of finite float32 or float64 rows where they are to be linked, with exact
    lists of theirs."""
    n = len(rows)
    if n == 1:
        return np.zeros((0, 4))
    report = _Progress(progress, 2 * n - 1)
    with Workers(rows.device) as workers:
        room = _room(rows, memory, workers)
        if n * rows.numel() <= FEW_PRODUCTS:
            return _link_by_scipy(rows, report)
        distinct = _Distinct.of(rows, workers)
        if n <= MAX_TIED and distinct.are_tied():
            return _link_by_scipy(rows, report)
        is_shared = can_share(rows.device, n * rows.numel(), SHARED_PRODUCTS)
        if is_shared:
            sent = {"rows": rows}
            if lists is not None:
                sent |= {"indices": lists.indices, "similarities": lists.similarities}
            tell_others(link_with_main, sent, rows.device)
        return _link(distinct, lists, room, report, workers, is_shared=is_shared)


def link_with_main(
    rows: Tensor, indices: Tensor | None = None, similarities: Tensor | None = None
) -> None:
    """Take part, in another process than the main one, in linking rows that it has sent
    (`scan.py`)."""
    lists = None
    if indices is not None and similarities is not None:
        lists = Neighbors(indices, similarities)
    with Workers(rows.device) as workers:
        room = _room(rows, None, workers)
        distinct = _Distinct.of(rows, workers)
        _link(distinct, lists, room, _Progress(None, 0), workers, is_shared=True)


def _link_by_scipy(rows: Tensor, report: "_Progress") -> Floats:
    """scipy's tree, of rows that are centered and scaled as everywhere: distances of large numbers
    stay finite."""
    origin, scale = _origin_and_scale(rows)
    points = (rows.double() - origin) * scale
    # Of distances: scipy warns of rows that look like a square matrix of them.
    linkage: Floats = scipy_linkage(pdist(points.cpu().numpy()), "ward")
    if scale < WIDE:
        n_copies = len(rows) - len(equal_rows(rows).first)
        _check_range(linkage[n_copies:, 2] ** 2)
    linkage[:, 2] /= scale
    report.finish()
    return linkage


@dataclass(frozen=True)
class _Distinct:
    """The distinct rows: which they are, and in float64, about the origin and scaled, with how
    often each occurs."""

    groups: Groups
    geometry: Geometry
    origin: Tensor
    scale: float

    @classmethod
    def of(cls, rows: Tensor, workers: Workers) -> "_Distinct":
        groups = equal_rows(rows)
        origin, scale = _origin_and_scale(rows)
        shape = (len(groups.first), rows.shape[1])
        centroids = torch.empty(shape, dtype=torch.float64, device=rows.device)
        step = ENCODE_ROWS[rows.device.type]

        def work(start: int) -> None:
            part = slice(start, start + step)
            torch.mul(rows[groups.first[part]].double().sub_(origin), scale, out=centroids[part])

        workers.map(work, range(0, len(centroids), step))
        sizes = torch.bincount(groups.member, minlength=len(centroids)).double()
        return cls(groups, Geometry(centroids, sizes), origin, scale)

    def are_tied(self) -> bool:
        """Whether any of some rows has several nearest ones, as far as products in float64 can
        tell."""
        geometry = self.geometry
        n, n_columns = geometry.centroids.shape
        sampled = torch.arange(N_SAMPLED, device=geometry.sizes.device) * n // N_SAMPLED
        distances = geometry.all_distances(sampled, slice(0, n))  # (sampled, M)
        distances.scatter_(1, sampled[:, None], torch.inf)
        squares = halving_sum(geometry.centroids[sampled].square())
        error = 8 * FLOAT64.gamma(n_columns) * geometry.sizes[sampled] * squares
        limit = distances.amin(1) + error
        return n > 2 and bool(((distances <= limit[:, None]).sum(1) > 1).any())


def _link(
    distinct: _Distinct,
    exact: Neighbors | None,
    room: int,
    report: "_Progress",
    workers: Workers,
    *,
    is_shared: bool,
) -> Floats:
    groups = distinct.groups
    geometry = distinct.geometry
    device = geometry.sizes.device
    if is_shared:  # what depends on it, when tables begin, must be the same everywhere
        room = object_from_main(room, device)
    n = len(groups.member)
    chains, nodes = _chains(groups, n)
    merges = [chains]
    if len(nodes) > 1:
        ready = None
        if exact is not None and not bool(distinct.origin.any()):
            # Else the inner products are about another origin.
            most = N_LISTED[device.type]
            ready = ready_lists(
                exact, groups, geometry.centroids, geometry.sizes, distinct.scale, most
            )
        next_node = n + len(chains.left)
        for made in _rounds(
            geometry, ready, nodes, next_node, room, report, workers, is_shared=is_shared
        ):
            merges.append(made)
            report.add(len(made.left))
        if distinct.scale < WIDE:
            heights = torch.cat([merge.distance for merge in merges[1:]])
            _check_range(heights.cpu().numpy())
    report.finish()
    return _sorted_by_height(merges, n, distinct.scale)


def _rounds(
    geometry: Geometry,
    ready: Lists | None,
    nodes: Tensor,
    next_node: int,
    room: int,
    report: "_Progress",
    workers: Workers,
    *,
    is_shared: bool,
) -> Iterator[RoundMerges]:
    """Merge all clusters, a round at a time: by lists and scans, by a table when few are left."""
    kind = nodes.device.type
    n_columns = geometry.centroids.shape[1]
    if triton_rounds.can_merge(nodes.device, len(nodes), n_columns, room):
        report.add(next_node)
        yield triton_rounds.merge_all(geometry, nodes, next_node)
        return
    lengths = torch.linalg.vector_norm(geometry.centroids, dim=1)
    margins = Margins.of(n_columns, 1.0001 * float(lengths.max()))
    k = min(N_LISTED[kind], len(nodes) - 1) if ready is None else ready.index.shape[1]
    scanner = Scanner(
        geometry, precisions(nodes.device), margins, k, room, workers, is_shared=is_shared
    )
    n_fit = math.isqrt(room // TABLE_BYTES[kind])
    rounds = Rounds(scanner, margins, workers, nodes, next_node, min(FEW[kind], n_fit), n_fit)
    report.add(next_node - len(nodes))
    rounds.start(ready, report.add)
    while rounds.n_live > 1:
        if triton_rounds.can_merge(nodes.device, rounds.n_live, n_columns, room):
            rounds.close_gaps()
            yield triton_rounds.merge_all(
                geometry, rounds.nodes, rounds.next_node, rounds.decision, rounds.heights
            )
            return
        yield rounds.step()


def _as_rows(X: Any, device: str | torch.device | None) -> Tensor:
    """A checked float32 or float64 tensor on the device to compute on; not copied where it need not
    be."""
    if isinstance(X, Tensor):
        if X.layout != torch.strided or X.is_quantized or X.device.type == "meta":
            raise DataError(
                "X: found a sparse, quantized or empty tensor, expected plain numbers; X.to_dense() or so"
            )
        tensor = X.detach().resolve_conj().resolve_neg()
        if tensor.is_floating_point() and tensor.dtype not in (
            torch.float16,
            torch.float32,
            torch.float64,
        ):
            tensor = tensor.float()  # numpy has no bfloat16, nor anything shorter
        if tensor.device.type == "cuda" and device is None:
            return _checked_on_device(tensor)
        home = computing_device(tensor.device) if device is None else choose_device(device)
        return torch.as_tensor(
            np.require(as_embeddings(tensor.cpu().numpy()), requirements="C")
        ).to(home)
    # torch warns of read-only memory, so that is copied.
    return torch.as_tensor(np.require(as_embeddings(X), requirements=["C", "W"])).to(
        choose_device(device)
    )


def _checked_on_device(tensor: Tensor) -> Tensor:
    """What `as_embeddings` checks, without leaving the GPU."""
    if tensor.ndim != 2 or tensor.numel() == 0 or tensor.is_complex():
        # Says what is wrong.
        as_embeddings(tensor[:1].cpu().numpy() if tensor.is_complex() else np.zeros(tensor.shape))
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float() if tensor.dtype == torch.float16 else tensor.double()
    is_bad = ~torch.isfinite(tensor).all(1)
    if bool(is_bad.any()):
        raise DataError(
            f"X: NaN or infinity in {name_rows(is_bad.cpu().numpy())}; remove or repair them"
        )
    return tensor


def _origin_and_scale(rows: Tensor) -> tuple[Tensor, float]:
    """(D,) what is taken off all rows, and a power of two that brings the largest entry that is
    left near 1."""
    low = rows.amin(0).double()
    high = rows.amax(0).double()
    origin = _origin(rows[0], low, high)
    return origin, _scale(low - origin, high - origin)


def _origin(row: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(D,) float64: a row's entry in columns far from zero, of one sign and within a factor of two,
    else 0.

    Differences within such a column are exact (Sterbenz), so what is taken off changes no distance;
    left on, it would take bits from every centroid: times, coordinates and the like.
    """
    is_far = ((low > 0) & (high <= 2 * low)) | ((high < 0) & (low >= 2 * high))
    return torch.where(is_far, row.double(), 0.0)


def _scale(low: Tensor, high: Tensor) -> float:
    """A power of two that brings the largest entry between 1/2 and 1: exact, and no square can
    overflow after it."""
    largest = float(torch.maximum(high, -low).max())
    if largest > LARGEST:
        raise DataError(
            f"X: found entries of {largest:.3g}, expected at most {LARGEST:g}; divide X by a constant"
        )
    return 2.0 ** -max(math.frexp(largest)[1], -1000) if largest else 1.0


def precisions(device: torch.device) -> tuple[Precision, ...]:
    """The formats of products, cheapest first, that this device is fast in."""
    if triton_scan.is_available(device):
        return (
            (TENSOR_BFLOAT16, TENSOR_TFLOAT32, FLOAT64)
            if device.type == "cuda"
            else (TENSOR_BFLOAT16, FLOAT64)
        )
    if device.type == "cuda":
        return (TENSOR_TFLOAT32, FLOAT64)
    return (BFLOAT16, FLOAT32, FLOAT64) if multiplies_bfloat16(device) else (FLOAT32, FLOAT64)


def _check_range(squared_heights: Floats) -> None:
    """Refuse distances of different rows that are lost because the largest was brought near 1."""
    if len(squared_heights) and squared_heights.min() < SMALLEST:
        raise DataError(
            "X: found different rows less than 1e-146 of the largest entry apart, which float64 cannot square; "
            "leave out the largest rows, or the columns that hold them"
        )


def _chains(groups: Groups, n: int) -> tuple[RoundMerges, Tensor]:
    """Merge equal rows at height 0, in ascending order: the merges, and the node that holds each
    distinct row."""
    order = torch.argsort(groups.member, stable=True).cpu()
    n_before = groups.earlier_copies().cpu()[order]
    is_first = n_before == 0
    joins = (n_before > 0).nonzero()[:, 0]
    made = n + torch.arange(len(joins))
    held = order.clone()  # the node that holds the group up to and including each row
    held[joins] = made
    device = groups.member.device
    nodes = held[torch.cat([is_first[1:], torch.ones(1, dtype=torch.bool)]).nonzero()[:, 0]]
    merges = RoundMerges(
        held[joins - 1],
        order[joins],
        torch.zeros(len(joins), dtype=torch.float64),
        (n_before[joins] + 1).double(),
    )
    return merges, nodes.to(device)


def _room(rows: Tensor, memory: int | None, workers: Workers) -> int:
    """Bytes for the block of products."""
    kind = rows.device.type
    needed = ELEMENT_BYTES * min(WIDTH[kind], len(rows)) * workers.n
    if memory is None:
        return max(needed, min(BLOCK_BYTES[kind], free_memory(rows.device) // 8))
    if memory < needed:
        raise UsageError(
            f"memory: found {memory:,} bytes, expected at least {needed:,}, one row's products with the others"
        )
    return memory


def _sorted_by_height(merges: list[RoundMerges], n: int, scale: float) -> Floats:
    """scipy's matrix: by height, and among equals in the order made, so that children come
    first."""
    device = merges[-1].distance.device
    left, right, distance, size = (
        torch.cat([getattr(merge, name).to(device) for merge in merges])
        for name in ("left", "right", "distance", "size")
    )
    order = torch.argsort(distance, stable=True)
    node = torch.arange(2 * n - 1, device=device)
    node[n + order] = torch.arange(n, 2 * n - 1, device=device)
    a = node[left[order]]
    b = node[right[order]]
    columns = (torch.minimum(a, b), torch.maximum(a, b), distance[order], size[order])
    linkage: Floats = torch.stack([column.double() for column in columns], 1).cpu().numpy()
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
