"""Few rows are linked by numpy on a table of all distances: the tree is that of lists and scans, bit for bit."""

import numpy as np
import pytest

from shoal.clustering.ward import linkage as entry
from shoal.clustering.ward.linkage import ward_linkage

RNG = np.random.default_rng(0)
KINDS = {
    "raw": RNG.normal(size=(90, 12)),
    "single precision": RNG.normal(size=(61, 33)).astype(np.float32),
    "copies": RNG.normal(size=(20, 5))[RNG.integers(20, size=80)],
    "a grid": np.stack(np.meshgrid(*[np.arange(5.0)] * 3), -1).reshape(-1, 3),
    "one-hot": np.eye(40),
    "a rounding apart": 1 + RNG.integers(3, size=(70, 4)) * 2.0**-52,
    "far from zero": 1e9 + RNG.normal(size=(50, 3)),
    "tiny": 2.0**-600 * RNG.normal(size=(30, 3)),
    "two": np.array([[0.0], [3.0]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_tree_is_the_one_of_many_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ward_linkage(KINDS[kind], device="cpu")
    monkeypatch.setattr(entry, "FEW_PRODUCTS", 0)
    assert np.array_equal(few, ward_linkage(KINDS[kind], device="cpu"))


def test_more_rows_are_left_to_bounds_that_spare_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("all distances were to be computed")

    monkeypatch.setattr(entry, "merge_few", refuse)
    rows = np.random.default_rng(0).normal(size=(300, 47))  # N² D above 2^22
    assert len(ward_linkage(rows, device="cpu")) == 299
    with pytest.raises(AssertionError, match="were to be computed"):
        ward_linkage(rows[:, :46], device="cpu")
