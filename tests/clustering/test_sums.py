import math

import pytest
import torch

from shoal.clustering.sums import halving_sum, root


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 37, 768])
def test_every_term_is_added_once(width: int) -> None:
    terms = torch.arange(6 * width, dtype=torch.float64).reshape(2, 3, width)
    assert torch.equal(halving_sum(terms.clone()), terms.sum(dim=2))


def test_the_order_of_additions_is_the_halving_one() -> None:
    """Five terms: 0 + 2 and 1 + 3, the last to the first of these, then both: (1 + 2^-53) + 2^-53 would round to 1."""
    tiny = 2.0**-53
    terms = torch.tensor([[1.0, tiny, tiny, tiny, 0.0]], dtype=torch.float64)
    assert halving_sum(terms).item() == 1 + 2 * tiny  # (1 + tiny) is 1, tiny + tiny is not lost


def test_a_root_is_the_nearest_number_for_any_size_and_stride() -> None:
    """torch's own is off by one bit in about one of a hundred on a CPU."""
    squares = torch.rand(30_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 10
    expected = torch.tensor([math.sqrt(square) for square in squares.tolist()], dtype=torch.float64)
    assert torch.equal(root(squares), expected)
    assert torch.equal(root(squares[::7]), expected[::7])
    assert torch.equal(root(squares.reshape(100, 300)[:, :1]), expected.reshape(100, 300)[:, :1])


def test_a_root_has_its_gradient() -> None:
    squares = torch.rand(20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).add(0.1).requires_grad_()
    assert torch.autograd.gradcheck(root, squares)


@pytest.mark.gpu
def test_roots_on_the_gpu_are_those_of_the_cpu() -> None:
    squares = torch.rand(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 10
    assert torch.equal(root(squares.cuda()).cpu(), root(squares))
