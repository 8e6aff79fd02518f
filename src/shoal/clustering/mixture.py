"""A Gaussian mixture with an unknown number of components: clusters are split in two and merged by
the Hastings ratio.

Each cluster is a Gaussian with unknown mean and covariance and a normal-inverse-Wishart prior, so
the evidence of its points has a closed form. A split, or a merge, is accepted with the probability
that the ratio of the evidences after and before gives. The prior comes from the labeled classes:
clusters are expected to be as wide as these, and as far apart.

N points, n of a cluster, D columns, K clusters, C known classes.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import gammaln, multigammaln
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.kmeans import semi_supervised_kmeans

SMALLEST_PART = 6
"""Fewest points of each part of a split."""

VAGUE_MEAN = 1e-4
VAGUE_VARIANCE = 0.005
"""The prior without labeled classes: the weight of the mean in points, and the variance of each
column."""


@dataclass(frozen=True)
class Prior:
    """A normal-inverse-Wishart prior of a cluster."""

    mean: Floats
    """(D,) expected mean."""
    mean_weight: float
    """κ: the weight of the expected mean, in points."""
    scatter: Floats
    """(D, D) Ψ: expected scatter of the points around their mean."""
    freedom: float
    """ν: the degrees of freedom, D plus the weight of the scatter in points."""


def prior_of_classes(points: Floats, labels: Ints) -> Prior:
    """Return the prior by the labeled classes among points (N, D), `labels` (N,) with -1 for
    unlabeled.

    Their pooled covariance has the weight of the points it comes from.
    """
    n_columns = points.shape[1]
    mean = points.mean(axis=0)
    by_class = np.argsort(labels, kind="stable")
    labeled = by_class[labels[by_class] != UNLABELED]
    classes, class_of = np.unique(labels[labeled], return_inverse=True)
    weight = float(len(labeled) - len(classes))
    if len(classes) < 2 or not weight:
        return Prior(mean, VAGUE_MEAN, VAGUE_VARIANCE * np.eye(n_columns), n_columns + 2.0)
    centers = np.stack([points[labels == label].mean(axis=0) for label in classes])  # (C, D)
    apart = points[labeled] - centers[class_of]
    within = apart.T @ apart / weight  # (D, D)
    # A little variance in every direction: few labels do not span all of them.
    within += 1e-3 * np.trace(within) / n_columns * np.eye(n_columns)
    between = ((centers - mean) ** 2).mean(axis=0).sum()
    mean_weight = float(np.clip(np.trace(within) / max(between, 1e-12), VAGUE_MEAN, 1.0))
    return Prior(mean, mean_weight, weight * within, n_columns + 1.0 + weight)


def log_evidence(points: Floats, prior: Prior) -> float:
    """Return the log-density of points (n, D) as one cluster, its mean and covariance integrated
    out."""
    n, n_columns = points.shape
    weight = prior.mean_weight + n
    freedom = prior.freedom + n
    center = points.mean(axis=0)
    apart = points - center
    off = center - prior.mean
    scatter = prior.scatter + apart.T @ apart + prior.mean_weight * n / weight * np.outer(off, off)
    before = float(np.linalg.slogdet(prior.scatter)[1])
    after = float(np.linalg.slogdet(scatter)[1])
    return float(
        -n * n_columns / 2 * math.log(math.pi)
        + multigammaln(freedom / 2, n_columns)
        - multigammaln(prior.freedom / 2, n_columns)
        + prior.freedom / 2 * before
        - freedom / 2 * after
        + n_columns / 2 * math.log(prior.mean_weight / weight)
    )


def split_and_merge(
    points: Floats,
    clusters: Ints,
    labels: Ints,
    prior: Prior,
    *,
    concentration: float,
    generator: torch.Generator,
) -> Ints:
    """Propose a split of each cluster, then a merge of each one that was not split with the nearest
    other; return the clusters (N,).

    `labels` (N,) are 0 … C-1, the clusters of the known classes, and -1 for unlabeled. A known
    class may lose unlabeled points but no labeled one, and is never merged. Novel clusters are
    renumbered from C up. Equal states of the generator give equal results.
    """

    def accepts(parts: list[Ints], sign: int) -> bool:
        """Return True with the probability min(1, ratio): that of a split, or of a merge if `sign`
        is -1."""
        ratio = log_split_ratio(points, parts, prior, concentration)
        return float(torch.rand(1, dtype=torch.float64, generator=generator).log()) < sign * ratio

    n_known = int(labels.max(initial=-1)) + 1
    novel: list[Ints] = []
    unsplit: list[Ints] = []
    for number in range(int(clusters.max(initial=-1)) + 1):
        rows = np.flatnonzero(clusters == number)
        parts = _halves(points, rows, labels, generator)
        if min(map(len, parts)) < SMALLEST_PART or not accepts(parts, 1):
            parts = [rows]
        if number < n_known:
            novel += parts[1:]  # the first part stays with the class
        elif len(parts) == 2:
            novel += parts
        elif len(rows):
            unsplit.append(rows)
    while unsplit:
        rows = unsplit.pop(0)
        center = points[rows].mean(axis=0)
        apart = [((points[other].mean(axis=0) - center) ** 2).sum() for other in unsplit]
        if apart and accepts([rows, unsplit[int(np.argmin(apart))]], -1):
            rows = np.concatenate([rows, unsplit.pop(int(np.argmin(apart)))])
        novel.append(rows)
    renumbered = clusters.copy()
    for number, rows in enumerate(novel):
        renumbered[rows] = n_known + number
    return renumbered


def log_split_ratio(points: Floats, parts: list[Ints], prior: Prior, concentration: float) -> float:
    """Return the log of the Hastings ratio of a split into two parts, rows of `points`."""
    whole, first, second = (
        float(gammaln(len(rows))) + log_evidence(points[rows], prior)
        for rows in (np.concatenate(parts), *parts)
    )
    return math.log(concentration) + first + second - whole


def _halves(points: Floats, rows: Ints, labels: Ints, generator: torch.Generator) -> list[Ints]:
    """Return the rows (n,) of a cluster in two parts, labeled ones in the first; no second part if
    a split is not possible."""
    known = np.where(labels[rows] == UNLABELED, UNLABELED, 0)
    members = points[rows]
    if len(rows) < 2 * SMALLEST_PART or not known.any() or not np.ptp(members, axis=0).any():
        return [rows, rows[:0]]
    halves = semi_supervised_kmeans(
        torch.from_numpy(members), torch.from_numpy(known), 2, generator=generator, n_init=1
    ).labels.numpy()  # (n,)
    return [rows[halves == 0], rows[halves == 1]]


def principal_columns(points: Tensor, n_columns: int) -> Floats:
    """Return points (N, D) in their first `n_columns` principal components, float64."""
    rows = points.double()
    centered = rows - rows.mean(dim=0)
    directions = torch.linalg.eigh(centered.T @ centered).eigenvectors  # (D, D) ascending
    return (centered @ directions[:, -n_columns:]).cpu().numpy()
