"""Validation of a snapshot by the labels a user has: Ward's tree of the validation images, cut at
every K.

No hidden label is used: unlabeled images carry -1 and only shape the tree.

Collapsed embeddings are detected without labels.

Shapes: N rows, D columns.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.mean_shift import unit_tree
from shoal.clustering.n_clusters import DEFAULT_RULE, estimate_n_clusters
from shoal.encoders.vision import ImageRows

# Mean cosine of two rows above which embeddings count as collapsed
COLLAPSED = 0.999


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Accuracy and estimated K of one snapshot on the validation images."""

    # Share of labeled validation images in the cluster matched to their class: the highest over all
    # K, or at K if it is given; NaN without labels
    accuracy: float
    # The estimated or given number of clusters; None without labels to estimate it from
    n_clusters: int | None

    def is_better_than(self, other: "Validation") -> bool:
        """Return whether to prefer this snapshot to an earlier one: also on ties, and without
        labels."""
        return math.isnan(self.accuracy) or self.accuracy >= other.accuracy


@dataclass(frozen=True, kw_only=True)
class ValidationSet:
    """Images outside the task that validate snapshots instead of its validation rows."""

    pixels: ImageRows  # (M, S, S, 3) uint8
    # Scores the clusters (M,) that a classifier predicts, else their embeddings (M, D), given K or
    # None
    score: Callable[[Tensor, Ints | None, int | None], Validation]


def validate(
    embeddings: Tensor,
    labels: Ints,
    *,
    predicted: Ints | None = None,
    n_clusters: int | None = None,
    rule: str = DEFAULT_RULE,
) -> Validation:
    """Score the clusters (N,) that a classifier predicts, else Ward's tree of the embeddings
    (N, D), against labels (N,), -1 for unlabeled.

    The tree is cut at `n_clusters`, or at the number that `rule` estimates.
    """
    is_labeled = labels != UNLABELED
    if not is_labeled.any():
        return Validation(accuracy=float("nan"), n_clusters=n_clusters)
    if predicted is None:
        tree = unit_tree(embeddings)
        if n_clusters is None:
            estimate = estimate_n_clusters(tree, labels, rule=rule)
            best = float(estimate.curve.accuracy.max())
            return Validation(accuracy=best, n_clusters=estimate.n_clusters)
        predicted = tree.cut(min(n_clusters, tree.n_distinct))  # copies of an image stay together
    accuracy = matched_accuracy(labels[is_labeled], predicted[is_labeled])
    return Validation(accuracy=accuracy, n_clusters=n_clusters)


def collapse_statistics(rows: Tensor) -> dict[str, float]:
    """Return the mean cosine of two unit rows (N, D), and their effective rank.

    The effective rank is (Σ λ)² / Σ λ² over the eigenvalues λ of the covariance. It needs no
    eigenvalues: numerator and denominator are the squared trace and the squared Frobenius norm.
    """
    rows = rows.float()
    n_rows = len(rows)
    total = rows.sum(dim=0)
    cosine = (total @ total - n_rows) / max(n_rows * (n_rows - 1), 1)
    centered = rows - total / n_rows
    covariance = centered.T @ centered  # (D, D)
    rank = covariance.trace().square() / covariance.square().sum().clamp_min(1e-30)
    return {"bank_cosine": float(cosine), "bank_rank": float(rank)}


def describe_collapse(statistics: Mapping[str, float]) -> str | None:
    """Return a message for collapsed embeddings by their `collapse_statistics`; None for others."""
    cosine = statistics.get("bank_cosine", 0.0)
    if cosine <= COLLAPSED:
        return None
    return (
        "training seems to have collapsed: all embeddings have nearly the same direction "
        f"(mean cosine {min(cosine, 1):.4f}); lower training.lr, raise loss.temperature or set "
        "training.max_gradient, and start over"
    )


def is_collapsed(rows: Tensor) -> bool:
    return describe_collapse(collapse_statistics(rows)) is not None
