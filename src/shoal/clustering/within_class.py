"""Embeddings in which images of the same class are more alike, also those of novel classes.

The labeled images of a class differ in pose, light or background, and so do those of other classes.
The directions of these differences are scaled down for all images, by λ / (v + λ) where the
variance within the known classes is v. Only embeddings that were not trained with the labels show
how the images of novel classes differ.

Shapes: N images, L of them labeled, D columns, C classes, R = min(L, D).
"""

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.mean_shift import onto_sphere
from shoal.clustering.sums import BLOCK_ROWS, grouped_means

RIDGE = 0.3
"""λ, as a share of the mean of v, weighted by v. On CUB-200 and Caltech-101, 1 was as accurate, and
3 less (benchmarks/results/2026-11-18_2-core-arm_within_class.md)."""

GRID = 2.0**18
"""Numbers are rounded to multiples of 1 / GRID, far more than the rounding errors of matrix
products, so that threads and devices rarely give different bits."""

NO_VARIANCE = 1e-12
"""Mean squared distance from the class mean that may be due to rounding."""


@torch.no_grad()
def reduce_within_class(points: Tensor, labels: Ints, n_frozen: int | None = None) -> Tensor:
    """Return unit rows (N, D) with less variance within the classes of `labels` (N,), -1 for
    unlabeled.

    `points` (N, D) are unit rows. They are returned unchanged if no class has two different rows.
    Of a blend, only the first `n_frozen` columns are changed, which are not trained with labels.
    """
    if n_frozen is not None and n_frozen < points.shape[1]:
        frozen = points[:, :n_frozen]
        lengths = frozen.norm(dim=1, keepdim=True)
        reduced = reduce_within_class(frozen / lengths, labels)
        return torch.cat([reduced * lengths, points[:, n_frozen:]], dim=1)
    labeled = np.flatnonzero(labels != UNLABELED)
    classes, class_of = np.unique(labels[labeled], return_inverse=True)
    rows = points[torch.from_numpy(labeled).to(points.device)]  # (L, D)
    groups = torch.from_numpy(class_of).to(points.device)
    residuals = rows.double() - grouped_means(rows, groups, len(classes))[groups]  # (L, D)
    if not len(rows) or residuals.square().sum() <= NO_VARIANCE * len(rows):
        return points
    residuals = torch.linalg.qr(residuals, mode="r").R  # (R, D), with the same covariance
    products = residuals @ residuals.T  # (R, R)
    ridge = RIDGE * products.square().sum() / products.trace()
    products.diagonal().add_(ridge)
    weights = torch.linalg.solve(products, residuals)  # (R, D)
    mean = grouped_means(points, torch.zeros_like(points[:, 0], dtype=torch.int64), 1)  # (1, D)
    reduced = torch.empty_like(points)
    for start in range(0, len(points), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        centered = points[part].double() - mean
        moved = centered - centered @ residuals.T @ weights
        reduced[part] = onto_sphere((moved * GRID).round() / GRID, points[part])
    return reduced
