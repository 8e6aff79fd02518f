import pytest

from shoal.errors import NotInRun
from shoal.report.rendering import tree_list
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run


def test_every_category_is_a_leaf_at_the_same_depth_and_every_branch_ends(digits: Run) -> None:
    """The indents above a leaf add up to the height of the root. A branch has the names of its
    largest categories."""
    names = []
    indents: list[float] = []
    branches: list[dict] = []
    sizes: list[list[int]] = []
    for node in tree_list(ReviewedRun.of(digits)):
        if "category" in node:
            names.append(node["category"].category)
            assert sum(indents) + node["indent"] == pytest.approx(1)
            for below in sizes:
                below.append(node["category"].size)
        elif not node:
            indents.pop()
            largest = sorted(sizes.pop(), reverse=True)[:3]
            assert [category.size for category in branches.pop()["largest"]] == largest
        else:
            indents.append(node["indent"])
            branches.append(node)
            sizes.append([])
    assert indents == []
    assert sorted(names) == sorted(row.category for row in digits.categories if row.size)


def test_a_run_without_embeddings_has_no_tree(plain_run) -> None:
    run = plain_run([])
    run.drop("embeddings.npy")
    with pytest.raises(NotInRun):
        tree_list(ReviewedRun.of(run))
