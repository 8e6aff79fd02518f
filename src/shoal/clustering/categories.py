"""Categories from clusters: their numbers and names, how well each image fits its category, and
which categories may be mixtures of two, a known one with a novel one, or two novel ones.

All numbers come from exact neighbor searches among images and centers, so none depends on the order
of images, the device, the threads or the batch size.

For mixtures, a Ward tree is built for each category, and two kinds of evidence score its splits.
Height: two categories are farther apart than two halves of one category; the other categories
provide the typical height. Labels: a split of one class has labels on both sides, while a novel
category has none. Labels are evidence only for embeddings that were not trained with them, so pass
those of the frozen encoder.

Shapes: N images, M of them described, D columns, k neighbors, K categories of which the first C are
known and F hold images; n images of one category, S candidate splits of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TypeVar

import numpy as np
import torch
from scipy.special import expit, gammaln
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Floats, Ints
from shoal.clustering.matching import match_clusters
from shoal.clustering.mean_shift import unit_tree
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import grouped_sums, row_lengths, similarities

Name = TypeVar("Name", bound=int | str)

# Weight of log(height of the split / median height of the categories) in the log-odds. The weights
# and the prior come from a logistic regression on Flowers-102 and CUB-200.
HEIGHT_WEIGHT = 7.0

# Weight of the log-likelihood ratio of the labels; below 1, because labeled images are not
# independent
LABEL_WEIGHT = 0.45

# Weight of log(size of the category / median size of the categories)
SIZE_WEIGHT = 2.1

# Log-odds of a split of median height in a category of median size without labels
PRIOR = -4.5

# Limits of the log-likelihood ratio, so that labels alone never decide
LABEL_RATIO_RANGE = (-8.0, 6.0)

# Expected share of labels on the novel side of a correct split, caused by errors of the tree
STRAY_LABELS = 0.05

# Smallest share of a category that is split off
MIN_SHARE = 0.1

# Smallest size of a category that may be split
MIN_IMAGES = 4

# Largest number of images in the tree of a category; the others join the nearer side
MAX_COMPARED = 2_000

# Probability above which a known category is split, if the number of categories is estimated
SPLIT_FROM = 0.5


@dataclass(frozen=True)
class Membership:
    """How well each image fits its category."""

    confidence: Floats  # (N,) share of the k nearest images that are in the same category
    outlier_score: Floats  # (N,) 1 - mean cosine to the k nearest: near 0 among similar rows
    typicality: Floats  # (N,) cosine to the center of its category
    second: Ints  # (N,) the other category with the nearest center; -1 without any
    nearest_known: Ints  # (N,) the known category with the nearest center; -1 without any
    nearest_known_similarity: Floats  # (N,) cosine to that center; NaN without any


def other_neighbors(points: Tensor, n_neighbors: int) -> Neighbors:
    """Return the neighbors of every row of `points` (N, D) among the others."""
    itself = torch.arange(len(points), device=points.device)
    return k_nearest(points, points, min(n_neighbors, len(points) - 1), exclude=itself)


def assign_new(
    new: Tensor,
    points: Tensor,
    categories: Ints,
    n_known: int,
    n_neighbors: int,
    predicted: Ints | None = None,
    unpredicted: Sequence[int] = (),
) -> tuple[Ints, Membership, Neighbors]:
    """Assign new rows (M, D) to the categories (N,) of `points` (N, D); return their categories,
    their membership and their neighbors.

    The category is the one `predicted` (M,) by a classifier. The neighbors vote if there is no
    classifier, if it predicts a category without images, and if they vote for a category in
    `unpredicted`, which it does not know.
    """
    lists = k_nearest(new, points, min(n_neighbors, len(points)))
    chosen = vote(lists, categories)
    if predicted is not None:
        is_voted = ~np.isin(predicted, categories) | np.isin(chosen, unpredicted)
        chosen = np.where(is_voted, chosen, predicted)
    return chosen, describe(new, chosen, lists, points, categories, n_known), lists


def describe(
    rows: Tensor, chosen: Ints, lists: Neighbors, points: Tensor, categories: Ints, n_known: int
) -> Membership:
    """Return the membership of unit rows (M, D) in their category (M,), by their neighbors in
    `points` (N, D) with `categories` (N,), 0 … K-1, known ones first."""
    # Ascending; categories without images have no center.
    filled, position = np.unique(categories, return_inverse=True)
    centers = category_centers(points, position, len(filled))  # (F, D)
    at = torch.from_numpy(np.searchsorted(filled, chosen)).to(rows.device)  # (M,)
    second = np.full(len(rows), UNLABELED)
    nearest_known = second
    if len(filled) > 1:
        nearest = k_nearest(rows, centers, 1, exclude=at)
        second = filled[nearest.indices[:, 0].cpu().numpy()]
    similarity = np.full(len(rows), np.nan)
    known = centers[: int((filled < n_known).sum())]
    if len(known):
        nearest = k_nearest(rows, known, 1)
        nearest_known = filled[nearest.indices[:, 0].cpu().numpy()]
        similarity = nearest.similarities[:, 0].cpu().numpy()
    return Membership(
        confidence=same_category_share(lists, categories, chosen),
        outlier_score=outlier_scores(lists),
        typicality=similarities(rows, centers, at[:, None])[:, 0].cpu().numpy(),
        second=second,
        nearest_known=nearest_known,
        nearest_known_similarity=similarity,
    )


def number_clusters(clusters: Ints, labels: Ints, n_known: int, rows: Floats) -> tuple[Ints, int]:
    """Number clusters as categories: matched ones as their class, then novel ones by decreasing
    size; return the numbers (N,) and how many are novel.

    Clusters are matched to classes on labeled rows. Ties are broken by size and by the smallest of
    a cluster's `rows` (N, any), so that neither the order of images nor the numbers of clusters
    matters.
    """
    _, number, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(number, kind="stable"), np.cumsum(sizes)[:-1])
    # Lists are compared by their first numbers that differ.
    smallest = rows[[min(part, key=lambda row: rows[row].tolist()) for part in members]]  # (K, any)
    rank = np.argsort(np.lexsort((*smallest.T[::-1], -sizes)))[number]  # (N,)
    category = match_clusters(labels, rank)  # (K,)
    novel = np.flatnonzero(category == UNLABELED)
    category[novel] = n_known + np.arange(len(novel))
    return category[rank], len(novel)


def category_names(known: Sequence[Name], n_novel: int) -> list[Name | str]:
    """Return the known names, then 'novel-001' … for the novel categories, skipping names that are
    known."""
    taken = set(map(str, known))
    free = (f"novel-{i:03d}" for i in count(1))
    return [*known, *islice((name for name in free if name not in taken), n_novel)]


def category_centers(points: Tensor, categories: Ints, n_categories: int) -> Tensor:
    """Return the mean direction (K, D), float64, of each category of unit rows (N, D); zeros for a
    category without images."""
    sums = grouped_sums(points, torch.from_numpy(categories).to(points.device), n_categories)
    lengths = row_lengths(sums)[:, None]  # (K, 1)
    return sums / lengths.where(lengths > 0, 1.0)


def same_category_share(lists: Neighbors, categories: Ints, row_categories: Ints) -> Floats:
    """Return the share (M,) of each row's neighbors that are in its category.

    `categories` (N,) are those of the bank, `row_categories` (M,) those of the rows.
    """
    neighbor_categories = categories[lists.indices.cpu().numpy()]  # (M, k)
    return (neighbor_categories == row_categories[:, None]).mean(axis=1)


def outlier_scores(lists: Neighbors) -> Floats:
    """Return 1 - mean cosine to the neighbors: (N,)."""
    return 1 - lists.similarities.cpu().numpy().mean(axis=1)


def vote(lists: Neighbors, bank_categories: Ints) -> Ints:
    """Return the most common category (N,) among each row's neighbors, the nearest on ties."""
    votes = bank_categories[lists.indices.cpu().numpy()]  # (N, k), nearest first
    counts = (votes[:, :, None] == votes[:, None, :]).sum(axis=2)  # (N, k)
    # on ties, argmax returns the first, which is the nearest
    return votes[np.arange(len(votes)), counts.argmax(axis=1)]


