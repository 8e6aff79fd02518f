"""How likely a new image is of a category that the run has seen, by how far it lies from the run's
images.

What never-seen categories look like is learned from the run's own: each image is compared with the
images of the other categories alone, as if its own were not there. Seen and never-seen images are
taken to be equally frequent.

N images, D columns, k neighbors, S images of a sample.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from shoal.arrays import Floats, Ints

MAX_SAMPLE = 2_000
"""Images that are compared with the other categories."""
BLOCK = 256
"""Images of the sample that are compared at a time."""


@dataclass(frozen=True)
class SeenProbability:
    """The probability that an image is of a category of the run, falling with its outlier score."""

    slope: float
    intercept: float

    def at(self, outlier_score: Floats) -> Floats:
        """(M,) for outlier scores (M,)."""
        probability: Floats = expit(self.intercept + self.slope * outlier_score)
        return probability

    @classmethod
    def fit(
        cls, points: Tensor, categories: Ints, outlier_score: Floats, n_neighbors: int
    ) -> "SeenProbability | None":
        """Learn it from unit rows (N, D), their categories (N,) and outlier scores (N,); None for
        one category."""
        if len(np.unique(categories)) < 2:
            return None
        from sklearn.linear_model import LogisticRegression  # takes a second to import

        step = -(-len(points) // MAX_SAMPLE)
        sample = np.arange(0, len(points), step)
        never_seen = _scores_without_own(points, categories, sample, n_neighbors)
        scores = np.concatenate([outlier_score[sample], never_seen])
        is_seen = np.repeat([1, 0], [len(sample), len(never_seen)])
        spread = max(float(scores.std()), 1e-6)
        model = LogisticRegression(class_weight="balanced").fit(scores[:, None] / spread, is_seen)
        slope = min(0.0, float(model.coef_[0, 0]) / spread)
        return cls(slope, float(model.intercept_[0]))


def _scores_without_own(points: Tensor, categories: Ints, sample: Ints, n_neighbors: int) -> Floats:
    """(S,) outlier scores of some rows of `points` (N, D) as if their own category were not
    there."""
    group = torch.from_numpy(categories).to(points.device)
    scores = []
    for start in range(0, len(sample), BLOCK):
        rows = torch.from_numpy(sample[start : start + BLOCK]).to(points.device)
        similar = (points[rows] @ points.T).masked_fill(group[rows, None] == group, -torch.inf)
        nearest = similar.topk(min(n_neighbors, len(points) - 1), dim=1).values
        is_other = nearest > -torch.inf  # a category may leave fewer than k others
        total = nearest.where(is_other, 0).sum(dim=1)
        scores.append((1 - total / is_other.sum(dim=1)).double().cpu().numpy())
    return np.concatenate(scores)
