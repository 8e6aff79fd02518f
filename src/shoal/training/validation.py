"""How good a snapshot is, by the labels a user has: Ward's tree of the validation images, cut at
every K.

Nothing here sees a hidden label: unlabeled images carry -1 and only give the tree its shape.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.iterates import unit_tree
from shoal.clustering.matching import matched_accuracy
from shoal.clustering.n_clusters import DEFAULT_RULE, estimate_n_clusters
from shoal.encoders.embed import ImageRows


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """What the validation images say about one snapshot."""

    accuracy: float
    """Share of labeled validation images whose cluster is matched to their class: the highest over
    all K, or at K where it was given; NaN without labels."""
    n_clusters: int | None
    """The estimated (or given) number of clusters; None when there is nothing to estimate it
    from."""
    rule: str | None = None
    """The rule that decided on it: another than the one asked for where labels are too few for
    that. None where the number was given, or hidden labels chose it."""

    def is_better_than(self, other: "Validation | None") -> bool:
        """Whether this snapshot is to be kept rather than an earlier one: on ties, and without
        labels, it is."""
        return other is None or bool(np.isnan(self.accuracy)) or self.accuracy >= other.accuracy


@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """Images of their own, in place of validation rows, and what they say about a snapshot."""

    pixels: ImageRows
    """(M, S, S, 3) uint8."""
    score: Callable[[Tensor, int | None], Validation]
    """Called with their embeddings (M, D), and K where it is given."""
    score_clusters: Callable[[Ints], Validation]
    """Called with their clusters (M,) instead, where a classifier predicts them."""


def score_clusters(clusters: Ints, labels: Ints, n_clusters: int | None) -> Validation:
    """Score clusters (N,) that a classifier predicts of the validation images against their labels
    (N,)."""
    is_labeled = labels != UNLABELED
    accuracy = float("nan")
    if is_labeled.any():
        accuracy = matched_accuracy(labels[is_labeled], clusters[is_labeled])
    return Validation(accuracy=accuracy, n_clusters=n_clusters)


def validate(
    embeddings: Tensor, labels: Ints, *, n_clusters: int | None = None, rule: str | None = None
) -> Validation:
    """Score embeddings (N, D) of the validation images against their labels (N,), -1 for unlabeled.

    With `n_clusters` the tree is cut there; else the number is estimated by `rule` (the default of
    `estimate_n_clusters` when None). Without any label there is nothing to score.
    """
    is_labeled = labels != UNLABELED
    if not is_labeled.any():
        return Validation(accuracy=float("nan"), n_clusters=n_clusters)
    tree = unit_tree(embeddings)
    if n_clusters is not None:
        clusters = tree.cut(min(n_clusters, tree.n_distinct))  # copies are not parted
        return score_clusters(clusters, labels, n_clusters)
    estimate = estimate_n_clusters(tree, labels, rule=rule or DEFAULT_RULE)
    best = float(estimate.curve.accuracy.max())
    return Validation(accuracy=best, n_clusters=int(estimate.n_clusters), rule=estimate.rule)
