"""Runs with average linkage: tables, facts, report, review and new images."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from photo_runs import run_on
from shoal.clustering.tree import Tree
from shoal.data.readers import read_collection
from shoal.discovery.api import load
from shoal.discovery.reporter import Reporter
from shoal.discovery.results import write_report
from shoal.runs import Run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def both(
    photos, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Run, Run, list[str]]:
    """Runs of the same photos with Ward's and with average linkage, and the messages of the
    latter."""
    wanted = replace(settings, n_clusters=5, train=False)
    messages = list[str]()
    ward = run_on(photos, tmp_path / "ward", wanted)
    monkeypatch.setattr("shoal.clustering.inference.choose_linkage", lambda *_: "average")
    average = run_on(photos, tmp_path / "average", wanted, reporter=Reporter(messages.append))
    write_report(average)
    return ward, average, messages


def test_the_linkage_is_reported_and_the_tree_is_the_one_that_was_cut(both, photos) -> None:
    ward, average, messages = both
    assert [run.json("shifts")["linkage_method"] for run in both[:2]] == ["ward", "average"]
    assert sum(line.startswith("average linkage is used") for line in messages) == 1
    trees = [Tree(np.array(run.array("tree"))) for run in (ward, average)]
    n_small = 6 * 5
    np.testing.assert_array_equal(trees[0].cut(n_small), trees[1].cut(n_small))
    assert not np.array_equal(trees[0].heights[-5:], trees[1].heights[-5:])
    assert (np.diff(trees[1].heights) >= 0).all()
    assert 'class="tree"' in (average.path / "report.html").read_text(encoding="utf-8")


def test_a_run_with_average_linkage_can_be_reviewed_split_and_used_to_assign(both, photos) -> None:
    run = load(both[1].path)
    largest = max(run.categories, key=lambda category: category.size)
    run.split(largest.category, 2)  # at a node of the tree
    run.rename(largest.category, "of all")
    found = load(run.path)
    sizes = {category.category: category.size for category in found.categories}
    assert len(sizes) == 6
    assert 0 < sizes["of all"] < largest.size
    later, skipped = found.assigner(device="cpu").assign_images(read_collection(photos.folder))
    assert not skipped
    assert {row.category for row in later} <= set(sizes)
