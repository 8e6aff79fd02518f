import pytest
import torch

from shoal.training.gradients import cut_to_length


def test_gradients_are_as_long_as_all_their_numbers_together():
    """3, 4 and 12: 13 in all."""
    gradients = [torch.tensor([[3.0, 4.0]]), torch.tensor([12.0])]
    assert float(cut_to_length(gradients, None)) == 13.0
    assert gradients[1].item() == 12.0


@pytest.mark.parametrize(("limit", "left"), [(6.5, 6.5), (26.0, 13.0)])
def test_longer_ones_are_cut_and_keep_their_direction_and_shorter_ones_are_left(limit, left):
    gradients = [torch.tensor([[3.0, 4.0]]), torch.tensor([12.0])]
    assert float(cut_to_length(gradients, limit)) == 13.0, "the length they had"
    assert float(cut_to_length(gradients, None)) == pytest.approx(left)
    assert float(gradients[0][0, 0] / gradients[1][0]) == pytest.approx(3 / 12)
