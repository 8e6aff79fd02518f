"""Searches that the page offers, tested without a server."""

from pathlib import Path

import numpy as np

from shoal.clustering.tree import CategoryTree
from shoal.discovery.results import ClusterSettings, cluster_embeddings
from shoal.report.rendering import category_tree
from shoal.review import verbs
from shoal.review.actions import Action, Group
from shoal.review.review import Review
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Run
from shoal.server.search import Search
from small_runs import embedded, write_small


def test_images_are_compared_in_float32_where_a_large_run_has_them_in_float16(
    tmp_path: Path,
) -> None:
    x = np.random.default_rng(0).normal(size=(80, 64)).astype(np.float16)
    found = []
    for name, dtype in (("half", np.float16), ("single", np.float32)):
        run = write_small(tmp_path / name, ids=(0,) * 80, names=("novel-001",))
        run.write_array("embeddings", x.astype(dtype))
        found.append(Search(Review(run)).similar(3))
    assert found[0] == found[1]


def test_near_duplicates_are_next_to_each_other(tmp_path: Path) -> None:
    """The result equals a comparison of all pairs; duplicates across categories are not listed."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 16))
    x[[5, 30]] = x[3] + 0.2 * rng.normal(size=(2, 16))
    x[7] = x[6] + 0.1 * rng.normal(size=16)
    ids = (0,) * 20 + (1,) * 20
    run = write_small(tmp_path / "run", ids=ids, names=("novel-001", "novel-002"))
    run.write_array("frozen", x.astype(np.float32))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    found = Search(Review(run)).near_duplicates()
    assert found["rows"] == [6, 7, 3, 5]
    partners = [7, 6, 5, 3]
    expected = [unit[row] @ unit[other] for row, other in zip(found["rows"], partners, strict=True)]
    np.testing.assert_allclose(found["similarity"], expected, atol=1e-3)


def test_candidates_leave_the_order_of_the_mean_for_what_was_refused(tmp_path: Path) -> None:
    """Of two groups near category 0, refusing an image of the nearer one ranks that group last."""
    kinds = np.repeat(np.arange(3), 20)
    spread = np.random.default_rng(0).normal(size=(60, 8), scale=0.1)
    centers = np.array([[1, 0, 0, 1.0], [0, 1, 0, 1.2], [0, 0, 1, 1.0]])
    x = np.pad(centers, ((0, 0), (0, 4)))[kinds] + spread
    ids = (0,) * 5 + (1,) * 55
    run = write_small(tmp_path / "run", ids=ids, names=("novel-001", "novel-002"), labeled=())
    run.write_array("embeddings", x.astype(np.float32))
    review = Review(run)
    review.act(verbs.decide, "confirm", "novel-001", None)
    search = Search(review)
    first = search.candidates(0)["rows"]
    assert kinds[first[:15]].tolist() == [0] * 15
    refused = next(row for row in first if kinds[row] == kinds[first[15]])
    group = Group(category=0, rows=np.array([refused]))
    review.act(lambda _: Action(kind="refuse", category=0, groups=(group,)))
    then = search.candidates(0)["rows"]
    assert refused not in then
    assert kinds[then[:15]].tolist() == [0] * 15
    assert {*kinds[then[-19:]]} == {kinds[refused]}


def parents_on_the_page(run: Run) -> dict[str, str]:
    tree = Search(Review(run)).tree()
    name_of = {row.category_id: row.category for row in run.categories}
    merges = np.pad(tree["merges"], ((0, 0), (0, 1)))
    return CategoryTree(
        merges, tuple(name_of[number] for number in tree["categories"])
    ).parent_names


def test_page_report_and_table_have_the_tree_of_the_clustered_embeddings(tmp_path: Path) -> None:
    """Without shifted.npy, as for methods that do not shift, it is that of embeddings.npy."""
    x = np.random.default_rng(0).normal(size=(80, 6))
    given = embedded(x, np.repeat([0, 1, 2, -1], 20))
    run = cluster_embeddings(given, tmp_path / "run", ClusterSettings(n_clusters=12), device="cpu")
    shifted = category_tree(ReviewedRun.of(run)).parent_names
    assert (
        shifted == parents_on_the_page(run) == {row.category: row.parent for row in run.categories}
    )
    run.drop("shifted.npy")
    unshifted = category_tree(ReviewedRun.of(run)).parent_names
    assert unshifted == parents_on_the_page(run) != shifted
