"""Images leave the categories they were thrown out of for the nearest other one."""

import numpy as np
import torch

from shoal.discovery.reviewed.category_names import keep_apart, second_but

ANGLES = torch.deg2rad(torch.tensor([0.0, 5, 20, 60, 65, 180], dtype=torch.float64))
POINTS = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)
CATEGORIES = np.array([0, 0, 0, 1, 1, 3])


def test_a_row_goes_to_the_nearest_category_it_may_be_in() -> None:
    """Row 2, at 20 degrees, is nearest to category 1, around 62.5; category 2 is empty."""
    assert keep_apart(POINTS, CATEGORIES, 4, {2: {0}}).tolist() == [0, 0, 1, 1, 1, 3]
    assert keep_apart(POINTS, CATEGORIES, 4, {2: {0, 1}}).tolist() == [0, 0, 3, 1, 1, 3]
    assert CATEGORIES.tolist() == [0, 0, 0, 1, 1, 3]


def test_a_row_that_is_elsewhere_stays() -> None:
    assert keep_apart(POINTS, CATEGORIES, 4, {2: {1}, 5: {0}}).tolist() == CATEGORIES.tolist()


def test_rows_that_may_be_nowhere_are_together_in_a_new_category() -> None:
    nowhere = {0, 1, 3}
    assert keep_apart(POINTS, CATEGORIES, 4, {2: nowhere, 3: nowhere}).tolist() == [
        0,
        0,
        4,
        4,
        1,
        3,
    ]


def test_no_second_choice_is_a_category_that_the_row_was_thrown_out_of() -> None:
    second = np.array([1, 1, 1, 0, 0, 1])
    assert second_but(POINTS, CATEGORIES, 4, second, {2: {1}, 3: {1}}).tolist() == [
        1,
        1,
        3,
        0,
        0,
        1,
    ]
    assert second_but(POINTS, CATEGORIES, 4, second, {2: {1, 3}}).tolist() == [1, 1, -1, 0, 0, 1]
    assert second.tolist() == [1, 1, 1, 0, 0, 1]