@dataclass(frozen=True)
class Mixtures:
    """The probability that each category is a mixture, and its most probable split."""

    probability: Floats  # (K,)
    # (N,) whether an image is in the part that the split would move to another category
    is_apart: Bools


def find_mixtures(points: Tensor, categories: Ints, labels: Ints, n_categories: int) -> Mixtures:
    """Search each of the `categories` (N,), 0 … K-1, for a second category, given unit rows
    `points` (N, D) and `labels` (N,), -1 for unlabeled."""
    probability = np.zeros(n_categories)
    is_apart = np.zeros(len(categories), dtype=bool)
    searched = np.flatnonzero(np.bincount(categories) >= MIN_IMAGES)
    if not len(searched):
        return Mixtures(probability, is_apart)
    scores = []
    heights = []
    for category in searched:
        rows = np.flatnonzero(categories == category)
        members = points[torch.from_numpy(rows).to(points.device)]
        score, height, is_part = _best_split(members, labels[rows] != UNLABELED)
        is_apart[rows[is_part]] = True
        scores.append(score)
        heights.append(height)
    sizes = np.bincount(categories)[searched]
    log_odds = PRIOR + SIZE_WEIGHT * np.log(sizes / np.median(sizes)) + scores
    log_odds -= HEIGHT_WEIGHT * _log(float(np.median(heights)))
    probability[searched] = expit(log_odds)
    return Mixtures(probability, is_apart)


