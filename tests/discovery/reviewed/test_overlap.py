import numpy as np
import pytest

from shoal.discovery.reviewed.category_names import mostly_same


@pytest.mark.parametrize(
    ("now", "before", "same"),
    [
        ([0, 0, 0, 1, 1], [7, 7, 7, 4, 4], {0: 7, 1: 4}),
        ([0, 0, 0, 0, 1], [7, 7, 7, 4, 4], {0: 7}),  # half of what 4 was is not most of it
        ([0, 0, 0, 0, 0], [7, 7, 7, 4, 4], {0: 7}),  # 3 of 5
        ([0, 0, 0, 0], [7, 7, 4, 4], {}),
        ([0, 0, 1, 1], [7, 7, 7, 7], {}),  # parted in halves: neither is it
        ([0, 0, 0, 1], [7, -1, -1, -1], {}),
        ([0, 0, 0, 1], [7, 7, -1, -1], {0: 7}),
    ],
)
def test_a_group_is_what_shares_more_than_half_of_the_larger(now, before, same) -> None:
    assert mostly_same(np.array(now), np.array(before)) == same
