"""The simulated curator only does what a person can do on the page, and counts its actions."""

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from digit_runs import N_KNOWN, write_digits


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("review_actions")


def test_an_image_is_correct_in_the_category_matched_to_its_class(script) -> None:
    truth = np.array([0, 0, 0, 1, 1, 2])
    assert script.share_correct(truth, np.array([7, 7, 4, 4, 4, 9])) == 5 / 6
    assert script.share_correct(truth, np.array([7, 7, 4, 4, 4, -1])) == 4 / 6
    assert script.share_correct(truth, np.array([3, 3, 3, 3, 3, 3])) == 3 / 6


def test_labeling_one_by_one_takes_an_action_per_image(script) -> None:
    curve = script.Curve()
    truth = np.array([0, 0, 1, 1])
    script.label_one_by_one(
        curve,
        np.array([0, 0, 0, 1]),
        np.array([0.9, 0.8, 0.1, 0.7]),
        truth,
        np.array([1, 0, 0, 0]) > 0,
    )
    assert (curve.actions, curve.correct, curve.checked) == ([0, 3], [0.75, 1.0], [0.25, 1.0])
    assert (curve.until(0.7, "correct"), curve.until(0.9, "correct")) == (0, 3)


def test_selecting_a_range_in_the_grid_takes_two_clicks(script) -> None:
    n_picks = sys.modules["curator"].n_picks
    grids = ([], [4], [4, 5], [4, 5, 6, 7], [0, 2, 3, 4, 9])
    assert [n_picks(np.array(places, dtype=int)) for places in grids] == [0, 1, 2, 2, 1 + 2 + 1]


@pytest.fixture
def curator(script, tmp_path: Path):
    run = write_digits(tmp_path / "run", 400)
    truth = load_digits().target[:400]
    given = np.array([bool(row.label_given) for row in run.assignments]) & (truth < N_KNOWN)
    found = script.Curator(run, truth, given, script.Curve())
    found.count_actions(0)
    return found


def test_the_curator_checks_every_image_in_fewer_actions_than_images(curator) -> None:
    curator.finish()
    curve = curator.curve
    n_open = len(curator.truth) - curator.is_given.sum()
    assert curve.actions[-1] == curator.n < n_open / 2
    assert curve.correct[0] < 0.95
    assert curve.correct[-1] == curve.checked[-1] == 1
    assert len(curator.review.state.actions) <= curator.n  # every action on the page counts


def test_before_training_the_curator_decides_on_some_images_and_correctly(curator) -> None:
    curator.begin()
    decided = curator.is_decided
    assert 0 < decided.sum() < len(curator.truth) - curator.is_given.sum()
    category_of = np.array([curator.category_of.get(label, -2) for label in range(10)])
    assert (curator.categories[decided] == category_of[curator.truth[decided]]).all()
