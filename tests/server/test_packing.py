"""Rows of many images are packed into few bytes and unpacked again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.server.packing import MANY, pack_numbers, pack_rows, unpack_rows


def test_few_rows_and_their_numbers_stay_lists() -> None:
    assert pack_rows(np.array([0, 5, 8]), 9) == [0, 5, 8]
    assert pack_numbers(np.array([3, -1])) == [3, -1]


@given(st.integers(MANY + 1, MANY + 40), st.integers(0, 99))
def test_what_is_packed_comes_back(n_images: int, seed: int) -> None:
    rows = np.sort(np.random.default_rng(seed).permutation(n_images)[: MANY + 1])
    packed = pack_rows(rows, n_images)
    assert isinstance(packed, str)
    assert np.array_equal(unpack_rows(packed, n_images), rows)


@pytest.mark.parametrize("text", ["AAA", "****", "AA==", "AAAAAA==", "AAD/", "ÿ"])
def test_a_text_that_is_not_of_these_images_is_refused(text: str) -> None:
    """20 images are 20 bits in 3 bytes; of these texts, only "AAD/" has 3 bytes, and it sets bits
    after the 20th.
    """
    with pytest.raises(UsageError):
        unpack_rows(text, 20)
