"""Communities: groups of images that are linked more among themselves than with others, in a graph
of near neighbors.

Found by Louvain's search for the highest modularity, of scikit-network. No number of groups is
given; a `resolution` above 1 asks for more and smaller ones.

N images, E links.
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
"""The least rise of modularity for which the search goes on: at scikit-network's own 1e-3 it ends
early."""


def link_neighbors(
    points: Tensor, labels: Ints, *, n_neighbors: int, min_similarity: float
) -> "csr_matrix":
    """Link each of the unit points (N, D) with its nearest ones, by their similarity where that is
    high enough: (N, N) symmetric weights.

    `labels` (N,) have a say, -1 for unlabeled: neighbors of one class are linked with weight 1, of
    two classes not.
    """
    from scipy.sparse import csr_matrix

    near = other_neighbors(points, n_neighbors)
    first = np.repeat(np.arange(len(points)), near.indices.shape[1])  # (E,) one end of each link
    second = near.indices.cpu().numpy().ravel()  # (E,) and the other
    are_labeled = (labels[first] != UNLABELED) & (labels[second] != UNLABELED)
    are_alike = labels[first] == labels[second]
    weights = near.similarities.double().cpu().numpy().ravel()
    weights = np.where(are_labeled & are_alike, 1.0, weights)
    kept = (weights >= min_similarity) & (weights > 0) & (are_alike | ~are_labeled)
    shape = (len(points), len(points))
    graph = csr_matrix((weights[kept], (first[kept], second[kept])), shape=shape)
    return graph.maximum(graph.T)  # a link that both ends ask for is one


def find_communities(
    graph: "csr_matrix", *, resolution: float, min_members: int, seed: int
) -> Ints:
    """(N,) the community of each image, numbered by its first image; -1 in those with fewer than
    `min_members`.

    The same for the same graph and seed, in every process. Cost: 3 s for half a million links, in
    one thread.
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
    numbers = np.where(is_large, np.cumsum(is_large) - 1, UNLABELED)
    return numbers[communities]
