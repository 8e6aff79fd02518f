"""The tree of a hierarchical clustering, and its cuts, and the tree of categories; no torch.

N leaves, numbered 0 … N-1; the i-th merge makes node N+i (scipy's numbering). While a cut
moves down the tree, the current clusters are held in *slots*: a cluster has the slot of its
smallest leaf, so a merge keeps the smaller of two slots and frees the larger.

The tree of K categories is built by average linkage over their mean embeddings.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads its modules when they are needed: the review page needs none at first
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import is_valid_linkage

from shoal.arrays import Floats, Ints, as_count, as_number
from shoal.errors import DataError, UsageError

EXPECTED = "expected (N-1, 4) as scipy writes it, sorted by height"


class Tree:
    """A hierarchy over N leaves from a linkage matrix in scipy's format.

    Parameters
    ----------
    linkage
        (N-1, 4), a row per merge: two nodes, height, number of leaves. Heights never decrease. An
        empty (0, 4) matrix is the tree of a single leaf.
    rounding
        Leaves that merge at or below this height are treated as identical: they differ by rounding.

    Attributes
    ----------
    linkage
        (N-1, 4), a copy of the matrix.
    n_leaves
        N.
    heights
        (N-1,) the height of each merge, never falling.
    n_distinct
        Distinct leaves, N without copies; a cut into more clusters would split copies by their row.

    Examples
    --------
    >>> tree = Tree([[0, 1, 1.0, 2], [2, 3, 4.0, 3]])
    >>> tree.cut(2)
    array([0, 0, 1])
    """

    def __init__(self, linkage: ArrayLike, *, rounding: float = 0.0) -> None:
        self.linkage: Floats = _checked(linkage)
        self.rounding = as_number(rounding, name="rounding")
        self.n_leaves = len(self.linkage) + 1
        self.heights: Floats = self.linkage[:, 2]
        self.n_distinct = self.n_leaves - int((self.heights <= self.rounding).sum())
        self._left, self._right = self.linkage[:, :2].T.astype(np.int64)  # (N-1,) each

    def cut(self, n_clusters: int) -> Ints:
        """Cut the tree into exactly `n_clusters` clusters, even if heights are tied.

        Parameters
        ----------
        n_clusters
            1 to N.

        Returns
        -------
        Ints
            (N,) the cluster of each leaf, 0 … n_clusters-1, numbered by their smallest leaf.
        """
        if not 1 <= as_count(n_clusters, name="n_clusters") <= self.n_leaves:
            raise UsageError(
                f"n_clusters: found {n_clusters}, expected 1 to {self.n_leaves}, the leaves"
            )
        return number_by_first(self._roots_after(self.n_leaves - n_clusters))

    def merges(self, start: int) -> tuple[Ints, Ints, Ints]:
        """List the merges from `start` clusters down to one, by slot.

        A sweep over all cuts stores its counts per slot and adds row `gone[t]` to row `kept[t]` at
        step t: one addition per cut, O(N) in all.

        Parameters
        ----------
        start
            The number of clusters to begin with; their slots are the labels of `cut(start)`.

        Returns
        -------
        tuple[Ints, Ints, Ints]
            The slot of each leaf at the start (N,), and for each merge the slot that is kept and
            the larger one that is absorbed into it (start-1,), in order of height.
        """
        labels = self.cut(start)
        n_merges = self.n_leaves - start
        slots = np.full(2 * self.n_leaves - 1, -1)  # by node
        slots[self._roots_after(n_merges)] = labels
        for merge in range(n_merges, self.n_leaves - 1):
            slots[self.n_leaves + merge] = min(slots[self._left[merge]], slots[self._right[merge]])
        left = slots[self._left[n_merges:]]
        right = slots[self._right[n_merges:]]
        return labels, np.minimum(left, right), np.maximum(left, right)

    def with_top(self, n_clusters: int, kept: Ints, gone: Ints, heights: Floats) -> "Tree":
        """Return the tree with the merges above M clusters replaced.

        Parameters
        ----------
        n_clusters
            M.
        kept
            (M-1,) the slot that is kept at each merge; slots are the labels of `cut(n_clusters)`.
        gone
            (M-1,) the slot that is absorbed into it.
        heights
            (M-1,) the height of each merge.

        Returns
        -------
        Tree
            A new tree.
        """
        labels = self.cut(n_clusters)
        n_merges = self.n_leaves - n_clusters
        nodes = np.empty(n_clusters, dtype=np.int64)
        nodes[labels] = self._roots_after(n_merges)
        sizes = np.bincount(labels)
        linkage = np.empty((self.n_leaves - 1, 4))
        linkage[:n_merges] = self.linkage[:n_merges]
        for step in range(n_clusters - 1):
            pair = [kept[step], gone[step]]
            sizes[kept[step]] = sizes[pair].sum()
            linkage[n_merges + step] = (*sorted(nodes[pair]), heights[step], sizes[kept[step]])
            nodes[kept[step]] = self.n_leaves + n_merges + step
        return Tree(linkage, rounding=self.rounding)

    def _roots_after(self, n_merges: int) -> Ints:
        """Return the node (N,) that holds each leaf after the first `n_merges` merges."""
        n_nodes = self.n_leaves + n_merges
        parent = np.arange(n_nodes)
        made = np.arange(self.n_leaves, n_nodes)
        parent[self._left[:n_merges]] = made
        parent[self._right[:n_merges]] = made
        while True:  # halve every path to its root: log2(depth) passes
            above = parent[parent]
            if np.array_equal(above, parent):
                return parent[: self.n_leaves]
            parent = above


def _checked(linkage: ArrayLike) -> Floats:
    """Return a read-only copy of a matrix in scipy's format; raise an error for any other."""
    try:
        merges = np.array(linkage, dtype=np.float64)
        if merges.size:
            is_valid_linkage(merges, throw=True)
    except (TypeError, ValueError) as error:
        raise DataError(f"linkage: {error}; {EXPECTED}") from error
    merges = merges.reshape(-1, 4)
    nodes = merges[:, :2]
    if not np.isfinite(merges).all() or (nodes % 1).any() or (np.diff(merges[:, 2]) < 0).any():
        raise DataError(f"linkage: found a number that is not finite or falls; {EXPECTED}")
    merges.flags.writeable = False
    return merges


