import pytest
import torch

from shoal.training.validation import collapse_statistics, is_collapsed


def test_statistics_of_collapsed_and_orthogonal_rows():
    """Equal rows have cosine 1; rows along the axes have cosine 0 and full rank except for their
    mean."""
    rows = torch.eye(10)[:1].expand(20, 10)
    alike = collapse_statistics(rows)
    assert is_collapsed(rows)
    assert not is_collapsed(torch.eye(10))
    apart = collapse_statistics(torch.eye(10))
    assert alike["bank_cosine"] == pytest.approx(1)
    assert apart["bank_cosine"] == pytest.approx(0, abs=1e-6)
    assert apart["bank_rank"] == pytest.approx(9, rel=1e-4)
    line = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [1, 0, 0], [-1, 0, 0]])
    assert collapse_statistics(line)["bank_rank"] == pytest.approx(1)
