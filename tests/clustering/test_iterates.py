"""The steps of Algorithm 1, each by itself."""

import numpy as np
import pytest
import torch

from shoal.clustering import iterates
from shoal.clustering.iterates import unit_points


def test_unit_rows_do_not_depend_on_how_rows_lie_in_memory_or_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(7, 3))
    expected = unit_points(x)
    monkeypatch.setattr(iterates, "ROWS_AT_ONCE", 2)
    for same in (x, np.asfortranarray(x), torch.from_numpy(x)):
        assert torch.equal(unit_points(same), expected)
    assert torch.equal(unit_points(x[::-1]), expected.flip(0))  # of which the last block is one row
