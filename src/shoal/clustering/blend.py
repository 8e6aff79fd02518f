"""Blends of two embeddings of the same images, evaluated by held-out labels.

Training adapts an encoder to the known classes, at the cost of features for others. In the
concatenated row [√w · first, √(1 - w) · second], the squared distance of two images is w times that
in the first embedding plus 1 - w times that in the second. w = 1 is the first embedding, w = 0 the
second.

Shapes: N images, D and E columns of the two embeddings, H held-out labels, K clusters.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Bools, Ints
from shoal.clustering.average import LinkageMethod, join_small
from shoal.clustering.inference import InferenceSettings, has_peaked
from shoal.clustering.matching import correct_images
from shoal.clustering.mean_shift import iterates

# Weight of the frozen embeddings in their blend with trained ones, chosen on samples of four
# collections (benchmarks/results/2026-11-19_h200_one_training.md)
FROZEN_WEIGHT = 0.8

# Largest number of shifts tried; accuracy has stopped rising by then
MAX_SHIFTS = 6

# Embeddings are evaluated on at most `MAX_ROWS` images, or this many per cluster if that is more
MAX_ROWS = 4_000
MIN_PER_CLUSTER = 4


@dataclass(frozen=True, kw_only=True)
class HeldOutAccuracy:
    """Which held-out images (H,) are in the cluster that is matched to their class, after the
    number of shifts with the highest accuracy; on ties, the nearest to the usual one."""

    n_shifts: int
    is_correct: Bools

    @property
    def share(self) -> float:
        return float(self.is_correct.mean())


def blend(first: Tensor, second: Tensor, weight: float) -> Tensor:
    """Return the blend (N, D + E) of unit rows (N, D) and (N, E); for the weight 0, the second
    unchanged."""
    if weight == 0:
        return second
    return torch.cat([first * weight**0.5, second * (1 - weight) ** 0.5], dim=1)


def try_shifts(
    points: Tensor,
    labels: Ints,
    held_out: Ints,
    n_clusters: int,
    settings: InferenceSettings,
    *,
    seed: int,
    linkage_method: LinkageMethod = "ward",
    usual_shifts: int = 0,
) -> HeldOutAccuracy | None:
    """Cluster unit rows (N, D) after 0, 1, 2 … shifts, evaluate the clusters by the `labels` (N,)
    of the `held_out` rows (H,), and return the best.

    No other label is used, because accuracy on labels that training saw says nothing about
    unlabeled images. Return None if the rows are too similar to be cut into `n_clusters`. With few
    held-out labels, several numbers of shifts are often equally accurate; the one nearest to
    `usual_shifts` is then used.
    """
    rows = sample_rows(len(labels), held_out, n_clusters, seed)
    at = np.searchsorted(rows, held_out)  # (H,)
    sampled = points[torch.from_numpy(rows).to(points.device)]
    outcomes: list[Bools] = []
    for iterate in islice(iterates(sampled, settings.shift), MAX_SHIFTS + 1):
        if not iterate.has_distinct(n_clusters):
            break
        tree = join_small(iterate.points, iterate.tree, n_clusters, linkage_method)
        outcomes.append(correct_images(labels[held_out], tree.cut(n_clusters)[at]))
        if has_peaked([float(is_correct.mean()) for is_correct in outcomes]):
            break
    if not outcomes:
        return None
    n_shifts = max(
        range(len(outcomes)),
        key=lambda shifts: (outcomes[shifts].sum(), -abs(shifts - usual_shifts)),
    )
    return HeldOutAccuracy(n_shifts=n_shifts, is_correct=outcomes[n_shifts])


def sample_rows(n_rows: int, held_out: Ints, n_clusters: int, seed: int) -> Ints:
    """Return the rows (M,), ascending, that embeddings are evaluated on: all held-out ones, and a
    random sample of the others."""
    n_wanted = max(MAX_ROWS, MIN_PER_CLUSTER * n_clusters)
    if n_rows <= n_wanted:
        return np.arange(n_rows)
    others = np.setdiff1d(np.arange(n_rows), held_out)
    n_others = min(len(others), max(n_wanted - len(held_out), len(held_out)))
    sampled = np.random.default_rng(seed).choice(others, n_others, replace=False)
    return np.sort(np.concatenate([held_out, sampled]))
