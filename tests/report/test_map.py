from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

from shoal.errors import NotInRun
from shoal.report import map as maps
from shoal.report.map import (
    cached_layouts,
    pca_layouts,
    principal_components,
    stages,
    tsne_layouts,
)
from shoal.report.page import map_points
from shoal.review.reviewed_run import ReviewedRun
from shoal.runs import Assignment, Run
from small_runs import append_metrics


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, 7)) @ np.diag([9, 5, 3, 1, 1, 1, 1.0])


@pytest.fixture
def run(plain_run: Callable[..., Run], x: np.ndarray) -> Run:
    found = plain_run(
        [
            Assignment(
                path=str(i),
                category_id=i % 3,
                category="c",
                is_novel=False,
                confidence=1,
                outlier_score=0,
            )
            for i in range(len(x))
        ]
    )
    found.write_array("embeddings", x)
    return found


def test_principal_components_are_those_of_scikit_learn_up_to_sign(x: np.ndarray) -> None:
    ours = principal_components(x, 3)
    theirs = PCA(3).fit_transform(x)
    signs = np.sign((ours * theirs).sum(axis=0))
    np.testing.assert_allclose(ours, theirs * signs, atol=1e-4)
    assert (ours[np.abs(ours).argmax(axis=0), [0, 1, 2]] > 0).all()


def test_before_and_after_are_those_of_training_else_of_the_shift(run: Run, x: np.ndarray) -> None:
    assert stages(ReviewedRun.of(run)) == {"embeddings": "Embeddings"}
    run.write_array("shifted", x)
    assert list(stages(ReviewedRun.of(run)).values()) == [
        "Before the mean shift",
        "After the mean shift",
    ]
    run.write_array("frozen", x)
    assert list(stages(ReviewedRun.of(run)).values()) == [
        "Before the mean shift",
        "After the mean shift",
    ]  # not trained
    run.write_json("shifts", {"accuracies": [0.9, 0.8, 0.7], "chosen": 0})
    assert stages(ReviewedRun.of(run)) == {"embeddings": "Embeddings"}  # not shifted either
    append_metrics(run, {"epoch": 1, "loss": 1.0})
    assert list(stages(ReviewedRun.of(run)).values()) == ["Before training", "After training"]
    assert [layout.title for layout in pca_layouts(ReviewedRun.of(run))] == [
        "Before training",
        "After training",
    ]


def test_tsne_is_drawn_once_and_is_kept_in_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "TSNE_STEPS", 300)
    monkeypatch.setattr(maps, "TSNE_IMAGES", 45)
    first = tsne_layouts(ReviewedRun.of(run))
    assert len(first[0].rows) == 45
    monkeypatch.setattr(maps, "tsne", None)  # fails if t-SNE runs again
    second = tsne_layouts(ReviewedRun.of(run))
    assert np.array_equal(first[0].points, second[0].points)
    assert np.array_equal(first[0].rows, second[0].rows)


def test_a_kept_map_of_other_stages_or_images_is_not_shown(run: Run, x: np.ndarray) -> None:
    def keep(**arrays: np.ndarray) -> None:
        np.savez(run.path / "map.npz", allow_pickle=False, **arrays)

    assert cached_layouts(ReviewedRun.of(run)) == []
    keep(rows=np.arange(5), embeddings=np.zeros((5, 2)))
    assert len(cached_layouts(ReviewedRun.of(run))) == 1
    keep(rows=np.arange(5), frozen=np.zeros((5, 2)))
    assert cached_layouts(ReviewedRun.of(run)) == []
    keep(rows=np.array([0, len(x)]), embeddings=np.zeros((2, 2)))
    assert cached_layouts(ReviewedRun.of(run)) == []
    keep(rows=np.arange(5), embeddings=np.zeros((4, 2)))
    assert cached_layouts(ReviewedRun.of(run)) == []


def test_two_images_are_too_few_for_tsne(tmp_path: Path, run: Run) -> None:
    run.write_assignments(run.assignments[:2])
    run.write_array("embeddings", np.eye(2))
    with pytest.raises(NotInRun):
        tsne_layouts(ReviewedRun.of(run))


def test_points_become_whole_numbers_with_the_shape_kept_and_y_downward() -> None:
    """The points span 2 in x and 1 in y, so x fills 0 … 9999 and y the middle half of it."""
    layout = maps.MapLayout("PCA", "t", np.array([2, 5]), np.array([[0.0, 0.0], [2.0, 1.0]]))
    found = map_points(layout, [2, 3, 5])
    assert found["x"] == [0, -1, 9999]
    assert found["y"] == [7499, -1, 2500] or found["y"] == [9999 - 2500, -1, 9999 - 7499]
