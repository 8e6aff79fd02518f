"""A mixture of Gaussians with an unknown number of them: clusters are split in two and joined by
the Hastings ratio.

Each cluster is a Gaussian whose mean and covariance are unknown, with a normal-inverse-Wishart
prior, so how well it explains its points has a closed form in which both are integrated out. A
split, or a join, is made with the probability that the ratio of the explanations after and before
gives. The prior comes from the labeled classes: clusters are expected to be as wide as these, and
as far apart.

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
"""Points that each part of a split has at least."""

VAGUE_MEAN = 1e-4
VAGUE_WIDTH = 0.005
"""The prior without labeled classes to take it from: points that a mean is worth, and the variance
of a column."""


@dataclass(frozen=True, eq=False, slots=True)
class Prior:
    """What is expected of a cluster before any of its points is seen."""

    mean: Floats
    """(D,) where it lies."""
    mean_weight: float
    """κ: how many points that is worth."""
    scatter: Floats
    """(D, D) Ψ: the scatter of its points around their mean."""
    freedom: float
    """ν: how many points that is worth, and D more."""


def prior_of_classes(points: Floats, labels: Ints) -> Prior:
    """Take the prior from the labeled classes among points (N, D), `labels` (N,) with -1 for
    unlabeled.

    Their pooled covariance is worth as many points as it comes from.
    """
    n_columns = points.shape[1]
    mean = points.mean(axis=0)
    vague = Prior(mean, VAGUE_MEAN, VAGUE_WIDTH * np.eye(n_columns), n_columns + 2.0)
    classes, counts = np.unique(labels[labels != UNLABELED], return_counts=True)
    if len(classes) < 2 or counts.sum() <= len(classes):
        return vague
    centers = np.stack([points[labels == each].mean(axis=0) for each in classes])  # (C, D)
    apart = np.concatenate([points[labels == classes[i]] - centers[i] for i in range(len(classes))])
    within = apart.T @ apart / (len(apart) - len(classes))  # (D, D)
    # A little of every direction, where labels are too few to fill all.
    within += 1e-3 * np.trace(within) / n_columns * np.eye(n_columns)
    worth = float(len(apart) - len(classes))
    between = ((centers - mean) ** 2).mean(axis=0).sum()
    weight = float(np.clip(np.trace(within) / max(between, 1e-12), VAGUE_MEAN, 1.0))
    return Prior(mean, weight, worth * within, n_columns + 1.0 + worth)


def log_evidence(points: Floats, prior: Prior) -> float:
    """The log of the density of points (n, D) as one cluster, its mean and covariance integrated
    out."""
    n, n_columns = points.shape
    weight = prior.mean_weight + n
    freedom = prior.freedom + n
    center = points.mean(axis=0)
    apart = points - center
    off = center - prior.mean
    scatter = prior.scatter + apart.T @ apart + prior.mean_weight * n / weight * np.outer(off, off)
    before, after = (float(np.linalg.slogdet(matrix)[1]) for matrix in (prior.scatter, scatter))
    return float(
        -n * n_columns / 2 * math.log(math.pi)
        + multigammaln(freedom / 2, n_columns)
        - multigammaln(prior.freedom / 2, n_columns)
        + prior.freedom / 2 * before
        - freedom / 2 * after
        + n_columns / 2 * math.log(prior.mean_weight / weight)
    )


def log_split_ratio(
    whole: Floats, first: Floats, second: Floats, prior: Prior, concentration: float
) -> float:
    """The log of the Hastings ratio of two clusters against one; that of joining them is its
    negative."""
    parts = sum(float(gammaln(len(part))) + log_evidence(part, prior) for part in (first, second))
    return math.log(concentration) + parts - float(gammaln(len(whole))) - log_evidence(whole, prior)


def split_and_merge(
    points: Floats,
    clusters: Ints,
    labels: Ints,
    prior: Prior,
    *,
    concentration: float,
    generator: torch.Generator,
) -> Ints:
    """(N,) the clusters after each was tried once: split in two, else joined with the nearest that
    was not split.

    `labels` (N,) are 0 … C-1, the clusters of the known classes, and -1 for unlabeled. A known
    class may give away unlabeled points but no labeled one, and is never joined. Novel clusters are
    numbered anew, from C up. Equal states of the generator give equal results.
    """
    n_known = int(labels.max(initial=-1)) + 1
    renumbered = clusters.copy()
    novel: list[Ints] = []
    unsplit: list[Ints] = []
    for number in range(int(clusters.max(initial=-1)) + 1):
        rows = np.flatnonzero(clusters == number)
        parts = _try_split(points, rows, labels, prior, concentration, generator)
        if number < n_known:
            novel += parts[1:]  # the first part stays with the class
        elif len(parts) == 2:
            novel += parts
        elif len(rows):
            unsplit.append(rows)
    novel += _merged(points, unsplit, prior, concentration, generator)
    for number, rows in enumerate(novel):
        renumbered[rows] = n_known + number
    return renumbered


def _try_split(
    points: Floats,
    rows: Ints,
    labels: Ints,
    prior: Prior,
    concentration: float,
    generator: torch.Generator,
) -> list[Ints]:
    """The two parts of a cluster's rows (n,) where it is split, labeled ones in the first; else the
    rows themselves."""
    given = np.where(labels[rows] == UNLABELED, UNLABELED, 0)
    own = points[rows]
    if len(rows) < 2 * SMALLEST_PART or not given.any() or not np.ptp(own, axis=0).any():
        return [rows]
    halves = semi_supervised_kmeans(
        torch.from_numpy(own), torch.from_numpy(given), 2, generator=generator, n_init=1
    ).labels.numpy()  # (n,)
    if np.bincount(halves, minlength=2).min() < SMALLEST_PART:
        return [rows]
    ratio = log_split_ratio(own, own[halves == 0], own[halves == 1], prior, concentration)
    if not _accepts(ratio, generator):
        return [rows]
    return [rows[halves == 0], rows[halves == 1]]


def _merged(
    points: Floats,
    clusters: list[Ints],
    prior: Prior,
    concentration: float,
    generator: torch.Generator,
) -> list[Ints]:
    """Rows of each cluster after those that explain their points better as one were joined, each at
    most once."""
    centers = np.array([points[rows].mean(axis=0) for rows in clusters])
    is_gone = np.zeros(len(clusters), dtype=bool)
    groups: list[Ints] = []
    for i, rows in enumerate(clusters):
        if is_gone[i]:
            continue
        is_gone[i] = True
        if not is_gone.all():
            distances = ((centers - centers[i]) ** 2).sum(axis=1)
            nearest = int(np.where(is_gone, np.inf, distances).argmin())
            other = clusters[nearest]
            both = np.concatenate([rows, other])
            ratio = log_split_ratio(points[both], points[rows], points[other], prior, concentration)
            if _accepts(-ratio, generator):
                is_gone[nearest] = True
                rows = both
        groups.append(rows)
    return groups


def _accepts(log_ratio: float, generator: torch.Generator) -> bool:
    """Whether a change is made, with the probability min(1, ratio)."""
    return float(torch.rand(1, dtype=torch.float64, generator=generator).log()) < log_ratio


def principal_columns(points: Tensor, n_columns: int) -> Floats:
    """(N, n) points (N, D) in the directions in which they vary most, float64; all of them where D
    is no more."""
    rows = points.double()
    centered = rows - rows.mean(dim=0)
    directions = torch.linalg.eigh(centered.T @ centered).eigenvectors  # (D, D) ascending
    projected: Floats = (centered @ directions[:, -n_columns:]).cpu().numpy()
    return projected
