"""The tree of categories as a nested list, which opens and closes without a script."""

from contextlib import suppress
from dataclasses import replace

from shoal.clustering.category_tree import CategoryTree
from shoal.errors import NotInRun
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Category
from shoal.settings import Plain

N_LARGEST = 3

# With more categories, only the branches near the root are open
MAX_OPEN = 60


def category_tree(run: ReviewedRun) -> CategoryTree:
    """Return the tree of the categories that have images; raise `NotInRun` if there is none."""
    with_images = [row for row in run.categories if row.size]
    if len(with_images) < 2:
        raise NotInRun("No tree of categories: the run has fewer than two with images.")
    return CategoryTree.of_members(
        [row.category for row in with_images],
        [run.members[row.category_id] for row in with_images],
        run.vectors(run.clustered),
    )


def categories_in_tree(run: ReviewedRun) -> list[Category]:
    """Return the categories of a run, with their parents in the tree after its review."""
    if run.review is None:
        return run.categories
    parents = {}
    with suppress(NotInRun):
        parents = category_tree(run).parent_names
    return [replace(row, parent=parents.get(row.category, "")) for row in run.categories]


def tree_list(run: ReviewedRun) -> list[Plain]:
    """Return the nodes of the tree in the order of the page.

    A node is a category, the start of a branch with its largest categories, or its end: empty.
    `indent` is the difference in height to its parent, as a share of the root's height.
    """
    tree = category_tree(run)
    category_of = {category.category: category for category in run.categories}
    heights = tree.heights
    parents = tree.parents
    largest = [[category_of[name]] for name in tree.names]
    for first, second in tree.linkage[:, :2].astype(int):
        below = largest[first] + largest[second]
        largest.append(sorted(below, key=lambda category: -category.size)[:N_LARGEST])
    end = -1
    nodes: list[Plain] = []
    stack = [len(heights) - 1]
    while stack:
        at = stack.pop()
        if at == end:
            nodes.append({})
            continue
        # The parent of the root is -1, others have a higher number than their children.
        indent = (heights[max(at, parents[at])] - heights[at]) / (heights[-1] or 1.0)
        if at < len(tree.names):
            nodes.append({"category": category_of[tree.names[at]], "indent": indent})
            continue
        first, second, height, n_categories = tree.linkage[at - len(tree.names)].tolist()
        nodes.append(
            {
                "n_categories": int(n_categories),
                "largest": largest[at],
                "height": height,
                "indent": indent,
                # The merges nearest to the root make MAX_OPEN branches.
                "is_open": len(heights) - at <= MAX_OPEN,
            }
        )
        stack += [end, int(second), int(first)]
    return nodes
