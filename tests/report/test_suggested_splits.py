"""Categories that are two in truth are suggested to be split, and one that is merely large is not."""

from pathlib import Path

import numpy as np
import pytest
from scipy.cluster.hierarchy import ward

from shoal.report.page import render_report
from shoal.report.snapshot import NotInRun, Snapshot
from shoal.report.suggested_splits import suggested_splits
from shoal.runs import Assignment, Run


def made(tmp_path: Path, sizes: dict[str, list[int]]) -> Run:
    """Groups around far places, several of them in one category where it has several sizes."""
    rng = np.random.default_rng(0)
    groups = [(name, size) for name, each in sizes.items() for size in each]
    x = np.concatenate(
        [rng.normal(0, 0.1, (size, 8)) + np.eye(8)[at] for at, (_, size) in enumerate(groups)]
    )
    names = [name for name, size in groups for _ in range(size)]
    run = Run.create(tmp_path / "run")
    run.write_array("embeddings", x.astype(np.float32))
    run.write_array("tree", ward(x))
    about = {"is_novel": True, "confidence": 0.9, "outlier_score": 0.1}
    ids = list(sizes)
    run.write_assignments(
        Assignment(path=f"{at:03d}.png", category_id=ids.index(name), category=name, **about)
        for at, name in enumerate(names)
    )
    return run


def test_a_large_category_of_two_groups_is_suggested_with_its_groups(tmp_path: Path) -> None:
    run = made(tmp_path, {"a": [20], "b": [20], "c": [20], "both": [30, 25]})
    (found,) = suggested_splits(Snapshot(run))
    assert (found.category.category, found.times_usual) == ("both", 2.75)
    assert [sorted(group.tolist()) for group in found.groups] == [
        [*range(60, 90)],
        [*range(90, 115)],
    ]
    assert found.separation > 5
    page = render_report(run)
    assert "2.8 times the usual size; the two largest groups have a separation of" in page


def test_a_large_category_of_one_group_and_a_small_one_of_two_are_not(tmp_path: Path) -> None:
    run = made(tmp_path, {"a": [20], "b": [20], "pair": [10, 10], "large": [60]})
    assert suggested_splits(Snapshot(run)) == []
    assert "None: no category of twice the usual size" in render_report(run)


def test_without_a_tree_there_are_no_suggestions(tmp_path: Path) -> None:
    run = made(tmp_path, {"a": [20], "b": [20]})
    run.drop("tree.npy")
    with pytest.raises(NotInRun, match="Suggested splits are left out: the run holds no tree"):
        suggested_splits(Snapshot(run))
