"""Semi-supervised k-means: labeled points keep their class, the others go to the nearest center.

The baseline of the CMS paper's ablation (Vaze et al. 2022). The first centers are the means of the
labeled classes; the others are sampled by k-means++ from the unlabeled points. Distances and means
are computed block by block, in float64, so equal generators give equal results on a device.

N points, D columns, K clusters, C known classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.clustering.neighbors import BLOCK_BYTES
from shoal.errors import UsageError

# Square of the distance that all centers together must move for another iteration
TOLERANCE = 1e-4


@dataclass(frozen=True)
class KMeansResult:
    """The run with the lowest inertia."""

    labels: Tensor  # (N,) int64; known classes 0 … C-1, then novel clusters
    centers: Tensor  # (K, D) float64
    inertia: float  # sum of squared distances of all points to their center


def semi_supervised_kmeans(
    points: Tensor,
    labels: Tensor,
    n_clusters: int,
    *,
    generator: torch.Generator,
    n_init: int = 10,
    max_iterations: int = 200,
) -> KMeansResult:
    """Cluster `points` (N, D) into K clusters; `labels` (N,) are 0 … C-1, -1 for unlabeled (all -1:
    plain k-means).

    Returns the best of `n_init` runs. A run stops when the centers together move less than
    √`TOLERANCE`. An empty cluster takes the unlabeled point farthest from its center, also after
    the last iteration, so that all K hold a point. Cost per iteration: N·K·D products.
    """
    n_known = int(labels.max()) + 1
    n_free = int((labels < 0).sum())
    if not max(n_known, 1) <= n_clusters <= n_known + n_free:
        raise UsageError(
            f"n_clusters: found {n_clusters} with {n_known} known classes and {n_free} unlabeled "
            f"points, expected {max(n_known, 1)} to {n_known + n_free}"
        )
    starts = (_first_centers(points, labels, n_clusters, generator) for _ in range(n_init))
    runs = (_run(points, labels, centers, max_iterations) for centers in starts)
    return min(runs, key=lambda run: run.inertia)  # the first on ties


def _run(points: Tensor, labels: Tensor, centers: Tensor, max_iterations: int) -> KMeansResult:
    n_clusters = len(centers)
    assigned, distances = _assign(points, labels, centers)
    for _ in range(max_iterations):
        before = centers
        centers = _means(points, _fill_empty(assigned, distances, labels, n_clusters), n_clusters)
        assigned, distances = _assign(points, labels, centers)
        step = torch.linalg.vector_norm(centers - before, dim=1).sum()
        if float(step) ** 2 < TOLERANCE:
            break
    filled = _fill_empty(assigned, distances, labels, n_clusters)
    if not torch.equal(filled, assigned):
        centers = _means(points, filled, n_clusters)
        assigned, distances = _assign(points, filled, centers)
    return KMeansResult(assigned, centers, float(distances.sum()))


def _first_centers(
    points: Tensor, labels: Tensor, n_clusters: int, generator: torch.Generator
) -> Tensor:
    """Return the means of the known classes, then unlabeled points sampled with probabilities
    proportional to their squared distance."""
    is_labeled = labels >= 0
    centers = _means(points[is_labeled], labels[is_labeled], int(labels.max()) + 1)  # (C, D)
    free = points[~is_labeled]
    none = labels[~is_labeled]
    nearest = torch.full((len(free),), torch.inf, dtype=torch.float64, device=points.device)
    if len(centers):
        nearest = _assign(free, none, centers)[1]
    while len(centers) < n_clusters:
        center = free[_sample(nearest, generator)][None].double()  # (1, D)
        centers = torch.cat([centers, center])
        nearest = torch.minimum(nearest, _assign(free, none, center)[1])
    return centers


def _sample(weights: Tensor, generator: torch.Generator) -> int:
    """Sample an index with probability proportional to its weight; uniformly if all weights are
    infinite or zero."""
    # On the CPU: running sums on a GPU are not reproducible.
    weights = weights.cpu()
    if not 0 < float(weights.sum()) < torch.inf:
        weights = torch.ones_like(weights)
    sums = weights.cumsum(0)
    at = torch.rand(1, dtype=torch.float64, generator=generator) * sums[-1]
    return int(torch.searchsorted(sums, at, right=True).clamp(max=len(sums) - 1))


def _assign(points: Tensor, labels: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cluster of each point (N,) and its squared distance (N,), float64.

    Labeled points keep their class, the others go to the nearest center, the lowest on ties.
    """
    squares = centers.square().sum(dim=1)  # (K,)
    clusters = []
    distances = []
    step = _block_rows(points, len(centers))
    for part, known in zip(torch.split(points, step), torch.split(labels, step), strict=True):
        rows = part.double()
        # |point|² is the same for all centers.
        nearest = (squares - 2 * rows @ centers.T).argmin(dim=1)
        assigned = torch.where(known >= 0, known, nearest)
        clusters.append(assigned)
        distances.append((rows - centers[assigned]).square().sum(dim=1))
    return torch.cat(clusters), torch.cat(distances)


def _block_rows(points: Tensor, n_clusters: int) -> int:
    """Return the rows of a block, with a float64 number per cluster or column."""
    return max(1, BLOCK_BYTES[points.device.type] // (8 * max(n_clusters, points.shape[1])))


def _fill_empty(assigned: Tensor, distances: Tensor, labels: Tensor, n_clusters: int) -> Tensor:
    """Move to each empty cluster the unlabeled point farthest from its center, from a cluster with
    several points."""
    assigned = assigned.clone()
    counts = torch.bincount(assigned, minlength=n_clusters)
    empty = (counts == 0).nonzero()[:, 0].tolist()
    if not empty:
        return assigned
    order = torch.where(labels >= 0, -1.0, distances).argsort(descending=True, stable=True).tolist()
    for index in order:
        if not empty or labels[index] >= 0:
            break
        if counts[assigned[index]] > 1:
            counts[assigned[index]] -= 1
            assigned[index] = empty.pop(0)
            counts[assigned[index]] += 1
    return assigned


def _means(points: Tensor, assigned: Tensor, n_clusters: int) -> Tensor:
    """Return the mean of each cluster's points, (K, D) float64; no cluster may be empty."""
    sums = torch.zeros(n_clusters, points.shape[1], dtype=torch.float64, device=points.device)
    step = _block_rows(points, n_clusters)
    for part, clusters in zip(torch.split(points, step), torch.split(assigned, step), strict=True):
        rows = part.double()
        if points.device.type == "cpu":
            sums.index_add_(0, clusters, rows)
        else:  # index_add_ on a GPU adds in no fixed order; a product with memberships does
            members = sums.new_zeros(len(rows), n_clusters)
            sums += members.scatter_(1, clusters[:, None], 1.0).T @ rows
    return sums / torch.bincount(assigned, minlength=n_clusters)[:, None]
