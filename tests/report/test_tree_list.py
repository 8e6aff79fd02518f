import pytest

from shoal.report.not_in_run import NotInRun
from shoal.report.tree_list import Node, tree_list
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run


def test_every_category_is_a_leaf_at_the_same_depth_and_every_branch_ends(digits: Run) -> None:
    """The indents above a leaf add up to the height of the root."""
    names = []
    indents: list[float] = []
    for node in tree_list(ReviewedRun.of(digits)):
        if node.category:
            names.append(node.category.category)
            assert sum(indents) + node.indent == pytest.approx(1)
        elif node == Node():
            indents.pop()
        else:
            indents.append(node.indent)
    assert indents == []
    assert sorted(names) == sorted(row.category for row in digits.categories if row.size)


def test_a_run_without_embeddings_has_no_tree(plain_run) -> None:
    run = plain_run([])
    run.drop("embeddings.npy")
    with pytest.raises(NotInRun):
        tree_list(ReviewedRun.of(run))