def number_by_first(roots: Ints) -> Ints:
    """Number the clusters of leaves with the same root (N,) 0 … K-1 by their smallest leaf."""
    leaves = np.arange(len(roots))
    smallest = np.empty(int(roots.max()) + 1, dtype=np.int64)  # by root
    # Of several leaves the last one written stays, which is the smallest.
    smallest[roots[::-1]] = leaves[::-1]
    first = smallest[roots]  # (N,)
    numbers = np.cumsum(first == leaves) - 1
    return numbers[first]


@dataclass(frozen=True)
class CategoryTree:
    """A hierarchy over categories.

    Attributes
    ----------
    linkage
        (K-1, 4) in scipy's format: two nodes, height, number of categories. The height is the mean
        cosine distance between the mean embeddings of two groups of categories.
    names
        (K,) the categories, which are the leaves.

    Examples
    --------
    >>> embeddings = np.array([[1, 0], [1, 0.1], [0, 1]])
    >>> tree = CategoryTree.of_members(["oak", "pine", "crab"], [[0], [1], [2]], embeddings)
    >>> tree.newick()
    "('crab':0.950248,('oak':0.004963,'pine':0.004963)'node-1':0.945285)'node-2';"
    """

    linkage: Floats
    names: tuple[str, ...]

    @classmethod
    def of_members(
        cls, names: Sequence[str], members: Sequence[Ints], embeddings: Floats
    ) -> "CategoryTree":
        """Return the tree of categories with these rows of the embeddings (N, D)."""
        means = np.array(
            [embeddings[np.sort(rows)].mean(axis=0, dtype=np.float64) for rows in members]
        )  # (K, D)
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        unit = means / np.maximum(lengths, np.finfo(np.float64).tiny)
        distances = np.maximum(1 - unit @ unit.T, 0)
        merges = np.zeros((0, 4))
        if len(names) > 1:
            condensed = scipy.spatial.distance.squareform(distances, checks=False)
            merges = scipy.cluster.hierarchy.linkage(condensed, "average")
        return cls(merges, tuple(names))

    @property
    def node_names(self) -> list[str]:
        """(2K-1,) the name of each leaf, then of each inner node, the lowest first."""
        return [*self.names, *(f"node-{merge + 1}" for merge in range(len(self.linkage)))]

    @property
    def parents(self) -> list[int]:
        """(2K-1,) the parent of each node; -1 for the root."""
        parents = np.full(len(self.names) + len(self.linkage), -1)
        parents[self.linkage[:, :2].astype(int)] = np.arange(len(self.names), len(parents))[:, None]
        return parents.tolist()

    @property
    def parent_names(self) -> dict[str, str]:
        """The name of the parent node of each category; '' if there is only one category."""
        names = [*self.node_names, ""]  # the last one for the parent of the root, -1
        return dict(zip(self.names, (names[parent] for parent in self.parents), strict=False))

    @property
    def heights(self) -> list[float]:
        """(2K-1,) the height of each node; 0 for leaves."""
        return [*np.zeros(len(self.names)).tolist(), *self.linkage[:, 2].tolist()]

    def newick(self) -> str:
        """Return the tree in the Newick format, with names of inner nodes and branch lengths.

        Heights are rounded, not lengths: programs that need an ultrametric tree, such as ape's
        `as.hclust`, refuse one whose leaves have different distances from the root.
        """
        text = ["'" + name.replace("'", "''") + "'" for name in self.node_names]
        heights = np.round(self.heights, 6)
        for node, merge in enumerate(self.linkage, start=len(self.names)):
            parts = []
            for child in merge[:2].astype(int):
                parts.append(f"{text[child]}:{heights[node] - heights[child]:.6f}")
                text[child] = ""  # free the memory of strings used in a larger one
            text[node] = f"({','.join(parts)}){text[node]}"
        return f"{text[-1]};"
