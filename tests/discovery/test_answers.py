"""Rows and words of what was found: six images, two known categories of which one is empty, two
novel ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from shoal.clustering.calibration import Calibration
from shoal.clustering.categories import describe, other_neighbors
from shoal.clustering.hidden_categories import Mixtures
from shoal.clustering.inference import infer
from shoal.clustering.sums import unit_points
from shoal.discovery.answers import UNCHECKED, Answer, answer_in_words
from shoal.discovery.named_categories import (
    NamedCategories,
    assignment_rows,
    category_rows,
    name_categories,
)
from shoal.methods.clusters import Discovery
from shoal.runs import Run

ANGLES = torch.deg2rad(torch.tensor([0.0, 10, 20, 90, 100, 180], dtype=torch.float64))
POINTS = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)


@pytest.fixture
def found() -> NamedCategories:
    categories = np.array([0, 0, 0, 2, 2, 3])
    return NamedCategories(
        names=tuple("abcdef"),
        given=np.array([0, -1, -1, -1, 1, -1]),
        categories=categories,
        classes=("cat", "dog", "novel-001", "novel-002"),
        ids=(0, 1, 2, 3),
        n_known=2,
        members=describe(POINTS, categories, other_neighbors(POINTS, 2), POINTS, categories, 2),
        mixtures=Mixtures(np.zeros(4), np.zeros(6, dtype=bool)),
    )


COUNTS = "Found 3 categories: 1 of 2 known, 2 novel. 1 image is uncertain."


def write(found: NamedCategories, folder: Path) -> Run:
    run = Run.create(folder)
    run.write_assignments(assignment_rows(found))
    run.write_categories(category_rows(found))
    return run


def test_the_answer_counts_categories_with_images_and_images_among_strangers(
    found: NamedCategories, tmp_path: Path
) -> None:
    run = write(found, tmp_path / "run")
    discovery = Discovery(clusters=found.categories, n_clusters=3, embeddings=POINTS.numpy())
    answered = Answer(name="frozen", discovery=discovery, named=found)
    assert answer_in_words(run) == answered.in_words(run) == COUNTS


def test_every_image_has_a_row_with_its_own_label_beside_the_category(
    found: NamedCategories,
) -> None:
    rows = [*assignment_rows(found)]
    assert [row.path for row in rows] == list("abcdef")
    assert [row.label_given for row in rows] == ["cat", "", "", "", "dog", ""]
    assert [row.category for row in rows] == ["cat"] * 3 + ["novel-001"] * 2 + ["novel-002"]
    assert [row.is_novel for row in rows] == [False] * 3 + [True] * 3
    assert [row.second_category for row in rows[:3]] == ["novel-001"] * 3
    assert {row.nearest_known for row in rows} == {"cat"}


def test_every_category_has_a_row_even_an_empty_one_and_exemplars_are_the_most_typical(
    found: NamedCategories,
) -> None:
    rows = category_rows(found)
    assert [row.category_id for row in rows] == [0, 1, 2, 3]
    assert [row.size for row in rows] == [3, 0, 2, 1]
    assert [row.n_labeled for row in rows] == [1, 0, 1, 0]
    assert rows[0].exemplars == ("b", "a", "c")  # b lies on the center, a and c at 10° of it
    assert (rows[1].confidence, rows[1].exemplars) == (0.0, ())
    assert [row.nearest_known for row in rows] == ["", "", "cat", "cat"]
    assert rows[3].nearest_known_similarity == pytest.approx(np.cos(np.deg2rad(170)))
    assert np.isnan(rows[0].nearest_known_similarity)


def test_where_training_left_too_few_labels_unseen_confidence_is_checked_on_the_first_answer(
    tmp_path: Path,
) -> None:
    """Digits, five of ten known: with ten unseen labels nothing is learned, and the first answer's
    curve is taken."""
    images, digits = load_digits(return_X_y=True)
    images = images[:600]
    digits = digits[:600]
    given = np.where((digits < 5) & (np.random.default_rng(0).random(600) < 0.5), digits, -1)
    points = unit_points(images)
    clusters = infer(points, given, 8).labels  # too few, so that a good part is put wrong
    discovery = Discovery(clusters=clusters, n_clusters=8, embeddings=points.numpy())
    about = (discovery, [str(row) for row in range(600)], given, tuple("01234"))
    first = name_categories(*about, n_neighbors=8)
    assert (list(first.classes), list(first.ids)) == (
        [*"01234", "novel-001", "novel-002", "novel-003"],
        list(range(8)),
    )
    few = np.flatnonzero(given >= 0)[:10]
    alone = name_categories(*about, n_neighbors=8, unseen=few)
    carried = name_categories(*about, n_neighbors=8, unseen=few, otherwise=first.calibration)
    assert first.calibration is not None
    assert carried.calibration is not None
    assert (first.calibration.is_of_first, carried.calibration.is_of_first) == (False, True)
    assert Calibration.from_dict(carried.calibration.to_dict()).is_of_first
    assert carried.members.confidence.tolist() == first.members.confidence.tolist()
    assert alone.members.confidence.tolist() != first.members.confidence.tolist()
    for at, (named, is_unchecked) in enumerate(((alone, True), (carried, False))):
        run = write(named, tmp_path / str(at))
        run.write_json("calibration", named.calibration.to_dict())
        assert (UNCHECKED in answer_in_words(run)) == is_unchecked
