import math

import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.mean_shift import (
    BANDWIDTH,
    MIN_SIMILARITY,
    NeighborAttention,
    ShiftSettings,
    find_neighbors,
    mean_shift,
    shift,
)
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.errors import UsageError


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=1)


@pytest.fixture
def points():
    return unit(torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


@pytest.fixture
def own():
    return torch.arange(40)


def slow_shift(points, neighbors, alpha):
    """Shift with a double loop over points and columns."""
    k = neighbors.shape[1]
    moved = []
    for i in range(len(points)):
        row = [(1 - alpha) * float(value) for value in points[i]]
        for j in neighbors[i].tolist():
            row = [
                value + alpha / k * float(other)
                for value, other in zip(row, points[j], strict=True)
            ]
        length = math.sqrt(sum(value * value for value in row))
        moved.append([value / length for value in row])
    return torch.tensor(moved, dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_a_step_is_the_double_loop(points, own, alpha):
    neighbors = k_nearest(points, points, 5, exclude=own).indices
    torch.testing.assert_close(
        mean_shift(points, points, neighbors, alpha=alpha), slow_shift(points, neighbors, alpha)
    )


def test_a_point_whose_mean_is_zero_stays_and_has_a_gradient():
    """At α = 0.5, (1, 0) and its only neighbor (-1, 0) cancel out."""
    points = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    moved = mean_shift(points, points, torch.tensor([[1], [0]]), alpha=0.5)
    assert torch.equal(moved, points)
    moved.sum().backward()
    assert points.grad is not None
    assert points.grad.isfinite().all()


@pytest.mark.parametrize("batch", [1, 7, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_in_batches_are_steps_at_once_bit_for_bit(points, own, batch, dtype):
    """In each of four steps, every batch reads all points as they were before the step."""
    whole = parts = points.to(dtype)
    for _ in range(4):
        lists = k_nearest(whole, whole, 5, exclude=own).indices
        whole = mean_shift(whole, whole, lists, alpha=0.5)
        lists = k_nearest(parts, parts, 5, exclude=own, block_rows=batch).indices
        rows = range(0, 40, batch)
        parts = torch.cat(
            [mean_shift(parts[r : r + batch], parts, lists[r : r + batch], alpha=0.5) for r in rows]
        )
    assert torch.equal(whole, parts)


def test_gradients_reach_points_and_bank(points):
    lists = k_nearest(points[:5], points[5:], 3).indices
    inputs = (points[:5].clone().requires_grad_(), points[5:].clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda p, b: mean_shift(p, b, lists, alpha=0.5), inputs)


def test_the_uniform_kernel_averages_everything_within_its_radius():
    """Points at 0, 20, 40 and 180 degrees, and a radius of 25.8 degrees (cos ≥ 0.9): the point at
    20 has the neighbors 0 and 40 and stays; the one at 180 has none."""
    radians = torch.tensor([0.0, 20.0, 40.0, 180.0], dtype=torch.float64) * torch.pi / 180
    points = torch.stack([radians.cos(), radians.sin()], dim=1)
    settings = ShiftSettings(kernel="uniform")
    lists = find_neighbors(points, points, settings, exclude=torch.arange(4))
    assert lists.indices.shape == (4, 3)  # at most all other rows
    moved = shift(points, points, lists, settings)
    found = (torch.atan2(moved[:, 1], moved[:, 0]) * 180 / torch.pi).tolist()
    assert found == pytest.approx([10, 20, 30, 180])


def test_the_gaussian_kernel_is_a_weighted_mean(points, own):
    settings = ShiftSettings(kernel="gaussian")
    moved = shift(points, points, find_neighbors(points, points, settings, exclude=own), settings)
    # On the diagonal, the point itself has weight 1.
    weights = torch.exp((points @ points.T - 1) / (2 * BANDWIDTH**2))
    torch.testing.assert_close(moved, unit(weights @ points))


def test_random_neighbors_are_different_rows_and_never_the_point(points, own):
    settings = ShiftSettings(retrieval="random", n_neighbors=39)
    draw = torch.Generator().manual_seed(0)
    sampled = find_neighbors(points, points, settings, exclude=own, generator=draw).indices
    everyone_else = [[j for j in range(40) if j != i] for i in range(40)]
    assert sampled.sort(dim=1).values.tolist() == everyone_else


def test_attention_with_equal_keys_is_the_mean(points, own):
    """Keys of zero make every weight 1/k, so attention becomes the plain mean."""
    attention = NeighborAttention(6).double()
    torch.nn.init.zeros_(attention.key.weight)
    settings = ShiftSettings(aggregation="attention")
    lists = find_neighbors(points, points, settings, exclude=own)
    moved = shift(points, points, lists, settings, attention=attention)
    torch.testing.assert_close(moved, mean_shift(points, points, lists.indices, alpha=0.5))


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": -0.1},
        {"alpha": 1.1},
        {"alpha": float("nan")},
        {"n_neighbors": 0},
        {"n_neighbors": 8.0},
        {"alpha": None},
        {"kernel": "uniform", "aggregation": "attention"},
    ],
)
def test_settings_that_cannot_be_used_are_refused(wrong):
    with pytest.raises(UsageError):
        ShiftSettings(**wrong)


@pytest.mark.gpu
def test_cpu_and_gpu_shift_to_the_same_place_bit_for_bit():
    points = unit(torch.randn(500, 96, generator=torch.Generator().manual_seed(4)))
    lists = k_nearest(points, points, 8, exclude=torch.arange(500))
    on_gpu = shift(
        points.cuda(),
        points.cuda(),
        Neighbors(lists.indices.cuda(), lists.similarities.cuda()),
        ShiftSettings(),
    )
    assert torch.equal(on_gpu.cpu(), shift(points, points, lists, ShiftSettings()))


@pytest.mark.parametrize("kernel", ["knn", "uniform", "gaussian"])
def test_a_detached_norm_leaves_the_value_and_lets_no_gradient_through_the_length(kernel):
    """The gradient of z = m / |m| with constant |m| with respect to the point is the weight of the
    point in m, divided by |m|."""
    points = F.normalize(
        torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=1
    )
    bank = F.normalize(points + 0.1 * points.flip(0), dim=1)
    settings = ShiftSettings(kernel=kernel, n_neighbors=3)
    neighbors = find_neighbors(points, bank, settings, exclude=torch.arange(6))
    points.requires_grad_()
    plain, found = (
        shift(points, bank, neighbors, settings, detach_norm=detach) for detach in (False, True)
    )
    torch.testing.assert_close(found, plain)
    (gradient,) = torch.autograd.grad(found.sum(), points)
    own = 0.5 if kernel == "knn" else 1.0
    moved = own * points + (
        bank[neighbors.indices] * weights_of(kernel, neighbors)[:, :, None]
    ).sum(dim=1)
    torch.testing.assert_close(
        gradient, (own / moved.norm(dim=1, keepdim=True)).expand_as(gradient).detach()
    )
    (through,) = torch.autograd.grad(plain.sum(), points)
    assert not torch.allclose(through, gradient)


def weights_of(kernel, neighbors):
    if kernel == "knn":
        return torch.full_like(neighbors.similarities, 0.5 / 3)
    if kernel == "uniform":
        return (neighbors.similarities >= MIN_SIMILARITY).double()
    return torch.exp((neighbors.similarities - 1) / (2 * BANDWIDTH**2))
