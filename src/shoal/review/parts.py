"""The parts of a category: its images as the tree of the run would separate them.

After some actions a category may hold any images, so only they are looked at: of all merges of the
tree those that join two of them count, and undoing the last n - 1 gives n parts. O(N) for a run of
N images.
"""

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from shoal.arrays import Ints
from shoal.errors import DataError, UsageError
from shoal.review.state import State, by_category
from shoal.runs import MIXED_FROM, Run, damaged, read_vectors

MAX_WITHOUT_TREE = 4_000
"""Maximum size of a category for which a tree is computed if the run has none."""


def parts_of(state: State, category: int, n_parts: SupportsIndex) -> list[Ints]:
    """Return the rows of a category, split into `n_parts` parts by its tree.

    The first part keeps the id and name of the category.
    """
    rows = state.members(category)
    if n_parts not in range(2, len(rows) + 1):
        raise UsageError(
            f"parts: found {n_parts}, expected 2 to {len(rows)}, the number of its images"
        )
    return labeled_first(state, category, cut(linkage_of(state, rows), rows, int(n_parts)))


def proposed_split(state: State, category: int) -> tuple[Ints, Ints] | None:
    """Return the rows that would stay and leave if a category is mixed.

    None if the run does not consider it mixed, or if one of both sides is empty after the review.
    """
    if category not in state.found or state.found[category].mixed_probability < MIXED_FROM:
        return None
    rows = state.members(category)
    is_apart = np.asarray(state.columns["is_apart"], dtype=bool)[rows]
    if is_apart.all() or not is_apart.any():
        return None
    return rows[~is_apart], rows[is_apart]


def labeled_first(state: State, category: int, parts: Sequence[Ints]) -> list[Ints]:
    """Return parts of a category, those with most of its given labels first."""
    is_labeled = state.given_labels() == category
    return sorted(parts, key=lambda part: -int(is_labeled[part].sum()))


def linkage_of(state: State, rows: Ints) -> Ints:
    """Return (n - 1, 2) the merges among some images, lowest first.

    Numbers below n are positions in `rows`, n + i is the i-th merge.
    """
    run = state.run
    if run.has("tree.npy"):
        return _induced(_merges(run, len(state)), rows, len(state))
    if not run.has("embeddings.npy") or len(rows) > MAX_WITHOUT_TREE:
        raise DataError(
            f"{run.path}: has no tree to split {len(rows):,} images by; choose images instead"
        )
    from scipy.cluster.hierarchy import ward

    vectors = read_vectors(run.path / "embeddings.npy", len(state))
    merges: Ints = ward(vectors[rows])[:, :2].astype(np.int64)
    return merges


def _merges(run: Run, n_leaves: int) -> Ints:
    """Return (N - 1, 2) the two nodes of each merge in tree.npy."""
    tree = run.array("tree")
    is_linkage = tree.shape == (n_leaves - 1, 4) and tree.dtype.kind == "f"
    nodes = np.arange(n_leaves, 2 * n_leaves - 1)[:, None]  # (N - 1, 1), each joins lower ones
    if not is_linkage or not ((tree[:, :2] >= 0) & (tree[:, :2] < nodes)).all():
        raise damaged(run.path / "tree.npy", f"its rows are not the merges of {n_leaves:,} images")
    return np.asarray(tree[:, :2], np.int64)


def _induced(merges: Ints, rows: Ints, n_leaves: int) -> Ints:
    """Return (n - 1, 2) the merges of a tree restricted to some leaves."""
    root = n_leaves + len(merges) - 1
    above = np.full(root + 1, root)  # the node above each
    above[merges] = np.arange(n_leaves, root + 1)[:, None]
    parents = above.tolist()  # a list: single elements are read faster
    passed = {root}
    for row in rows.tolist():
        node = row
        while node not in passed:
            passed.add(node)
            node = parents[node]
    inner = np.array(sorted(node for node in passed if node >= n_leaves))
    below = dict(zip(rows.tolist(), range(len(rows)), strict=True))  # the new number of each node
    pairs: list[tuple[int, int]] = []
    for node, (a, b) in zip(inner.tolist(), merges[inner - n_leaves].tolist(), strict=True):
        left = below.get(a, -1)  # -1: above no leaf of ours
        right = below.get(b, -1)
        if left >= 0 and right >= 0:
            below[node] = len(rows) + len(pairs)
            pairs.append((left, right))
        else:
            below[node] = max(left, right)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def cut(linkage: Ints, rows: Ints, n_parts: int) -> list[Ints]:
    """Return the rows of each part after undoing the last `n_parts` - 1 merges, largest first."""
    from scipy.cluster.hierarchy import fcluster

    order = np.arange(len(linkage))
    tree = np.column_stack([linkage, order, order]).astype(np.float64)  # only the order counts
    labels = fcluster(tree, n_parts, "maxclust").astype(np.int64)
    positions = by_category(labels, np.arange(len(rows)))
    parts = [rows[part] for part in positions.values()]
    return sorted(parts, key=lambda part: (-len(part), int(part[0])))
