"""Unit vectors for tests of clustering."""

import numpy as np
import torch


def at(*degrees: float) -> torch.Tensor:
    """Return unit vectors at these angles."""
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def scattered(truth: np.ndarray, noise: float, seed: int = 0) -> torch.Tensor:
    """Return points around one axis per class: tight groups with little noise, a cloud with
    much."""
    x = np.eye(6)[truth] + noise * np.random.default_rng(seed).normal(size=(len(truth), 6))
    return torch.nn.functional.normalize(torch.from_numpy(x.astype(np.float32)), dim=1)


def groups(n_groups: int = 6, size: int = 20) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Sample groups of unit points; half of the images of the first three groups are labeled.
    Return points, truth and labels."""
    truth = np.repeat(np.arange(n_groups), size)
    noise = torch.randn(len(truth), 32, generator=torch.Generator().manual_seed(1))
    points = torch.nn.functional.normalize(torch.eye(32)[truth] + 0.1 * noise, dim=1)
    return points, truth, np.where((truth < 3) & (np.arange(len(truth)) % 2 == 0), truth, -1)
