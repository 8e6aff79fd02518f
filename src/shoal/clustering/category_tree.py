"""The tree of categories: average linkage over their mean embeddings. K categories."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads its modules when they are needed: the review page needs none at first

from shoal.arrays import Floats, Ints


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