def split_mixtures(
    clusters: Ints, labels: Ints, mixtures: Mixtures, max_splits: int | None = None
) -> Ints:
    """Return the clusters (N,) after splitting every labeled one that is probably a mixture; new
    clusters are numbered after the others.

    Clusters without labels are not split, because height alone is weak evidence. Labeled images
    stay in their cluster. At most `max_splits` clusters are added, the most probable first.
    """
    split = clusters.copy()
    next_cluster = len(mixtures.probability)
    likely = np.argsort(-mixtures.probability, kind="stable")[:max_splits]
    for cluster in likely[mixtures.probability[likely] >= SPLIT_FROM]:
        is_member = clusters == cluster
        is_moved = is_member & mixtures.is_apart & (labels == UNLABELED)
        if (labels[is_member] != UNLABELED).any() and is_moved.any():
            split[is_moved] = next_cluster
            next_cluster += 1
    return split


def _best_split(points: Tensor, is_labeled: Bools) -> tuple[float, float, Bools]:
    """Return the score of a category's best split, the greatest height among its splits, and which
    of its images (n,) are split off.

    Each node of its tree is compared with the category's other images.
    """
    step = max(1, -(-len(points) // MAX_COMPARED))  # rounded up
    is_known = is_labeled[::step]
    compared = points[::step]
    n = len(compared)
    linkage = unit_tree(compared).linkage
    nodes = list(np.arange(n)[:, None])
    for left, right in linkage[:, :2].astype(np.int64):
        nodes.append(np.concatenate([nodes[left], nodes[right]]))
    smallest = max(2, MIN_SHARE * n)
    parts = [node for node in nodes if smallest <= len(node) <= n - 2]
    parts = parts or [nodes[int(linkage[-1, 0])]]
    vectors = compared.double().cpu().numpy()
    sums = np.stack([vectors[part].sum(axis=0) for part in parts])  # (S, D)
    sizes = np.array([len(part) for part in parts])  # (S,)
    rest = n - sizes
    gaps = sums / sizes[:, None] - (vectors.sum(axis=0) - sums) / rest[:, None]
    # The height at which Ward's method would merge the two sides.
    heights = np.sqrt(2 * sizes * rest / n) * np.linalg.norm(gaps, axis=1)  # (S,)
    scores = HEIGHT_WEIGHT * _log(heights) + LABEL_WEIGHT * label_ratios(parts, is_known)
    best = int(scores.argmax())
    is_part = np.zeros(n, dtype=bool)
    is_part[parts[best]] = True
    if not is_known.any() and 2 * is_part.sum() > n:
        is_part = ~is_part  # without labels, the smaller part is split off
    if n < len(points):  # assign all images to the nearer mean
        inside = torch.from_numpy(is_part).to(points.device)
        mean = compared[inside].mean(dim=0)
        other = compared[~inside].mean(dim=0)
        is_part = ((points - (mean + other) / 2) @ (mean - other) > 0).cpu().numpy()
    return float(scores[best]), float(heights.max()), is_part


def label_ratios(parts: Sequence[Ints], is_labeled: Bools) -> Floats:
    """Return log P(labels per side | two categories) - log P(labels per side | one), (S,), for
    `parts` of n images."""
    n = len(is_labeled)
    n_labeled = int(is_labeled.sum())
    if n_labeled in (0, n):
        return np.zeros(len(parts))
    sizes = np.array([len(part) for part in parts])
    in_part = np.array([is_labeled[part].sum() for part in parts])
    in_rest = n_labeled - in_part
    # Two categories: each label is on the novel side with probability STRAY_LABELS (binomial).
    if_two = _log_choose(n_labeled, in_part)
    if_two += in_part * np.log(STRAY_LABELS) + in_rest * np.log(1 - STRAY_LABELS)
    # One category: labels are a random sample of its images (hypergeometric).
    if_one = _log_choose(sizes, in_part) + _log_choose(n - sizes, in_rest)
    if_one -= _log_choose(n, n_labeled)
    return np.clip(if_two - if_one, *LABEL_RATIO_RANGE)


def _log(height: Floats | float) -> Floats:
    return np.asarray(np.log(np.maximum(height, np.finfo(np.float64).tiny)))


def _log_choose(n: Ints | int, k: Ints | int) -> Floats:
    return gammaln(np.add(n, 1)) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1)
