"""The tree of a hierarchical clustering, and every way of cutting it; numpy only.

N leaves, numbered 0 … N-1; the i-th merge makes node N+i (scipy's numbering). A *slot* is one of N
places that hold the current clusters while a cut moves down the tree: cluster c sits in slot
min(leaves of c), so a merge keeps the smaller of two slots and frees the larger.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from shoal.arrays import Floats, Ints, as_count, as_number
from shoal.errors import DataError, UsageError

EXPECTED = "expected (N-1, 4) as scipy writes it, sorted by height"


@dataclass(frozen=True, eq=False)
class Merges:
    """Joins in the order of their height, by slot: step t absorbs slot `gone[t]` into slot
    `kept[t]` < `gone[t]`.

    Before the first step leaf i sits in slot `start[i]`; step t leaves `n_clusters[t]` clusters. A
    sweep over every cut keeps what it counts per slot (sizes, rows of a contingency table) and adds
    row `gone[t]` to row `kept[t]`: one addition per cut, O(N) in all.
    """

    start: Ints
    """(N,) slot of each leaf before the first step."""
    kept: Ints
    """(T,) the slot that survives each step."""
    gone: Ints
    """(T,) the slot that is absorbed and never used again."""
    heights: Floats
    """(T,) the height of each step, never falling."""
    n_clusters: Ints
    """(T,) the number of clusters after each step."""

    def __len__(self) -> int:
        return len(self.kept)


class Tree:
    """A hierarchy over N leaves from a linkage matrix in scipy's format.

    Parameters
    ----------
    linkage
        (N-1, 4), a row per merge: two nodes, height, number of leaves. Heights never fall. An empty
        (0, 4) matrix is the tree of a single leaf.
    rounding
        Leaves joined up to this height differ by rounding alone, and count as copies of one
        another.

    Attributes
    ----------
    linkage
        (N-1, 4) as given.
    n_leaves
        N.
    heights
        (N-1,) the height of each merge, never falling.
    n_distinct
        Leaves that differ, N without copies: a cut at more clusters would tell copies apart by
        their row.

    Examples
    --------
    >>> tree = Tree([[0, 1, 1.0, 2], [2, 3, 4.0, 3]])
    >>> tree.cut(2)
    array([0, 0, 1])
    """

    def __init__(self, linkage: ArrayLike, *, rounding: float = 0.0) -> None:
        self.linkage: Floats = _checked(linkage)
        if not as_number(rounding, name="rounding") >= 0:
            raise UsageError(f"rounding: found {rounding}, expected a height of 0 or more")
        self.rounding = float(rounding)
        self.n_leaves = len(self.linkage) + 1
        self.heights: Floats = self.linkage[:, 2]
        self.n_distinct = self.n_leaves - int(
            np.searchsorted(self.heights, self.rounding, side="right")
        )
        self._left, self._right = self.linkage[:, :2].T.astype(np.int64)  # (N-1,) each

    def cut(self, n_clusters: int) -> Ints:
        """Label every leaf 0 … n_clusters-1, clusters numbered by their smallest leaf.

        Undoes the last n_clusters-1 merges, so there are exactly `n_clusters` clusters even where
        heights are tied.

        Parameters
        ----------
        n_clusters
            1 to N.

        Returns
        -------
        Ints
            (N,) the label of each leaf.
        """
        if not 1 <= as_count(n_clusters, name="n_clusters") <= self.n_leaves:
            raise UsageError(
                f"n_clusters: found {n_clusters}, expected 1 to {self.n_leaves}, the leaves"
            )
        return number_by_first(self._roots_after(self.n_leaves - n_clusters))

    def cut_at(self, height: float) -> Ints:
        """Label every leaf by its cluster once all merges of at most `height` are done.

        Parameters
        ----------
        height
            Merges that are higher are undone.

        Returns
        -------
        Ints
            (N,) the label of each leaf, clusters numbered by their smallest leaf.
        """
        if np.isnan(as_number(height, name="height")):
            raise UsageError("height: found NaN, expected a number")
        return number_by_first(
            self._roots_after(int(np.searchsorted(self.heights, height, side="right")))
        )

    def merges(self, start: int | None = None) -> Merges:
        """List the joins from some clusters down to one.

        Parameters
        ----------
        start
            The number of clusters to begin with; their slots are the labels of `cut(start)`, 0 …
            start-1. None: every leaf is its own.

        Returns
        -------
        Merges
            The joins in their order.
        """
        n_clusters = self.n_leaves if start is None else start
        labels = self.cut(n_clusters)
        done = self.n_leaves - n_clusters
        label_of = np.full(self.n_leaves, -1)  # by slot
        label_of[self._slots[self._roots_after(done)]] = labels
        a = label_of[self._slots[self._left[done:]]]
        b = label_of[self._slots[self._right[done:]]]
        return Merges(
            start=labels,
            kept=np.minimum(a, b),
            gone=np.maximum(a, b),
            heights=self.heights[done:],
            n_clusters=np.arange(n_clusters - 1, 0, -1),
        )

    def with_top(self, n_clusters: int, kept: Ints, gone: Ints, heights: Floats) -> "Tree":
        """The same tree up to `n_clusters` clusters M, and other merges above.

        Parameters
        ----------
        n_clusters
            M, where the other merges begin.
        kept
            (M-1,) the slot that is kept at each step; slots are the labels of `cut(n_clusters)`.
        gone
            (M-1,) the slot that goes into it.
        heights
            (M-1,) the height of each step.

        Returns
        -------
        Tree
            A new tree.
        """
        labels = self.cut(n_clusters)
        done = self.n_leaves - n_clusters
        nodes = np.empty(n_clusters, dtype=np.int64)
        nodes[labels] = self._roots_after(done)
        sizes = np.bincount(labels)
        top = []
        for step, (one, other, height) in enumerate(
            zip(kept.tolist(), gone.tolist(), heights.tolist(), strict=True)
        ):
            sizes[one] += sizes[other]
            top.append((*sorted((nodes[one], nodes[other])), height, sizes[one]))
            nodes[one] = self.n_leaves + done + step
        return Tree(
            np.concatenate([self.linkage[:done], np.array(top).reshape(-1, 4)]),
            rounding=self.rounding,
        )

    @cached_property
    def _slots(self) -> Ints:
        """(2N-1,) the smallest leaf under each node."""
        return _first_leaves(self._left, self._right)

    def _roots_after(self, n_merges: int) -> Ints:
        """(N,) the node that each leaf is in once the first `n_merges` merges are done."""
        nodes = self.n_leaves + n_merges
        parent = np.arange(nodes)
        made = np.arange(self.n_leaves, nodes)
        parent[self._left[:n_merges]] = made
        parent[self._right[:n_merges]] = made
        while True:  # halve every path to its root: log2(depth) passes
            above = parent[parent]
            if np.array_equal(above, parent):
                return parent[: self.n_leaves]
            parent = above


def _checked(linkage: ArrayLike) -> Floats:
    """Check scipy's format, so that every walk over the tree ends."""
    try:
        # A copy: a tree does not change.
        merges = np.asarray(linkage).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError) as error:
        raise DataError(f"linkage: found no matrix of real numbers, {EXPECTED}") from error
    if merges.size == 0:
        merges = merges.reshape(0, 4)
    if merges.ndim != 2 or merges.shape[1] != 4:
        raise DataError(f"linkage: found shape {merges.shape}, {EXPECTED}")
    n_merges = len(merges)
    nodes = np.nan_to_num(merges[:, :2]).clip(-1, 2.0**62).astype(np.int64)
    made = np.arange(n_merges + 1, 2 * n_merges + 1)[:, None]  # nodes before each merge
    if (nodes != merges[:, :2]).any() or (nodes < 0).any() or (nodes >= made).any():
        raise DataError(f"linkage: a node is used before it is made, {EXPECTED}")
    if (np.bincount(nodes.ravel()) > 1).any():
        raise DataError(f"linkage: a node is used twice, {EXPECTED}")
    if not np.isfinite(merges[:, 2]).all() or (np.diff(merges[:, 2]) < 0).any():
        raise DataError(f"linkage: heights fall or are no numbers, {EXPECTED}")
    # Of every node, if the counts are right.
    sizes = np.concatenate([np.ones(n_merges + 1), merges[:, 3]])
    if (sizes[nodes].sum(axis=1) != merges[:, 3]).any():
        raise DataError(f"linkage: a count is not the number of leaves below, {EXPECTED}")
    merges.flags.writeable = False
    return merges


def _first_leaves(left: Ints, right: Ints) -> Ints:
    """(2N-1,) the smallest leaf under each node."""
    n_leaves = len(left) + 1
    first = list(range(n_leaves))  # item access of a list is several times faster than numpy's
    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        first.append(min(first[a], first[b]))
    return np.array(first)


def number_by_first(roots: Ints) -> Ints:
    """Number the clusters that leaves (N,) are in 0 … K-1 by their smallest leaf."""
    leaves = np.arange(len(roots))
    smallest = np.empty(int(roots.max()) + 1, dtype=np.int64)  # by node
    # Of several leaves the last one written stays, which is the smallest.
    smallest[roots[::-1]] = leaves[::-1]
    own = smallest[roots]  # (N,)
    numbers: Ints = np.cumsum(own == leaves) - 1
    return numbers[own]
