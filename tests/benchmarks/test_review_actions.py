"""The simulated curator does what a person could do on the page, and counts it."""

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from digit_runs import N_KNOWN, write_digits


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("review_actions")


def test_an_image_is_right_in_the_category_matched_to_its_class(script) -> None:
    truth = np.array([0, 0, 0, 1, 1, 2])
    assert script.share_right(truth, np.array([7, 7, 4, 4, 4, 9])) == 5 / 6
    assert script.share_right(truth, np.array([7, 7, 4, 4, 4, -1])) == 4 / 6
    assert script.share_right(truth, np.array([3, 3, 3, 3, 3, 3])) == 3 / 6


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
    assert (curve.actions, curve.right, curve.checked) == ([0, 3], [0.75, 1.0], [0.25, 1.0])
    assert (curve.until(0.7, "right"), curve.until(0.9, "right")) == (0, 3)


def test_neighbors_in_the_grid_are_picked_by_their_two_ends(script) -> None:
    n_picks = sys.modules["curator"].n_picks
    grids = ([], [4], [4, 5], [4, 5, 6, 7], [0, 2, 3, 4, 9])
    assert [n_picks(np.array(places, dtype=int)) for places in grids] == [0, 1, 2, 2, 1 + 2 + 1]


@pytest.fixture
def curator(script, tmp_path: Path):
    run = write_digits(tmp_path / "run", 400)
    truth = load_digits().target[:400]
    given = np.array([bool(row.label_given) for row in run.assignments]) & (truth < N_KNOWN)
    found = script.Curator(run, truth, given, script.Curve())
    found.did(0)
    return found


def test_the_curator_ends_with_every_class_and_fewer_actions_than_images(curator) -> None:
    curator.finish()
    curve = curator.curve
    n_open = len(curator.truth) - curator.is_given.sum()
    assert curve.actions[-1] == curator.n < n_open / 2
    assert curve.right[0] < 0.95
    assert curve.right[-1] == curve.checked[-1] == 1
    assert len(curator.review.state.entries) <= curator.n  # no action of the page is free


def test_before_training_the_curator_decides_on_the_surest_categories_alone(curator) -> None:
    curator.begin()
    decided = curator.is_told
    assert 0 < decided.sum() < len(curator.truth) - curator.is_given.sum()
    home = np.array([curator.home.get(own, -2) for own in range(10)])
    assert (curator.categories[decided] == home[curator.truth[decided]]).all()
