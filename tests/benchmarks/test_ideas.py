"""The parts of the ideas on top of CMS against slow versions."""

import math

import numpy as np
import pytest
import torch
from torch import nn


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("ideas")


def test_targets_are_all_equally_far_apart(script) -> None:
    cosines = script.simplex(7, 12) @ script.simplex(7, 12).T
    wanted = torch.full((7, 7), -1 / 6).fill_diagonal_(1)
    torch.testing.assert_close(cosines, wanted, rtol=0, atol=1e-6)


def test_clusters_keep_the_numbers_of_those_they_overlap(script) -> None:
    before = np.array([2, 2, 2, 0, 0, -1, 1])
    assert script.follow(np.array([0, 0, 0, 1, 1, 1, 2]), before, 3).tolist() == [
        2,
        2,
        2,
        0,
        0,
        0,
        1,
    ]


def test_the_central_images_of_a_cluster_are_nearest_to_its_center(script) -> None:
    angles = torch.tensor([0.0, 0.1, -0.1, 0.05, 1.0, 3.0])
    rows = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert script.central(rows, np.array([0, 0, 0, 0, 0, 1]), 2).tolist() == [
        True,
        True,
        True,
        True,
        False,
        True,
    ]


def test_hyperbolic_distances_are_those_of_the_ball(script) -> None:
    rows = nn.functional.normalize(
        torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), dim=1
    )
    c = script.CURVATURE
    radius = math.tanh(script.CURVATURE**0.5 * script.RADIUS) / script.CURVATURE**0.5
    found = script.hyperbolic_distances(rows)
    for i, j in [(0, 1), (2, 3), (0, 3)]:
        x = radius * rows[i]
        y = radius * rows[j]
        inner = 1 + 2 * c * (x - y).square().sum() / (
            (1 - c * x.square().sum()) * (1 - c * y.square().sum())
        )
        assert float(found[i, j]) == pytest.approx(math.acosh(float(inner)) / c**0.5, rel=1e-5)


def test_the_hyperbolic_contrast_is_a_mean_over_labeled_rows(script) -> None:
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 0, 1, 1, -1])
    near = -script.hyperbolic_distances(rows) / script.HYPERBOLIC_TEMPERATURE
    losses = []
    for i, partner in [(0, 1), (1, 0), (2, 3), (3, 2)]:
        others = [j for j in range(4) if j != i]
        losses.append(
            math.log(sum(math.exp(float(near[i, j])) for j in others)) - float(near[i, partner])
        )
    assert float(script.hyperbolic_contrast(rows, labels)) == pytest.approx(
        sum(losses) / 4, rel=1e-4
    )


def test_the_average_is_the_weighted_sum_of_all_weights_before(script) -> None:
    mean = nn.Linear(1, 1, bias=False)
    own = nn.Linear(1, 1, bias=False)
    values = [1.0, 2.0, 4.0]
    share = 0.25
    nn.init.constant_(mean.weight, 0.0)
    for value in values:
        nn.init.constant_(own.weight, value)
        script.move(mean, own, share)
    wanted = sum(share * (1 - share) ** (2 - at) * value for at, value in enumerate(values))
    assert mean.weight.item() == pytest.approx(wanted)
