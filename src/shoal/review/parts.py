"""The parts of a category: its images as the tree of the run would separate them.

After some actions a category may hold any images, so only they are merged, in the order of the
tree, until as many parts are left as wanted.
"""

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

from shoal.arrays import Ints
from shoal.errors import DataError, UsageError
from shoal.review.state import State
from shoal.runs import MIXED_FROM, Run, damaged, read_vectors

# Maximum size of a category for which a tree is computed if the run has none
MAX_WITHOUT_TREE = 4_000


def parts_of(state: State, category: int, n_parts: SupportsIndex) -> list[Ints]:
    """Return the rows of a category, split into `n_parts` parts by its tree.

    The first part keeps the id and name of the category.
    """
    rows = state.members(category)
    if n_parts not in range(2, len(rows) + 1):
        raise UsageError(
            f"parts: found {n_parts}, expected 2 to {len(rows)}, the number of its images"
        )
    run = state.run
    if run.has("tree.npy"):
        parts = cut(_merges(run, len(state)), rows, int(n_parts))
    elif run.has("embeddings.npy") and len(rows) <= MAX_WITHOUT_TREE:
        from scipy.cluster.hierarchy import ward

        vectors = read_vectors(run.path / "embeddings.npy", len(state))
        merges: Ints = ward(vectors[rows])[:, :2].astype(np.int64)
        parts = [rows[part] for part in cut(merges, np.arange(len(rows)), int(n_parts))]
    else:
        raise DataError(
            f"{run.path}: has no tree to split {len(rows):,} images by; choose images instead"
        )
    return labeled_first(state, category, parts)


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


def _merges(run: Run, n_leaves: int) -> Ints:
    """Return (N - 1, 2) the two nodes of each merge in tree.npy."""
    tree = run.array("tree")
    is_linkage = tree.shape == (n_leaves - 1, 4) and tree.dtype.kind == "f"
    nodes = np.arange(n_leaves, 2 * n_leaves - 1)[:, None]  # (N - 1, 1), each joins lower ones
    if not is_linkage or not ((tree[:, :2] >= 0) & (tree[:, :2] < nodes)).all():
        raise damaged(run.path / "tree.npy", f"its rows are not the merges of {n_leaves:,} images")
    return np.asarray(tree[:, :2], np.int64)


def cut(merges: Ints, leaves: Ints, n_parts: int) -> list[Ints]:
    """Return some leaves of a tree in the parts that remain before its last merges, largest first.

    A merge joins two nodes: numbers up to `len(merges)` are leaves, the following ones merges.
    """
    groups = {leaf: [leaf] for leaf in leaves.tolist()}
    for node, (first, second) in enumerate(merges.tolist(), start=len(merges) + 1):
        if len(groups) == n_parts:
            break
        group = groups.pop(first, []) + groups.pop(second, [])
        if group:
            groups[node] = group
    parts = [np.sort(group) for group in groups.values()]
    return sorted(parts, key=lambda part: (-len(part), int(part[0])))
