"""A category that the run has marked is shown with both of its parts until a review splits it."""

from pathlib import Path

import numpy as np

from digit_runs import write_plain
from shoal.report.page import render_report
from shoal.report.summary import suggested_splits
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Category, Run


def made(tmp_path: Path, probability: float, *, is_apart: list[bool]) -> Run:
    """Write a run of eight bulldogs, the first three of them labeled, and four cats."""
    about = {"is_novel": False, "confidence": 0.9, "outlier_score": 0.1}
    rows = [
        Assignment(
            path=f"{at:02d}.png",
            label_given="bulldog" if at < 3 else "",
            category_id=0 if at < 8 else 1,
            category="bulldog" if at < 8 else "cat",
            is_apart=is_apart[at],
            **about,
        )
        for at in range(12)
    ]
    numbers = {"is_novel": False, "confidence": 0.9}
    categories = [
        Category(
            category_id=0,
            category="bulldog",
            size=8,
            n_labeled=3,
            mixed_probability=probability,
            **numbers,
        ),
        Category(category_id=1, category="cat", size=4, n_labeled=0, **numbers),
    ]
    run = write_plain(tmp_path / "run", rows, categories)
    run.write_array("embeddings", np.eye(12, dtype=np.float32))
    return run


def test_a_marked_category_is_shown_with_labels_on_one_side(tmp_path: Path) -> None:
    run = made(tmp_path, 0.4, is_apart=[at in (5, 6, 7) for at in range(12)])
    ((category, groups),) = suggested_splits(ReviewedRun.of(run))
    assert category.category == "bulldog"
    assert [sorted(group.tolist()) for group in groups] == [[0, 1, 2, 3, 4], [5, 6, 7]]
    words = "3 labeled and 2 unlabeled images on one side, 3 unlabeled on the other"
    assert words in " ".join(render_report(run).split())


def test_a_category_below_the_threshold_or_without_a_second_part_is_not_shown(
    tmp_path: Path,
) -> None:
    unlikely = made(tmp_path / "a", 0.05, is_apart=[at in (5, 6, 7) for at in range(12)])
    assert suggested_splits(ReviewedRun.of(unlikely)) == []
    parted = made(tmp_path / "b", 0.9, is_apart=[at >= 8 for at in range(12)])
    assert suggested_splits(ReviewedRun.of(parted)) == []
