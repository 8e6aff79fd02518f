"""The dendrogram of the tree of categories."""

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import leaves_list

from shoal.clustering.category_tree import CategoryTree
from shoal.report.figures.style import KNOWN, MARKERS, MUTED, NOVEL, house_style, new_figure, plain
from shoal.report.tree_list import category_tree
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run
from shoal.text import shown

MAX_INCHES = 150
"""Maximum height of a dendrogram; with more than about 680 categories the names overlap."""


@house_style()
def dendrogram(run: Run) -> Figure:
    """The tree of categories: those that join further left are more similar. Circles are known,
    diamonds novel.
    """
    reviewed = ReviewedRun.of(run)
    tree = category_tree(reviewed)
    lowest, right = tree.linkage[[0, -1], 2].tolist()
    # A tenth of the range below the lowest merge, so that the merges fill the figure.
    left = max(0.0, lowest - 0.1 * (right - lowest))
    order = leaves_list(tree.linkage).tolist()
    figure = new_figure(5.2, min(0.7 + 0.22 * len(order), MAX_INCHES))
    axes = plain(figure.add_subplot(), grid="x")
    axes.add_collection(LineCollection(_brackets(tree, order, left), colors=MUTED, linewidths=1.2))
    novel_names = {row.category for row in reviewed.categories if row.is_novel}
    names = [tree.names[leaf] for leaf in order]
    for is_novel, color in ((False, KNOWN), (True, NOVEL)):
        ys = [y for y, name in enumerate(names) if (name in novel_names) == is_novel]
        xs = [left] * len(ys)
        axes.plot(xs, ys, MARKERS[is_novel], color=color, markersize=5, clip_on=False, zorder=3)
    axes.set_yticks(range(len(names)), [shown(name, 28) for name in names])
    axes.tick_params(axis="y", length=0, pad=8)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(left, right + 0.03 * (right - left) or 1)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("mean cosine distance")
    return figure


def _brackets(tree: CategoryTree, order: list[int], left: float) -> list[list[tuple[float, float]]]:
    """Return a bracket per merge: its corners as (height, position)."""
    xs = [left] * len(order) + tree.linkage[:, 2].tolist()
    ys = np.argsort(order).tolist()
    brackets = []
    for first, second, x, _ in tree.linkage.tolist():
        a = int(first)
        b = int(second)
        brackets.append([(xs[a], ys[a]), (x, ys[a]), (x, ys[b]), (xs[b], ys[b])])
        ys.append((ys[a] + ys[b]) / 2)
    return brackets
