"""Tables and summary of a hand-made result: six images, two known categories, one of them empty,
and two novel ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from shoal.clustering.calibration import Calibration
from shoal.clustering.categories import Mixtures, describe, other_neighbors
from shoal.clustering.inference import infer
from shoal.clustering.sums import unit_points
from shoal.data.readers.embeddings import Embeddings
from shoal.discovery.results import (
    Result,
    assignment_rows,
    category_rows,
    name_categories,
)
from shoal.methods.method import Discovery
from shoal.report.summary import UNCHECKED, summarize_run
from shoal.runs import Run

ANGLES = torch.deg2rad(torch.tensor([0.0, 10, 20, 90, 100, 180], dtype=torch.float64))
POINTS = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)


@pytest.fixture
def found() -> Result:
    categories = np.array([0, 0, 0, 2, 2, 3])
    return Result(
        discovery=Discovery(clusters=categories, n_clusters=3, embeddings=POINTS.numpy()),
        names=tuple("abcdef"),
        labels=np.array([0, -1, -1, -1, 1, -1]),
        categories=categories,
        classes=("cat", "dog", "novel-001", "novel-002"),
        ids=(0, 1, 2, 3),
        n_known=2,
        members=describe(POINTS, categories, other_neighbors(POINTS, 2), POINTS, categories, 2),
        calibration=None,
        mixtures=Mixtures(np.zeros(4), np.zeros(6, dtype=bool)),
    )


COUNTS = "Found 3 categories: 1 of 2 known, 2 novel. 1 image is uncertain."


def write(found: Result, folder: Path, points: torch.Tensor = POINTS) -> Run:
    run = Run.create(folder)
    run.write_assignments(assignment_rows(found))
    run.write_categories(category_rows(found, found.discovery.embeddings))
    return run


def test_the_summary_counts_nonempty_categories_and_uncertain_images(
    found: Result, tmp_path: Path
) -> None:
    assert summarize_run(write(found, tmp_path / "run")) == COUNTS


def test_every_image_has_a_row_with_its_label_and_category(
    found: Result,
) -> None:
    rows = [*assignment_rows(found)]
    assert [row.path for row in rows] == list("abcdef")
    assert [row.label_given for row in rows] == ["cat", "", "", "", "dog", ""]
    assert [row.category for row in rows] == ["cat"] * 3 + ["novel-001"] * 2 + ["novel-002"]
    assert [row.is_novel for row in rows] == [False] * 3 + [True] * 3
    assert [row.second_category for row in rows[:3]] == ["novel-001"] * 3
    assert {row.nearest_known for row in rows} == {"cat"}


def test_every_category_has_a_row_with_its_most_typical_images(
    found: Result,
) -> None:
    rows = category_rows(found, found.discovery.embeddings)
    assert [row.category_id for row in rows] == [0, 1, 2, 3]
    assert [row.size for row in rows] == [3, 0, 2, 1]
    assert [row.n_labeled for row in rows] == [1, 0, 1, 0]
    assert rows[0].exemplars == ("b", "a", "c")  # b is at the center, a and c are 10° from it
    assert (rows[1].confidence, rows[1].exemplars) == (0.0, ())
    assert [row.nearest_known for row in rows] == ["", "", "cat", "cat"]
    assert rows[3].nearest_known_similarity == pytest.approx(np.cos(np.deg2rad(170)))
    assert np.isnan(rows[0].nearest_known_similarity)


def test_with_few_held_out_labels_confidence_is_calibrated_on_the_frozen_result(
    tmp_path: Path,
) -> None:
    """Digits, five of ten known: ten held-out labels are too few to calibrate, so the calibration
    of the frozen result is used."""
    images, digits = load_digits(return_X_y=True)
    images = images[:600]
    digits = digits[:600]
    given = np.where((digits < 5) & (np.random.default_rng(0).random(600) < 0.5), digits, -1)
    points = unit_points(images)
    clusters = infer(points, given, 8).labels  # too few categories, so that many images are wrong
    discovery = Discovery(clusters=clusters, n_clusters=8, embeddings=points.numpy())
    names = tuple(f"{row:03d}" for row in range(600))
    embeddings = Embeddings(
        names=names, x=images, labels=given, classes=tuple("01234"), rows=np.arange(600)
    )
    about = (discovery, embeddings, 8)
    first = name_categories(*about)
    assert (list(first.classes), list(first.ids)) == (
        [*"01234", "novel-001", "novel-002", "novel-003"],
        list(range(8)),
    )
    few = np.flatnonzero(given >= 0)[:10]
    alone = name_categories(*about, held_out=few)
    carried = name_categories(*about, held_out=few, fallback=first.calibration)
    assert first.calibration is not None
    assert carried.calibration is not None
    assert (first.calibration.is_from_frozen, carried.calibration.is_from_frozen) == (False, True)
    assert Calibration.from_dict(carried.calibration.to_dict()).is_from_frozen
    assert carried.members.confidence.tolist() == first.members.confidence.tolist()
    assert alone.members.confidence.tolist() != first.members.confidence.tolist()
    for at, (named, is_unchecked) in enumerate(((alone, True), (carried, False))):
        run = write(named, tmp_path / str(at), points)
        run.write_json("calibration", named.calibration.to_dict())
        assert (UNCHECKED in summarize_run(run)) == is_unchecked
