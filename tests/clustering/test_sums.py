import pytest
import torch

from shoal.clustering.sums import halving_sum


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 37, 768])
def test_every_term_is_added_once(width: int) -> None:
    terms = torch.arange(6 * width, dtype=torch.float64).reshape(2, 3, width)
    assert torch.equal(halving_sum(terms.clone()), terms.sum(dim=2))


def test_the_order_of_additions_is_the_halving_one() -> None:
    """Five terms: 0 + 2 and 1 + 3, the last to the first of these, then both: (1 + 2^-53) + 2^-53 would round to 1."""
    tiny = 2.0**-53
    terms = torch.tensor([[1.0, tiny, tiny, tiny, 0.0]], dtype=torch.float64)
    assert halving_sum(terms).item() == 1 + 2 * tiny  # (1 + tiny) is 1, tiny + tiny is not lost
