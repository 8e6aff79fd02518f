import math

import numpy as np
import pytest
import torch

from shoal.clustering import sums
from shoal.clustering.sums import grouped_sums, halving_sum, root, unit_points


def test_the_order_of_additions_is_the_halving_one():
    """Of five terms, 0 + 2 and 1 + 3 are added first, then the last to the former sum, then both
    sums. From left to right, (1 + 2^-53) + 2^-53 would round to 1."""
    tiny = 2.0**-53
    terms = torch.tensor([[1.0, tiny, tiny, tiny, 0.0]], dtype=torch.float64)
    assert halving_sum(terms).item() == 1 + 2 * tiny  # (1 + tiny) is 1, tiny + tiny is not lost


def test_a_root_is_the_nearest_number_for_any_size_and_stride():
    """On a CPU, about one in a hundred of torch's own roots is off by one bit."""
    squares = (
        torch.rand(30_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 10
    )
    expected = torch.tensor([math.sqrt(square) for square in squares.tolist()], dtype=torch.float64)
    assert torch.equal(root(squares), expected)
    assert torch.equal(root(squares[::7]), expected[::7])
    assert torch.equal(root(squares.reshape(100, 300)[:, :1]), expected.reshape(100, 300)[:, :1])


def test_a_root_has_its_gradient():
    squares = (
        torch.rand(20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        .add(0.1)
        .requires_grad_()
    )
    assert torch.autograd.gradcheck(root, squares)


@pytest.mark.gpu
def test_roots_on_the_gpu_are_those_of_the_cpu():
    squares = (
        torch.rand(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 10
    )
    assert torch.equal(root(squares.cuda()).cpu(), root(squares))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_groups_are_those_of_a_loop_and_have_the_same_bits_in_any_order(
    dtype,
):
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(
        torch.randn(3000, 7, dtype=dtype, generator=generator), dim=1
    )
    groups = torch.randint(0, 4, (3000,), generator=generator)
    groups[groups == 2] = 3  # group 2 is empty
    found = grouped_sums(rows, groups, 4)
    expected = [
        [math.fsum(rows[groups == group, column].tolist()) for column in range(7)]
        for group in range(4)
    ]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)
    for _ in range(3):
        order = torch.randperm(3000, generator=generator)
        assert torch.equal(grouped_sums(rows[order], groups[order], 4), found)


def test_sums_of_groups_do_not_depend_on_the_size_of_a_block(
    monkeypatch,
):
    rows = torch.rand(100, 5, generator=torch.Generator().manual_seed(0))
    groups = torch.arange(100) % 3
    whole = grouped_sums(rows, groups, 3)
    monkeypatch.setattr("shoal.clustering.sums.BLOCK_ELEMENTS", 35)
    assert torch.equal(grouped_sums(rows, groups, 3), whole)


@pytest.mark.gpu
def test_sums_of_groups_on_the_gpu_are_those_of_the_cpu():
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(50_000, 64, generator=generator)
    groups = torch.randint(0, 30, (50_000,), generator=generator)
    assert torch.equal(
        grouped_sums(rows.cuda(), groups.cuda(), 30).cpu(), grouped_sums(rows, groups, 30)
    )


def test_unit_rows_do_not_depend_on_how_rows_lie_in_memory_or_on_blocks(
    monkeypatch,
):
    x = np.random.default_rng(0).normal(size=(7, 3))
    expected = unit_points(x)
    monkeypatch.setattr(sums, "BLOCK_ROWS", 2)
    for same in (x, np.asfortranarray(x), torch.from_numpy(x)):
        assert torch.equal(unit_points(same), expected)
    assert torch.equal(unit_points(x[::-1]), expected.flip(0))  # the last block is one row
