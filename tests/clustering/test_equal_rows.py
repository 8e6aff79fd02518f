import pytest
import torch

from shoal.clustering import sums
from shoal.clustering.sums import earlier_copies, equal_rows, row_hashes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_are_grouped_by_their_first(dtype):
    rows = torch.tensor(
        [[1.0, 2], [3, 4], [1, 2], [0.0, 5], [-0.0, 5], [3, 4], [1, 2]], dtype=dtype
    )
    first, group = equal_rows(rows)
    assert first.tolist() == [0, 1, 3]
    assert group.tolist() == [0, 1, 0, 2, 2, 1, 0]


def test_rows_that_differ_in_one_bit_are_not_equal():
    rows = torch.rand(500, 64, generator=torch.Generator().manual_seed(0))
    rows[1] = rows[0]
    rows[1, 63] = torch.nextafter(rows[0, 63], torch.tensor(2.0))
    assert len(equal_rows(rows)[0]) == 500
    assert len(row_hashes(rows).unique()) == 500


def test_a_collision_of_hashes_joins_nothing(monkeypatch):
    monkeypatch.setattr(sums, "row_hashes", lambda rows: torch.zeros(len(rows), dtype=torch.int64))
    first, group = equal_rows(torch.tensor([[1.0], [2.0], [1.0], [3.0]]))
    assert first.tolist() == [0, 1, 3]
    assert group.tolist() == [0, 1, 0, 2]


def test_places_count_the_equal_rows_before_each():
    """In the rows a b a a c b, the copies of a have 0, 1 and 2 earlier copies, and those of b 0 and
    1."""
    rows = torch.tensor([[1.0], [2.0], [1.0], [1.0], [3.0], [2.0]])
    assert earlier_copies(equal_rows(rows)[1]).tolist() == [0, 0, 1, 2, 0, 1]
