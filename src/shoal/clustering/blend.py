"""Blends of two embeddings of the same images; held-out labels choose the weight.

Training adapts an encoder to the known classes, at the cost of features for others. In the
concatenated row [√w · first, √(1 - w) · second], the squared distance of two images is w times that
in the first embedding plus 1 - w times that in the second. w = 1 is the first embedding, w = 0 the
second.

Shapes: N images, D and E columns of the two embeddings, H held-out labels, K clusters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import Bools, Ints
from shoal.clustering.average import LinkageMethod, join_small
from shoal.clustering.inference import InferenceSettings, has_peaked
from shoal.clustering.iterates import iterates
from shoal.clustering.matching import correct_images, is_worse
from shoal.clustering.mean_shift import ShiftSettings

WEIGHTS = (0.0, 0.35, 0.65, 0.8, 1.0)
"""Weights of the first embedding that are tried."""

USUAL_WEIGHT = 0.65
"""Weight that is preferred among those without a significant difference: the best on average over
four collections (benchmarks/results/2026-11-16_h200_discover_accuracy.md)."""

MAX_SHIFTS = 6
"""Largest number of shifts tried for a weight; accuracy has stopped rising by then."""

MAX_ROWS = 4_000
MIN_PER_CLUSTER = 4
"""A weight is evaluated on at most `MAX_ROWS` images, or this many per cluster if that is more."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TriedWeight:
    """The held-out accuracy of one weight."""

    weight: float
    n_shifts: int
    """The number of shifts with the highest accuracy; on ties, the nearest to the usual one."""
    is_correct: Bools
    """(H,) which held-out images are in the cluster that is matched to their class."""


def blend(first: Tensor, second: Tensor, weight: float) -> Tensor:
    """Return the blend (N, D + E) of unit rows (N, D) and (N, E); for the weights 1 and 0, the
    first or the second unchanged."""
    if weight == 1:
        return first
    if weight == 0:
        return second
    return torch.cat([first * weight**0.5, second * (1 - weight) ** 0.5], dim=1)


def try_weights(
    first: Tensor,
    second: Tensor,
    labels: Ints,
    held_out: Ints,
    n_clusters: int,
    settings: InferenceSettings,
    *,
    seed: int,
    weights: Sequence[float] = WEIGHTS,
    linkage_method: LinkageMethod = "ward",
    usual_shifts: int = 0,
) -> list[TriedWeight]:
    """Cluster the blend with each weight and evaluate it by the `labels` (N,) of the `held_out`
    rows (H,).

    No other label is used, because accuracy on labels that training saw says nothing about
    unlabeled images. A weight is skipped if its rows are too similar to be cut into `n_clusters`.
    With few held-out labels, several numbers of shifts are often equally accurate; the one nearest
    to `usual_shifts` is then used.
    """
    rows = sample_rows(len(labels), held_out, n_clusters, seed)
    rows_on_device = torch.from_numpy(rows).to(first.device)
    at = np.searchsorted(rows, held_out)  # (H,)
    tried = []
    for weight in weights:
        points = blend(first[rows_on_device], second[rows_on_device], weight)
        outcomes: list[Bools] = []
        cuts = _cuts(points, n_clusters, settings.shift, linkage_method)
        for cut in islice(cuts, MAX_SHIFTS + 1):
            outcomes.append(correct_images(labels[held_out], cut[at]))
            if has_peaked([float(is_correct.mean()) for is_correct in outcomes]):
                break
        if outcomes:
            counts = [int(is_correct.sum()) for is_correct in outcomes]
            best = [shifts for shifts, n_correct in enumerate(counts) if n_correct == max(counts)]
            n_shifts = min(best, key=lambda shifts: abs(shifts - usual_shifts))
            tried.append(
                TriedWeight(weight=weight, n_shifts=n_shifts, is_correct=outcomes[n_shifts])
            )
    return tried


def _cuts(
    points: Tensor, n_clusters: int, shift: ShiftSettings, linkage_method: LinkageMethod
) -> Iterator[Ints]:
    """Yield the clusters (M,) after 0, 1, 2 … shifts, while enough rows are distinct."""
    for iterate in iterates(points, shift):
        if not iterate.has_distinct(n_clusters):
            return
        yield join_small(iterate.points, iterate.tree, n_clusters, linkage_method).cut(n_clusters)


def choose_weight(tried: Sequence[TriedWeight]) -> TriedWeight:
    """Return the weight nearest to the usual one among those whose accuracy is within a standard
    error of the best.

    A weight that is less accurate than the first embedding is never chosen, so that training does
    not make the result worse.
    """
    best = max(tried, key=lambda trial: int(trial.is_correct.sum()))
    n_without = max(
        (int(trial.is_correct.sum()) for trial in tried if trial.weight == 1), default=0
    )
    good = []
    for trial in tried:
        if trial.is_correct.sum() >= n_without and not is_worse(trial.is_correct, best.is_correct):
            good.append(trial)
    return min(good, key=lambda trial: abs(trial.weight - USUAL_WEIGHT))


def sample_rows(n_rows: int, held_out: Ints, n_clusters: int, seed: int) -> Ints:
    """Return the rows (M,), ascending, that a weight is evaluated on: all held-out ones, and a
    random sample of the others."""
    n_wanted = max(MAX_ROWS, MIN_PER_CLUSTER * n_clusters)
    if n_rows <= n_wanted:
        return np.arange(n_rows)
    others = np.setdiff1d(np.arange(n_rows), held_out)
    n_others = min(len(others), max(n_wanted - len(held_out), len(held_out)))
    sampled = np.random.default_rng(seed).choice(others, n_others, replace=False)
    return np.sort(np.concatenate([held_out, sampled]))
