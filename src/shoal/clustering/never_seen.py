"""The probability that a new image is of a category in the run, by its distance from the run's
images.

Unseen categories are simulated: each image is compared only with the images of other categories.
Images of seen and unseen categories are assumed to be equally frequent.

Shapes: N images, D columns, k neighbors, S images in a sample.
"""

from collections.abc import Mapping

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from shoal.arrays import Floats, Ints

MAX_SAMPLE = 2_000
"""Largest number of images that are compared with the other categories."""
BATCH_IMAGES = 256
"""Images of the sample per batch."""


def seen_probability(curve: Mapping[str, float], outlier_score: Floats) -> Floats:
    """Return the probability (M,) that images with these outlier scores (M,) are of a category in
    the run."""
    return expit(curve["intercept"] + curve["slope"] * outlier_score)


def fit_seen_probability(
    points: Tensor, categories: Ints, outlier_score: Floats, n_neighbors: int
) -> dict[str, float] | None:
    """Fit the curve of `seen_probability`, which falls, to unit rows (N, D), their categories (N,)
    and outlier scores (N,); None for a single category."""
    if len(np.unique(categories)) < 2:
        return None
    from sklearn.linear_model import LogisticRegression  # takes a second to import

    sample = np.arange(0, len(points), -(-len(points) // MAX_SAMPLE))
    never_seen = _scores_from_others(points, categories, sample, n_neighbors)
    scores = np.concatenate([outlier_score[sample], never_seen])
    is_seen = np.repeat([1, 0], [len(sample), len(never_seen)])
    spread = max(float(scores.std()), 1e-6)
    model = LogisticRegression(class_weight="balanced").fit(scores[:, None] / spread, is_seen)
    slope = min(0.0, float(model.coef_[0, 0]) / spread)
    return {"slope": slope, "intercept": float(model.intercept_[0])}


def _scores_from_others(points: Tensor, categories: Ints, sample: Ints, n_neighbors: int) -> Floats:
    """Return outlier scores (S,) of some rows of `points` (N, D), compared only with images of
    other categories."""
    category_of = torch.from_numpy(categories).to(points.device)
    scores = []
    for start in range(0, len(sample), BATCH_IMAGES):
        rows = torch.from_numpy(sample[start : start + BATCH_IMAGES]).to(points.device)
        is_same = category_of[rows, None] == category_of
        similar = (points[rows] @ points.T).masked_fill(is_same, -torch.inf)
        nearest = similar.topk(min(n_neighbors, len(points) - 1), dim=1).values
        is_other = nearest > -torch.inf  # there may be fewer than k images of other categories
        total = nearest.where(is_other, 0).sum(dim=1)
        scores.append((1 - total / is_other.sum(dim=1)).double().cpu().numpy())
    return np.concatenate(scores)
