"""Numbers far from zero or of a wide range, and arguments that are not numbers or matrices."""

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage

from shoal.clustering.tree import Tree
from shoal.clustering.ward import ward_linkage
from shoal.clustering.ward.scan import FEW
from shoal.errors import DataError

pytestmark = pytest.mark.usefixtures("many_rows")


def assert_same_tree(ours, theirs):
    np.testing.assert_allclose(ours[:, 2], theirs[:, 2], rtol=1e-9)
    for n_clusters in range(1, min(len(ours), 40)):
        np.testing.assert_array_equal(Tree(ours).cut(n_clusters), Tree(theirs).cut(n_clusters))


@pytest.mark.slow
def test_a_range_that_squares_can_hold_is_linked_as_by_scipy():
    rows = 2.0 ** np.arange(-200, 200)[:, None]
    assert_same_tree(ward_linkage(rows), linkage(rows, "ward"))


def test_counts_do_not_depend_on_torchs_default_type():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert ward_linkage(np.repeat(np.eye(2), 1001, 0))[-1, 3] == 2002
    finally:
        torch.set_default_dtype(before)


def test_views_and_short_floats_are_taken_for_their_numbers():
    rows = torch.as_tensor(np.random.default_rng(0).integers(-8, 8, size=(30, 4))).float()
    expected = ward_linkage(rows)
    assert np.array_equal(ward_linkage(torch._neg_view(-rows)), expected)
    # float8_e4m3fn represents integers up to 16 exactly.
    assert np.array_equal(ward_linkage(rows.to(torch.float8_e4m3fn)), expected)


def test_masked_entries_are_missing_ones():
    rows = np.ma.masked_array(np.eye(4), mask=np.eye(4)[:, ::-1] * [[0], [0], [1], [0]])
    with pytest.raises(DataError):
        ward_linkage(rows)
    assert len(ward_linkage(np.ma.masked_array(np.eye(4)))) == 3


@pytest.mark.parametrize("n_few", [100, 3000])
def test_a_row_far_beyond_the_others_does_not_spoil_their_tree(n_few, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(400, 16))
    rows[0] = 1e8
    monkeypatch.setitem(FEW, "cpu", n_few)
    assert_same_tree(ward_linkage(rows), linkage(rows, "ward"))


def test_a_tight_core_in_a_wide_halo_is_told_apart():
    """Most rows are within 1e-5 of each other and the rest are widely spread, so the median length
    does not describe the core."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([1 + 1e-5 * rng.normal(size=(400, 8)), rng.normal(size=(200, 8))])
    assert_same_tree(ward_linkage(rows), linkage(rows, "ward"))
