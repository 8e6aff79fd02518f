"""Categories against each other: the top of the tree, and where labeled images landed.

K clusters of the tree, N images.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from shoal.arrays import Floats, Ints
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
from shoal.report.not_in_run import NotInRun
from shoal.review.actions import NO_CATEGORY
from shoal.review.reviewed_run import ReviewedRun
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
    names: list[str]
    is_novel: list[bool]
    joins: list[tuple[int, int, float]]
    """(kept, gone, height) per join, lowest first; the joined cluster goes on as `kept`."""


def top_of_tree(run: ReviewedRun) -> Top:
    """Cut the tree into a cluster per category, at most `MAX_LEAVES`; each is named by its
    images.
    """
    missing = "The dendrogram is left out: "
    if not run.has("tree.npy"):
        raise NotInRun(f"{missing}the run holds no tree.")
    linkage = run.array("tree")
    n_images = len(run.assignments)
    if len(linkage) + 1 != n_images or linkage.ndim != 2:
        raise NotInRun(f"{missing}its tree is of {len(linkage) + 1} images, the run of {n_images}.")
    n_categories = len(run.members.keys() - {NO_CATEGORY})
    if n_categories < 2:
        raise NotInRun(f"{missing}there is nothing to join, the run has {n_categories} category.")
    try:
        tree = Tree(linkage)
    except DataError as error:
        raise NotInRun(f"{missing}its tree cannot be read ({error}).") from error
    merges = tree.merges(min(n_categories, MAX_LEAVES))
    joins = zip(merges.kept.tolist(), merges.gone.tolist(), merges.heights.tolist(), strict=True)
    names = []
    is_novel = []
    for cluster in range(int(merges.start.max()) + 1):
        rows = np.flatnonzero(merges.start == cluster)
        ids, first, sizes = np.unique(run.category_ids[rows], return_index=True, return_counts=True)
        largest = int(sizes.argmax())
        image = run.assignments[int(rows[first[largest]])]
        others = f" + {len(ids) - 1}" if len(ids) > 1 else ""
        names.append(image.category + others)
        is_novel.append(image.is_novel)
    return Top(merges.start, names, is_novel, list(joins))


@styled
def dendrogram(run: Run) -> Figure:
    """The top of the tree: categories that join far left are nearest; circles are known,
    diamonds novel.
    """
    top = top_of_tree(ReviewedRun.of(run))
    heights = [height for *_, height in top.joins]
    right = max(heights)
    # A tenth of the range below the lowest join, so that the joins fill the picture.
    left = max(0.0, min(heights) - 0.1 * (right - min(heights)))
    positions, lines = _drawn(top, left)
    figure = new_figure(5.2, 0.7 + 0.22 * len(top.names))
    axes = plain(figure.add_subplot(), grid="x")
    axes.add_collection(LineCollection(lines, colors=MUTED, linewidths=1.2))
    for novel, color in ((False, KNOWN), (True, NOVEL)):
        at = [y for y, is_novel in zip(positions, top.is_novel, strict=True) if is_novel is novel]
        axes.plot(
            [left] * len(at),
            at,
            MARKERS[novel],
            color=color,
            markersize=5,
            clip_on=False,
            zorder=3,
        )
    axes.set_yticks(positions, [shown(name, 28) for name in top.names])
    axes.tick_params(axis="y", length=0, pad=8)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(left, right + 0.03 * (right - left) or 1)
    axes.set_ylim(len(top.names) - 0.4, -0.6)
    axes.set_xlabel("height at which two branches join")
    return figure


@styled
def confusion(run: Run) -> Figure:
    """Where labeled images landed: a row per given label, a column per category, shares of the
    row.
    """
    reviewed = ReviewedRun.of(run)
    if not reviewed.is_labeled.any():
        raise NotInRun("The confusion of known categories is left out: no image came with a label.")
    counts, labels, columns, is_cut = _landed(reviewed)
    shares = counts / counts.sum(axis=1, keepdims=True)
    size = 1.5 + 0.27 * max(len(labels), len(columns))
    figure = new_figure(max(size + 0.8, 3.4), max(size, 2.6))
    axes = plain(figure.add_subplot(), grid=None)
    colors = LinearSegmentedColormap.from_list("share", [PAPER, KNOWN])
    axes.imshow(shares, cmap=colors, vmin=0, vmax=1, aspect="equal")
    for (y, x), n in np.ndenumerate(counts):
        if n:
            color = PAPER if shares[y, x] > 0.5 else MUTED
            axes.text(x, y, f"{int(n)}", ha="center", va="center", fontsize=6.5, color=color)
    axes.set_xticks(range(len(columns)), [shown(name, 18) for name in columns], rotation=90)
    axes.set_yticks(range(len(labels)), [shown(name, 18) for name in labels])
    axes.tick_params(length=0)
    scattered = f" ({len(labels)} most scattered)" if is_cut else ""
    axes.set(xlabel="category found", ylabel=f"label given{scattered}")
    return figure


def _landed(run: ReviewedRun) -> tuple[Floats, list[str], list[str], bool]:
    """Counts (L, C) of labeled images per given label and category found, with the names of both.

    All novel categories share the last column. Last: whether labels were left out.
    """
    counted: Counter[tuple[str, str]] = Counter()
    of_label: Counter[str] = Counter()
    for row in np.flatnonzero(run.is_labeled).tolist():
        image = run.assignments[row]
        counted[image.label_given, "" if image.is_novel else image.category] += 1
        of_label[image.label_given] += 1
    every = sorted(of_label)
    worst = sorted(every, key=lambda label: counted[label, label] / of_label[label])[:MAX_LABELS]
    labels = sorted(worst)
    found = {category for label, category in counted if label in worst}
    in_order = [name for name in every if name in found]
    in_order += sorted(found - {*every, ""})
    if "" in found:
        in_order.append("")
    counts = np.array(
        [[counted[label, name] for name in in_order] for label in labels], dtype=np.float64
    )
    return counts, labels, [name or "any novel" for name in in_order], len(labels) < len(every)


def _drawn(top: Top, left: float) -> tuple[list[float], list[list[tuple[float, float]]]]:
    """Where each cluster stands, so that no lines cross, and a bracket per join.

    Clusters begin at `left`.
    """
    order: dict[int, list[int]] = {at: [at] for at in range(len(top.names))}
    for kept, gone, _ in top.joins:
        order[kept] += order.pop(gone)
    position = {cluster: float(at) for at, cluster in enumerate(next(iter(order.values())))}
    tip = {cluster: (left, y) for cluster, y in position.items()}  # (height, y) of each branch
    lines = []
    for kept, gone, height in top.joins:
        x1, y1 = tip[kept]
        x2, y2 = tip.pop(gone)
        lines.append([(x1, y1), (height, y1), (height, y2), (x2, y2)])
        tip[kept] = (height, (y1 + y2) / 2)
    return [position[at] for at in range(len(top.names))], lines
