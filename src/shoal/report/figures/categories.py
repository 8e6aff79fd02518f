"""Categories against each other: the top of the tree, and where labeled images landed.

K clusters of the tree, N images.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from shoal.arrays import Floats, Ints
from shoal.clustering.matching import contingency
from shoal.clustering.tree import Tree
from shoal.errors import DataError
from shoal.report.figures.style import (
    KNOWN,
    MARKERS,
    MUTED,
    NOVEL,
    PAPER,
    new_figure,
    plain,
    styled,
)
from shoal.report.snapshot import NO_CATEGORY, NotInRun, Snapshot
from shoal.runs import Run
from shoal.text import shown

MAX_LEAVES = 60
"""Clusters drawn in the dendrogram; with more categories, the tree is cut higher up."""
MAX_LABELS = 25
"""Given labels drawn in the confusion; with more, those whose images were scattered most."""


@dataclass(frozen=True, slots=True)
class Top:
    """The top of the tree: K clusters, the names of their categories, and how they join."""

    labels: Ints
    """(N,) the cluster of each image, 0 … K-1."""
    names: tuple[str, ...]
    is_novel: tuple[bool, ...]
    joins: tuple[tuple[int, int, float], ...]
    """(kept, gone, height) per join, lowest first; the joined cluster goes on as `kept`."""
    is_whole: bool
    """Whether every category has a cluster of its own here."""


def top_of_tree(run: Snapshot) -> Top:
    """Cut the tree into as many clusters as there are categories, at most `MAX_LEAVES`, and name each by its images."""
    missing = "The dendrogram is left out: "
    if not run.has("tree.npy"):
        raise NotInRun(f"{missing}the run holds no tree.")
    linkage = run.array("tree")
    if len(linkage) + 1 != len(run.assignments) or linkage.ndim != 2:
        raise NotInRun(
            f"{missing}its tree is of {len(linkage) + 1} images, the run of {len(run.assignments)}."
        )
    n_categories = len(set(run.category_ids.tolist()) - {NO_CATEGORY})
    if n_categories < 2:
        raise NotInRun(f"{missing}there is nothing to join, the run has {n_categories} category.")
    try:
        tree = Tree(linkage)
    except DataError as error:
        raise NotInRun(f"{missing}its tree cannot be read ({error}).") from error
    merges = tree.merges(min(n_categories, MAX_LEAVES))
    joins = zip(merges.kept.tolist(), merges.gone.tolist(), merges.heights.tolist(), strict=True)
    names, is_novel = zip(*(_named(run, rows) for rows in _groups(merges.start)), strict=True)
    return Top(merges.start, names, is_novel, tuple(joins), n_categories <= MAX_LEAVES)


@styled
def dendrogram(run: Run) -> Figure:
    """The top of the tree: categories that join far left are nearest; circles are known, diamonds novel."""
    top = top_of_tree(Snapshot.of(run))
    left = _left_end([height for *_, height in top.joins])
    positions, lines = _drawn(top, left)
    figure = new_figure(5.2, 0.7 + 0.22 * len(top.names))
    axes = plain(figure.add_subplot(), grid="x")
    axes.add_collection(LineCollection(lines, colors=MUTED, linewidths=1.2))
    for is_novel in (False, True):
        at = [
            position
            for position, novel in zip(positions, top.is_novel, strict=True)
            if novel is is_novel
        ]
        color = NOVEL if is_novel else KNOWN
        axes.plot(
            [left] * len(at),
            at,
            MARKERS[is_novel],
            color=color,
            markersize=5,
            clip_on=False,
            zorder=3,
        )
    axes.set_yticks(positions, [shown(name, 28) for name in top.names])
    axes.tick_params(axis="y", length=0, pad=8)
    axes.spines["left"].set_visible(False)
    right = max((height for *_, height in top.joins), default=0)
    axes.set_xlim(left, right + 0.03 * (right - left) or 1)  # one category joins nothing
    axes.set_ylim(len(top.names) - 0.4, -0.6)
    axes.set_xlabel("height at which two branches join")
    return figure


@styled
def confusion(run: Run) -> Figure:
    """Where labeled images landed: a row per given label, a column per category, shares of the row."""
    snapshot = Snapshot.of(run)
    if not snapshot.is_labeled.any():
        raise NotInRun("The confusion of known categories is left out: no image came with a label.")
    counts, labels, columns, is_cut = _landed(snapshot)
    shares = counts / counts.sum(axis=1, keepdims=True)
    size = 1.5 + 0.27 * max(len(labels), len(columns))
    figure = new_figure(max(size + 0.8, 3.4), max(size, 2.6))
    axes = plain(figure.add_subplot(), grid=None)
    axes.imshow(
        shares,
        cmap=LinearSegmentedColormap.from_list("share", [PAPER, KNOWN]),
        vmin=0,
        vmax=1,
        aspect="equal",
    )
    _write_counts(axes, counts, shares)
    axes.set_xticks(range(len(columns)), [shown(name, 18) for name in columns], rotation=90)
    axes.set_yticks(range(len(labels)), [shown(name, 18) for name in labels])
    axes.tick_params(length=0)
    axes.set(
        xlabel="category found",
        ylabel="label given" + (f" ({len(labels)} most scattered)" if is_cut else ""),
    )
    return figure


def _landed(run: Snapshot) -> tuple[Floats, list[str], list[str], bool]:
    """Counts (L, C) of labeled images per given label and category found.

    All novel categories share a column.
    """
    columns = [run.column(name) for name in ("label_given", "is_novel", "category")]
    landed = [
        (label, "" if is_novel else name)
        for label, is_novel, name in zip(*columns, strict=True)
        if label
    ]
    given, landed_in = (np.array(names, dtype=object) for names in zip(*landed, strict=True))
    table, categories, labels = contingency(given.astype(str), landed_in.astype(str))  # (C, L)
    counts = table.T.astype(np.float64)
    hits = np.array([counts[at, categories == label].sum() for at, label in enumerate(labels)])
    keep = np.sort(np.argsort(hits / counts.sum(axis=1), kind="stable")[:MAX_LABELS])
    names = sorted(
        range(len(categories)),
        key=lambda at: (categories[at] == "", _name_order(categories[at], labels)),
    )
    used = [at for at in names if counts[keep, at].any()]
    columns = [str(categories[at]) or "any novel" for at in used]
    return counts[keep][:, used], [str(labels[at]) for at in keep], columns, len(keep) < len(labels)


def _name_order(name: object, labels: object) -> tuple[int, str]:
    at = np.flatnonzero(np.asarray(labels) == name)
    return (int(at[0]) if len(at) else 10**9, str(name))


def _write_counts(axes: Axes, counts: Floats, shares: Floats) -> None:
    for (y, x), n in np.ndenumerate(counts):
        if n:
            color = PAPER if shares[y, x] > 0.5 else MUTED
            axes.text(x, y, f"{int(n)}", ha="center", va="center", fontsize=6.5, color=color)


def _groups(labels: Ints) -> list[Ints]:
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.cumsum(np.bincount(labels))[:-1])


def _named(run: Snapshot, rows: Ints) -> tuple[str, bool]:
    """The category most images of a cluster have, and how many others it holds."""
    n_by_category = Counter(run.category_ids[rows].tolist())
    category_id = min(n_by_category, key=lambda key: (-n_by_category[key], key))
    row = next(run.assignments[at] for at in rows.tolist() if run.category_ids[at] == category_id)
    others = len(n_by_category) - 1
    return row.category + (f" + {others}" if others else ""), row.is_novel


def _left_end(heights: list[float]) -> float:
    """Where the drawn heights begin: a tenth of their range below the lowest, so that the joins fill the picture."""
    return max(0.0, min(heights) - 0.1 * (max(heights) - min(heights))) if heights else 0.0


def _drawn(top: Top, left: float) -> tuple[list[float], list[list[tuple[float, float]]]]:
    """Where each cluster stands, so that no lines cross, and a bracket per join.

    Clusters begin at `left`.
    """
    order: dict[int, list[int]] = {at: [at] for at in range(len(top.names))}
    for kept, gone, _ in top.joins:
        order[kept] += order.pop(gone)
    position = {cluster: float(at) for at, cluster in enumerate(next(iter(order.values())))}
    tip = {
        cluster: (left, y) for cluster, y in position.items()
    }  # (height, y) of each branch so far
    lines = []
    for kept, gone, height in top.joins:
        (x1, y1) = tip[kept]
        (x2, y2) = tip.pop(gone)
        lines.append([(x1, y1), (height, y1), (height, y2), (x2, y2)])
        tip[kept] = (height, (y1 + y2) / 2)
    return [position[at] for at in range(len(top.names))], lines
