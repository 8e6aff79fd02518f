"""Cannot-links: rejected images move to the nearest allowed category."""

import numpy as np
import torch

from shoal.discovery.reviewed.refinement import apply_cannot_links

ANGLES = torch.deg2rad(torch.tensor([0.0, 5, 20, 60, 65, 180], dtype=torch.float64))
POINTS = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)
CATEGORIES = np.array([0, 0, 0, 1, 1, 3])


def test_a_row_moves_to_the_nearest_allowed_category() -> None:
    """Row 2, at 20 degrees, is nearest to category 1, around 62.5; category 2 is empty."""
    assert apply_cannot_links(POINTS, CATEGORIES, 4, {2: {0}}).tolist() == [0, 0, 1, 1, 1, 3]
    assert apply_cannot_links(POINTS, CATEGORIES, 4, {2: {0, 1}}).tolist() == [0, 0, 3, 1, 1, 3]
    assert CATEGORIES.tolist() == [0, 0, 0, 1, 1, 3]


def test_rows_without_an_allowed_category_form_a_new_one() -> None:
    nowhere = {0, 1, 3}
    assert apply_cannot_links(POINTS, CATEGORIES, 4, {2: nowhere, 3: nowhere}).tolist() == [
        0,
        0,
        4,
        4,
        1,
        3,
    ]
