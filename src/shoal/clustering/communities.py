"""Communities in a graph of nearest neighbors: groups with more links within than between them.

Found by scikit-network's Louvain search for the highest modularity, which chooses their number; a
`resolution` above 1 gives more and smaller ones.

Shapes: N images, E links.
"""

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.categories import other_neighbors
from shoal.clustering.tree import number_by_first

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

TOLERANCE = 1e-7
"""Smallest rise of modularity for which the search continues; scikit-network's default of 1e-3
ends early."""


def link_neighbors(
    points: Tensor, labels: Ints, *, n_neighbors: int, min_similarity: float
) -> "csr_matrix":
    """Return a symmetric graph (N, N) that links each of the unit points (N, D) with its nearest
    neighbors, weighted by their similarity, at least `min_similarity`.

    By their `labels` (N,), -1 for unlabeled, neighbors of the same class are linked with weight 1,
    and those of different classes are not linked.
    """
    from scipy.sparse import csr_matrix

    near = other_neighbors(points, n_neighbors)
    first = np.repeat(np.arange(len(points)), near.indices.shape[1])  # (E,) one end of each link
    second = near.indices.cpu().numpy().ravel()  # (E,) and the other
    are_labeled = (labels[first] != UNLABELED) & (labels[second] != UNLABELED)
    are_alike = labels[first] == labels[second]
    weights = near.similarities.double().cpu().numpy().ravel()
    weights = np.where(are_labeled & are_alike, 1.0, weights)
    is_linked = (weights >= min_similarity) & (weights > 0) & (are_alike | ~are_labeled)
    shape = (len(points), len(points))
    graph = csr_matrix((weights[is_linked], (first[is_linked], second[is_linked])), shape=shape)
    return graph.maximum(graph.T)  # neighbors need not be mutual


def find_communities(
    graph: "csr_matrix", *, resolution: float, min_members: int, seed: int
) -> Ints:
    """Return the community (N,) of each image, numbered by its first image; -1 in communities with
    fewer than `min_members`.

    Deterministic for a graph and a seed. Cost: 3 s for half a million links, in one thread.
    """
    from sknetwork.clustering import Louvain

    if not graph.nnz:
        return np.full(graph.shape[0], UNLABELED)
    search = Louvain(
        resolution=resolution,
        modularity="newman",
        tol_optimization=TOLERANCE,
        tol_aggregation=TOLERANCE,
        shuffle_nodes=True,
        random_state=seed,
    )
    communities = number_by_first(search.fit_predict(graph))
    is_large = np.bincount(communities) >= min_members
    return np.where(is_large, np.cumsum(is_large) - 1, UNLABELED)[communities]
