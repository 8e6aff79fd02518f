"""Ward's method as a scikit-learn estimator."""

from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import validate_data

from shoal.arrays import Floats, Ints, as_count
from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage


class WardClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Cut the exact Ward tree of the rows into a given number of clusters.

    Parameters
    ----------
    n_clusters
        How many clusters, at most the number of rows.
    device
        Where to compute, 'cpu', 'cuda' or 'cuda:1'; None takes CUDA when there is one.
    memory
        Bytes for the block of the scan; None takes a share of what is free.

    Attributes
    ----------
    labels_
        (N,) cluster of each row, numbered by each cluster's smallest row.
    tree_
        The whole `Tree`; `tree_.cut(k)` gives any other cut at once.
    children_
        (N-1, 2) the two nodes of each merge.
    distances_
        (N-1,) the height of each merge.
    n_leaves_
        N.
    n_features_in_
        The number of columns.

    Examples
    --------
    >>> WardClustering(n_clusters=2).fit_predict([[0.0], [0.1], [5.0]])
    array([0, 0, 1])
    """

    def __init__(
        self,
        n_clusters: int = 2,
        *,
        device: str | torch.device | None = None,
        memory: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.device = device
        self.memory = memory

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Grow the tree of the rows and cut it.

        Parameters
        ----------
        X
            (N, D) rows.
        y
            Ignored; scikit-learn's pipelines pass it.

        Returns
        -------
        Self
            The same, fitted.
        """
        as_count(self.n_clusters, name="n_clusters")
        if self.memory is not None:
            as_count(self.memory, name="memory")
        # Rows that are not finite are left to `ward_linkage`, which names them.
        rows = validate_data(self, X, dtype=["float64", "float32"], ensure_all_finite=False)
        self.tree_ = Tree(ward_linkage(rows, device=self.device, memory=self.memory))
        self.labels_: Ints = self.tree_.cut(self.n_clusters)
        self.children_: Ints = self.tree_.linkage[:, :2].astype("int64")
        self.distances_: Floats = self.tree_.heights
        self.n_leaves_ = self.tree_.n_leaves
        return self
