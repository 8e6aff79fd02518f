import numpy as np
import pytest

from shoal.discovery.reviewed.refinement import match_groups


@pytest.mark.parametrize(
    ("now", "before", "same"),
    [
        ([0, 0, 0, 1, 1], [7, 7, 7, 4, 4], {0: 7, 1: 4}),
        ([0, 0, 0, 0, 1], [7, 7, 7, 4, 4], {0: 7}),  # group 1 has half of 4, not more than half
        ([0, 0, 0, 0, 0], [7, 7, 7, 4, 4], {0: 7}),  # 7 is 3 of the 5 images
        ([0, 0, 0, 0], [7, 7, 4, 4], {}),
        ([0, 0, 1, 1], [7, 7, 7, 7], {}),  # 7 is split in halves, so neither group matches
        ([0, 0, 0, 1], [7, -1, -1, -1], {}),
        ([0, 0, 0, 1], [7, 7, -1, -1], {0: 7}),
    ],
)
def test_groups_match_if_they_share_more_than_half_of_each(now, before, same) -> None:
    assert match_groups(np.array(now), np.array(before)) == same
