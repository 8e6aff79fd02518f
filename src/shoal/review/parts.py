"""The parts of a category: where the tree of the run, cut finer, would part its images.

A category may be anything after some actions, so the tree is looked at through its images alone: of
all merges those count that join two of them, and undoing the last n - 1 gives n parts. O(N) for a
run of N images.
"""

from collections.abc import Sequence

import numpy as np

from shoal.arrays import Ints
from shoal.errors import DataError, UsageError
from shoal.review.actions import Action
from shoal.review.state import State
from shoal.runs import MIXED_FROM, Run, damaged, read_vectors

MAX_WITHOUT_TREE = 4_000
"""Images of a category that a tree of its own is grown for, where the run has none."""


def parts_of(run: Run, state: State, category: int, n_parts: int) -> list[Ints]:
    """The images of a category in `n_parts` parts, each ascending; the first keeps the category."""
    rows = state.members(category)
    if not 2 <= n_parts <= len(rows):
        raise UsageError(
            f"parts: found {n_parts}, expected 2 to {len(rows)}, the number of its images"
        )
    proposed = proposed_split(state, category)
    if n_parts == 2 and proposed is not None:
        return labeled_first(state, category, proposed)
    return labeled_first(state, category, cut(linkage_of(run, state, rows), rows, n_parts))


def proposed_split(state: State, category: int) -> tuple[Ints, Ints] | None:
    """The images that would stay and leave if a category holds another one.

    None where the run has not marked it, or one of both has left it since.
    """
    if state.mixed_probability.get(category, 0.0) < MIXED_FROM:
        return None
    rows = state.members(category)
    is_apart = np.asarray(state.columns["is_apart"], dtype=bool)[rows]
    if is_apart.all() or not is_apart.any():
        return None
    return rows[~is_apart], rows[is_apart]


def labeled_first(state: State, category: int, parts: Sequence[Ints]) -> list[Ints]:
    """Parts of a category, the one with most of its given labels first, else in their order."""
    is_labeled = state.given_labels() == category
    return sorted(parts, key=lambda part: -int(is_labeled[part].sum()))


def labels_that_leave(state: State, split: Action) -> Ints:
    """The rows of a split that came with a label of the category they leave."""
    is_labeled = state.given_labels()[split.rows] == split.category
    rows: Ints = split.rows[is_labeled]
    return rows


def linkage_of(run: Run, state: State, rows: Ints) -> Ints:
    """(n - 1, 2) the merges among some images, lowest first.

    Numbers below n are positions in `rows`, n + i is the i-th merge.
    """
    if run.has("tree.npy"):
        return _induced(_merges(run, len(state)), rows, len(state))
    if not run.has("embeddings.npy") or len(rows) > MAX_WITHOUT_TREE:
        raise DataError(
            f"{run.path}: holds no tree to split {len(rows):,} images by; choose images instead"
        )
    from scipy.cluster.hierarchy import ward

    vectors = read_vectors(run.path / "embeddings.npy", len(state))
    merges: Ints = ward(vectors[rows])[:, :2].astype(np.int64)
    return merges


def _merges(run: Run, n_leaves: int) -> Ints:
    """(N - 1, 2) the two nodes of each merge in tree.npy, each made before."""
    tree = run.array("tree")
    is_ours = tree.shape == (n_leaves - 1, 4) and tree.dtype.kind == "f"
    made = np.arange(n_leaves, 2 * n_leaves - 1)[:, None]  # (N - 1, 1)
    if not is_ours or not ((tree[:, :2] >= 0) & (tree[:, :2] < made)).all():
        raise damaged(run.path / "tree.npy", f"its rows are not the merges of {n_leaves:,} images")
    return np.asarray(tree[:, :2], np.int64)


def _induced(merges: Ints, rows: Ints, n_leaves: int) -> Ints:
    """The merges of a tree over `n_leaves` as seen by some leaves: (n - 1, 2)."""
    seen = np.full(2 * n_leaves - 1, -1)  # the number of each node among ours; -1: none below it
    seen[rows] = np.arange(len(rows))
    below = seen.tolist()
    pairs: list[tuple[int, int]] = []
    for node, (a, b) in enumerate(merges.tolist(), start=n_leaves):
        left = below[a]
        right = below[b]
        if left >= 0 and right >= 0:
            below[node] = len(rows) + len(pairs)
            pairs.append((left, right))
        else:
            below[node] = max(left, right)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def cut(linkage: Ints, rows: Ints, n_parts: int) -> list[Ints]:
    """Undo the last `n_parts` - 1 merges: the rows of each part, the largest first."""
    n = len(rows)
    parent = np.arange(2 * n - 1)
    for i in range(n - n_parts):
        parent[linkage[i]] = n + i
    while not np.array_equal(above := parent[parent], parent):
        parent = above
    roots = parent[:n]
    parts = [rows[roots == root] for root in np.unique(roots)]
    return sorted(parts, key=lambda part: (-len(part), int(part[0])))
