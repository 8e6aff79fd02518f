"""The tree of categories as a nested list, which opens and closes without a script."""

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.clustering.category_tree import CategoryTree
from shoal.report.not_in_run import NotInRun
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Category

MAX_OPEN = 60
"""With more categories, only the branches near the root are open."""


@dataclass(frozen=True, slots=True)
class Branch:
    """An inner node: the start of its list, or the end if `n_categories` is 0."""

    n_categories: int = 0
    height: float = 0.0
    indent: float = 0.0
    """Difference in height to its parent, as a share of the root's height."""
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class Leaf:
    """A category, and its most typical image."""

    category: Category
    row: int
    indent: float


def category_tree(run: ReviewedRun) -> CategoryTree:
    """Return the tree of the categories that have images; raise `NotInRun` if there is none."""
    if not run.has("embeddings.npy"):
        raise NotInRun("No tree of categories: the run has no embeddings.")
    with_images = [row for row in run.categories if row.category_id in run.members]
    if len(with_images) < 2:
        raise NotInRun("No tree of categories: the run has fewer than two with images.")
    return CategoryTree.of_members(
        [row.category for row in with_images],
        [run.members[row.category_id] for row in with_images],
        run.vectors("embeddings"),
    )


def tree_list(run: ReviewedRun) -> list[Branch | Leaf]:
    """Return the nodes of the tree in the order of the page; each branch has a start and an end."""
    return list(_nodes(run, category_tree(run)))


def _nodes(run: ReviewedRun, tree: CategoryTree) -> Iterator[Branch | Leaf]:
    n_leaves = len(tree.names)
    category_of = {row.category: row for row in run.categories}
    heights = tree.heights
    parents = tree.parents
    top = heights[-1] or 1.0
    end = -1
    stack = [len(heights) - 1]
    while stack:
        node = stack.pop()
        if node == end:
            yield Branch()
            continue
        indent = 0.0
        if parents[node] >= 0:
            indent = (heights[parents[node]] - heights[node]) / top
        if node < n_leaves:
            category = category_of[tree.names[node]]
            yield Leaf(category, int(run.members[category.category_id][0]), indent)
            continue
        first, second, height, n_categories = tree.linkage[node - n_leaves].tolist()
        # The merges nearest to the root make MAX_OPEN branches.
        is_open = len(heights) - node <= MAX_OPEN
        yield Branch(int(n_categories), height, indent, is_open)
        stack += [end, int(second), int(first)]
