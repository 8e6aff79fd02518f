"""The dendrogram of the tree of categories."""

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import leaves_list

from shoal.clustering.category_tree import CategoryTree
from shoal.report.figures.style import KNOWN, MARKERS, MUTED, NOVEL, new_figure, plain, styled
from shoal.report.tree_list import category_tree
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run
from shoal.text import shown

MAX_INCHES = 150
"""Maximum height of a dendrogram; with more than about 680 categories the names overlap."""


@styled
def dendrogram(run: Run) -> Figure:
    """The tree of categories: those that join further left are more similar. Circles are known,
    diamonds novel.
    """
    reviewed = ReviewedRun.of(run)
    tree = category_tree(reviewed)
    merged_at = tree.linkage[:, 2]
    right = float(merged_at.max())
    # A tenth of the range below the lowest merge, so that the merges fill the figure.
    left = max(0.0, float(merged_at.min()) - 0.1 * (right - float(merged_at.min())))
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
    position = {leaf: y for y, leaf in enumerate(order)}
    tips = [(left, float(position[leaf])) for leaf in range(len(tree.names))]
    brackets = []
    for first, second, height, _ in tree.linkage.tolist():
        (x1, y1), (x2, y2) = tips[int(first)], tips[int(second)]
        brackets.append([(x1, y1), (height, y1), (height, y2), (x2, y2)])
        tips.append((height, (y1 + y2) / 2))
    return brackets
