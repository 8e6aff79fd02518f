import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from shoal.errors import DataError
from shoal.report.map import stratified
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Run


def image(
    path: str, category_id: int, *, confidence: float = 0.9, outlier: float = 0.1, label: str = ""
) -> Assignment:
    return Assignment(
        path=path,
        label_given=label,
        category_id=category_id,
        category=f"c{category_id}",
        is_novel=category_id > 0,
        confidence=confidence,
        outlier_score=outlier,
    )


def test_the_report_needs_no_torch() -> None:
    code = "import sys, shoal.report.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_members_go_from_typical_to_not_by_outlier_score_then_confidence_then_row(
    plain_run: Callable[..., Run],
) -> None:
    rows = [
        image("far", 0, outlier=0.9),
        image("b", 0),
        image("a", 0),
        image("unsure", 0, confidence=0.2),
    ]
    assert ReviewedRun.of(plain_run(rows)).members[0].tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("name", ["embeddings", "shifted", "frozen"])
def test_an_array_of_other_images_or_with_holes_is_refused_with_its_name(
    plain_run: Callable[..., Run], name: str
) -> None:
    run = plain_run([image("a", 0), image("b", 0)])
    for array in (
        np.ones((3, 4)),
        np.array([[1.0, np.nan], [1.0, 2.0]]),
        np.array([[1.0, 2.0], [0.0, 0.0]]),
    ):
        run.write_array(name, array)
        with pytest.raises(DataError):
            ReviewedRun.of(run).vectors(name)
    run.write_array(name, np.eye(2))
    assert ReviewedRun.of(run).vectors(name) is not None


def test_a_sample_keeps_every_category_and_its_share() -> None:
    ids = np.array([0] * 900 + [1] * 99 + [2])
    rows = stratified(ids, 100)
    assert np.bincount(ids[rows]).tolist() == [90, 9, 1]
    assert np.array_equal(rows, stratified(ids, 100))
    assert (np.diff(rows) > 0).all()
    assert stratified(ids, 5000).tolist() == list(range(1000))
