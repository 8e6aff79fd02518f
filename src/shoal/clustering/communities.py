"""Communities: groups of images that are linked more among themselves than with others, in a graph
of near neighbors.

Found by Louvain's search for the highest modularity, of scikit-network. No number of groups is
given; a `resolution` above 1 asks for more and smaller ones.

N images, E links.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.neighbors import k_nearest

TOLERANCE = 1e-7
"""The least rise of modularity for which the search goes on: at scikit-network's own 1e-3 it ends
early."""


@dataclass(frozen=True, eq=False, slots=True)
class NeighborGraph:
    """Which images are linked, and how strongly."""

    n_images: int
    first: Ints
    """(E,) one end of each link."""
    second: Ints
    """(E,) the other end, a larger number."""
    weights: Floats
    """(E,) above 0."""


def link_neighbors(
    points: Tensor, labels: Ints, *, n_neighbors: int, min_similarity: float
) -> NeighborGraph:
    """Link each of the unit points (N, D) with its nearest ones, by their similarity where that is
    high enough.

    `labels` (N,) have a say, -1 for unlabeled: neighbors of one class are linked with weight 1, of
    two classes not.
    """
    n_images = len(points)
    everyone = torch.arange(n_images, device=points.device)
    near = k_nearest(points, points, min(n_neighbors, n_images - 1), exclude=everyone)
    ends = (
        everyone[:, None].expand_as(near.indices).cpu().numpy().ravel(),
        near.indices.cpu().numpy().ravel(),
    )
    similarity = near.similarities.cpu().numpy().ravel().astype(np.float64)
    ours, theirs = (labels[end] for end in ends)
    are_labeled = (ours != UNLABELED) & (theirs != UNLABELED)
    weights = np.where(are_labeled & (ours == theirs), 1.0, similarity)
    is_kept = (weights >= min_similarity) & (weights > 0) & ~(are_labeled & (ours != theirs))
    low = np.minimum(*ends)[is_kept]
    high = np.maximum(*ends)[is_kept]
    # A link that both ends ask for is one.
    _, once = np.unique(low * n_images + high, return_index=True)
    return NeighborGraph(n_images, low[once], high[once], weights[is_kept][once])


def find_communities(
    graph: NeighborGraph, *, resolution: float, min_members: int, seed: int
) -> Ints:
    """(N,) the community of each image, numbered by its first image; -1 in those with fewer than
    `min_members`.

    The same for the same graph and seed, in every process. Cost: 3 s for half a million links, in
    one thread.
    """
    from scipy.sparse import coo_matrix
    from sknetwork.clustering import Louvain

    if not len(graph.first):
        return np.full(graph.n_images, UNLABELED, dtype=np.int64)
    upper = coo_matrix(
        (graph.weights, (graph.first, graph.second)), shape=(graph.n_images, graph.n_images)
    ).tocsr()
    search = Louvain(
        resolution=resolution,
        modularity="newman",
        tol_optimization=TOLERANCE,
        tol_aggregation=TOLERANCE,
        shuffle_nodes=True,
        random_state=seed,
    )
    _, first, at, sizes = np.unique(
        search.fit_predict(upper + upper.T),
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    large = np.flatnonzero(sizes >= min_members)
    numbers = np.full(len(sizes), UNLABELED, dtype=np.int64)
    numbers[large[np.argsort(first[large])]] = np.arange(len(large))
    return numbers[at]
