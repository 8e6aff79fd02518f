"""What a mean shift does to an image's neighbors: the nearest images before it and after it.

N images, Q queries, k neighbors. As in the paper's qualitative figure, the shifted embedding of an image asks among the
embeddings of all images.
"""

from dataclasses import dataclass

import numpy as np

from shoal.arrays import Floats, Ints, in_single
from shoal.report.snapshot import NotInRun, Snapshot, stratified
from shoal.words import count

SHOWN = 8
"""Neighbors shown per image."""
QUERIES = 1_000
"""Images whose neighbors are compared; the shown ones are taken from these."""
COMPARISONS = 200_000_000
"""Images times images that are compared: beyond 200,000 images fewer of them are asked, 60 or one per category."""
EXAMPLES = 6
BANK_ROWS = 1 << 15
"""Images that are compared with a block of queries at a time."""


@dataclass(frozen=True, slots=True)
class NeighborChange:
    """One image and its nearest images, before and after."""

    row: int
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChangedNeighbors:
    """The neighbors of a sample of images before and after the mean shift."""

    examples: tuple[NeighborChange, ...]
    """Those that changed most, one per category."""
    n_queries: int
    is_labeled: bool
    """Whether the queries are labeled images."""
    right_before: float
    """Of the labeled neighbors of labeled queries, the share with the query's label; NaN where there are none."""
    right_after: float


def neighbors(run: Snapshot) -> ChangedNeighbors:
    """Compare the nearest images before and after the mean shift; raises `NotInRun` where that cannot be done.

    Labeled images are asked where there are any, because only there right and wrong are known.
    """
    before = run.rows_of("embeddings")
    after = run.rows_of("shifted")
    if before is None or after is None or before.shape != after.shape:
        raise NotInRun(
            "Neighbors before and after a shift are left out: the run does not hold both sets of embeddings."
        )
    if len(before) < 3:
        raise NotInRun(
            f"Neighbors before and after a shift are left out: the run holds {count(len(before), 'image')}."
        )
    queries = np.flatnonzero(run.is_labeled) if run.is_labeled.any() else np.arange(len(before))
    n_queries = min(QUERIES, max(10 * EXAMPLES, COMPARISONS // len(before)))
    queries = queries[stratified(run.category_ids[queries], n_queries)]
    k = min(SHOWN, len(before) - 1)
    first = nearest(before[queries], before, queries, k)  # (Q, k)
    second = nearest(after[queries], before, queries, k)
    if np.array_equal(first, second):
        raise NotInRun(
            "Neighbors before and after a shift are left out: the shift changed none (no shift was chosen)."
        )
    return ChangedNeighbors(
        _examples(run, queries, first, second),
        len(queries),
        bool(run.is_labeled[queries].all()),
        _share_right(run, queries, first),
        _share_right(run, queries, second),
    )


def nearest(queries: Floats, bank: Floats, own: Ints, k: int, *, block: int = 256) -> Ints:
    """The k rows of `bank` most similar to each query (cosine), most similar first, the query's own row left out.

    The bank may be a mapped file: `BANK_ROWS` of it are held at a time.
    """
    queries, n_queries = in_single(queries), len(queries)
    best = np.full(
        (n_queries, k), -np.inf, np.result_type(queries, bank)
    )  # (Q, k) the most similar so far
    rows = np.full((n_queries, k), len(bank))  # (Q, k) which they are
    for first in range(0, len(bank), BANK_ROWS):
        part = in_single(bank[first : first + BANK_ROWS])  # (B, D)
        unit = part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
        for start in range(0, n_queries, block):
            asked = slice(start, start + block)
            likeness = queries[asked] @ unit.T  # (block, B)
            at = np.arange(len(likeness))
            column = own[asked] - first
            is_here = (column >= 0) & (column < len(unit))
            likeness[at[is_here], column[is_here]] = -np.inf
            top = np.argpartition(-likeness, min(k, len(unit)) - 1, axis=1)[
                :, :k
            ]  # (block, k) or fewer
            both = np.hstack([best[asked], np.take_along_axis(likeness, top, axis=1)])
            named = np.hstack([rows[asked], top + first])
            order = np.lexsort((named, -both), axis=1)[:, :k]
            best[asked] = np.take_along_axis(both, order, 1)
            rows[asked] = np.take_along_axis(named, order, 1)
    return rows.astype(np.int64)


def _examples(
    run: Snapshot, queries: Ints, before: Ints, after: Ints
) -> tuple[NeighborChange, ...]:
    """The queries with the most exchanged neighbors, no two of one category."""
    exchanged = np.array(
        [len(set(a) - set(b)) for a, b in zip(before.tolist(), after.tolist(), strict=True)]
    )
    chosen: dict[int, NeighborChange] = {}
    for at in np.argsort(-exchanged, kind="stable").tolist():
        category_id = int(run.category_ids[queries[at]])
        if category_id not in chosen and exchanged[at] and len(chosen) < EXAMPLES:
            chosen[category_id] = NeighborChange(
                int(queries[at]), tuple(before[at].tolist()), tuple(after[at].tolist())
            )
    return tuple(chosen.values())


def _share_right(run: Snapshot, queries: Ints, near: Ints) -> float:
    labels = np.array(run.column("label_given"), dtype=object)
    asked = np.repeat(labels[queries][:, None], near.shape[1], axis=1)
    both = (labels[near] != "") & (asked != "")
    return float((labels[near] == asked)[both].mean()) if both.any() else float("nan")
