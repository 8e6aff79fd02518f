"""Categories from clusters: their numbers and names, and how well each image fits its category.

All numbers come from exact neighbor searches among images and centers, so none depends on the order
of images, the device, the threads or the batch size.

Shapes: N images, M of them described, D columns, k neighbors, K categories of which the first C are
known and F hold images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.matching import match_clusters
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import grouped_sums, row_lengths, similarities

Name = TypeVar("Name", bound=int | str)


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
