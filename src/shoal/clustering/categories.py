"""What is known of each image and category once clusters have become categories.

Everything is read off the embeddings and the assignment, by exact neighbor searches among images and among centers,
so that no number depends on the order of images, the device, the threads or how many are described at once.

N images, M of them described, D columns, k neighbors, K categories of which the first C are known and F hold images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.matching import match
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.clustering.sums import grouped_sums, row_lengths, similarities

NONE = -1
"""Where there is no such category."""


@dataclass(frozen=True, eq=False, slots=True)
class Membership:
    """How each image sits in its category; similarities are cosines."""

    confidence: Floats  # (N,) share of the k nearest images that are in the same category
    outlier_score: Floats  # (N,) 1 - mean cosine to the k nearest: near 0 among similar rows, large far from all
    typicality: Floats  # (N,) cosine to the center of the own category
    second: Ints  # (N,) the other category with the nearest center, -1 where there is no other
    nearest_known: Ints  # (N,) the known category with the nearest center, the own one included; -1 without any
    nearest_known_similarity: Floats  # (N,) cosine to that center; NaN without any


def other_neighbors(points: Tensor, n_neighbors: int) -> Neighbors:
    """The neighbors of every row of `points` (N, D) among the others."""
    own = torch.arange(len(points), device=points.device)
    return k_nearest(points, points, min(n_neighbors, len(points) - 1), exclude=own)


def describe_members(
    points: Tensor,
    categories: Ints,
    n_categories: int,
    n_known: int,
    n_neighbors: int,
    lists: Neighbors | None = None,
) -> Membership:
    """Describe every row of `points` (N, D), unit rows, in its category (N,), 0 … K-1, known ones first.

    `lists` are what `other_neighbors` gives, where the caller has them.
    """
    lists = other_neighbors(points, n_neighbors) if lists is None else lists
    return _describe(points, categories, lists, points, categories, n_categories, n_known)


def assign_newcomers(
    newcomers: Tensor,
    points: Tensor,
    categories: Ints,
    n_categories: int,
    n_known: int,
    n_neighbors: int,
    predicted: Ints | None = None,
    unpredicted: Sequence[int] = (),
) -> tuple[Ints, Membership, Neighbors]:
    """Put new rows (M, D) into the categories (N,) of `points` (N, D), describe them, and return their neighbors too.

    They go where a classifier has `predicted` (M,) them to be. Their neighbors vote without one, where it names no
    category that has a row, and where they are for one of those `unpredicted`, which it does not know.
    """
    lists = k_nearest(newcomers, points, min(n_neighbors, len(points)))
    chosen = vote(lists, categories)
    if predicted is not None:
        is_voted = ~np.isin(predicted, categories) | np.isin(chosen, unpredicted)
        chosen = np.where(is_voted, chosen, predicted)
    members = _describe(newcomers, chosen, lists, points, categories, n_categories, n_known)
    return chosen, members, lists


def _describe(
    rows: Tensor,
    chosen: Ints,
    lists: Neighbors,
    points: Tensor,
    categories: Ints,
    n_categories: int,
    n_known: int,
) -> Membership:
    """Describe rows (M, D) in their category (M,), given their neighbors in `points` (N, D) with `categories` (N,)."""
    filled = np.unique(categories)  # (F,) ascending; nothing is near a category without images
    centers = category_centers(points, categories, n_categories)[
        torch.from_numpy(filled).to(points.device)
    ]  # (F, D)
    own = torch.from_numpy(np.searchsorted(filled, chosen)).to(rows.device)  # (M,)
    known, similarity = _nearest(rows, centers[: int((filled < n_known).sum())], filled)
    return Membership(
        confidence=(categories[lists.indices.cpu().numpy()] == chosen[:, None]).mean(axis=1),
        outlier_score=outlier_scores(lists),
        typicality=similarities(rows, centers, own[:, None])[:, 0].cpu().numpy(),
        second=_nearest(rows, centers, filled, exclude=own)[0],
        nearest_known=known,
        nearest_known_similarity=similarity,
    )


def _nearest(
    rows: Tensor, centers: Tensor, named: Ints, exclude: Tensor | None = None
) -> tuple[Ints, Floats]:
    """The category, as `named` (F,), whose center is nearest to each row, and its cosine; -1 and NaN without any."""
    if len(centers) == (0 if exclude is None else 1):
        return np.full(len(rows), NONE), np.full(len(rows), np.nan)
    nearest = k_nearest(rows, centers, 1, exclude=exclude)
    return named[nearest.indices[:, 0].cpu().numpy()], nearest.similarities[:, 0].cpu().numpy()


def number_clusters(
    clusters: Ints, labels: Ints, n_known: int, rows: NDArray[Any]
) -> tuple[Ints, int]:
    """Number clusters as categories: a known class's own number where matched, then novel ones by falling size.

    Clusters are matched to classes on labeled rows. Ties of matching and of size go by size and by the smallest of a
    cluster's `rows` (N, any), so that neither the order of images nor the numbers of clusters decides. Returns (N,)
    numbers and how many are novel.
    """
    ranks = _rank_clusters(clusters, rows)
    labeled = labels != UNLABELED
    number = np.full(int(ranks.max()) + 1, UNLABELED)
    if labeled.any():
        matching = match(labels[labeled], ranks[labeled])
        number[matching.clusters.astype(np.int64)] = matching.classes
    novel = np.flatnonzero(number == UNLABELED)
    number[novel] = n_known + np.arange(len(novel))
    return number[ranks], len(novel)


def _rank_clusters(clusters: Ints, rows: NDArray[Any]) -> Ints:
    """Number clusters (N,) anew, by falling size and then by their smallest row, column after column."""
    _, number, sizes = np.unique(
        clusters, return_inverse=True, return_counts=True
    )  # (N,) and (K,), none of them empty
    members = np.split(np.argsort(number, kind="stable"), np.cumsum(sizes)[:-1])
    smallest = rows[[_smallest(rows, own) for own in members]]  # (K, any)
    order = np.lexsort((*smallest.T[::-1], -sizes))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[number]


def _smallest(rows: NDArray[Any], members: Ints) -> int:
    """The member whose row comes first, column after column; the first one mostly decides."""
    for column in rows.T:
        if len(members) == 1:
            break
        values = column[members]
        members = members[values == values.min()]
    return int(members[0])


def category_names(known: Sequence[Any], n_novel: int) -> list[Any]:
    """The known names, then 'novel-001' … for the novel ones; a number whose name is known already is left out."""
    taken = set(map(str, known))
    free = [
        name for i in range(n_novel + len(taken)) if (name := f"novel-{i + 1:03d}") not in taken
    ]
    return [*known, *free[:n_novel]]


def category_centers(points: Tensor, categories: Ints, n_categories: int) -> Tensor:
    """(K, D) the mean direction of each category of unit rows (N, D) in float64, zeros for one without images."""
    sums = grouped_sums(points, torch.from_numpy(categories).to(points.device), n_categories)
    lengths = row_lengths(sums)[:, None]  # (K, 1)
    return sums / lengths.where(lengths > 0, 1.0)


def same_category_share(lists: Neighbors, categories: Ints) -> Floats:
    """(N,) the share of each row's neighbors, rows of the same collection, that are in its category."""
    same = categories[lists.indices.cpu().numpy()] == categories[:, None]  # (N, k)
    share: Floats = same.mean(axis=1)
    return share


def outlier_scores(lists: Neighbors) -> Floats:
    """(N,) 1 - mean cosine to the neighbors."""
    scores: Floats = 1 - lists.similarities.cpu().numpy().mean(axis=1)
    return scores


def vote(lists: Neighbors, bank_categories: Ints) -> Ints:
    """(N,) the category most common among each row's neighbors, the nearest deciding ties."""
    votes = bank_categories[lists.indices.cpu().numpy()]  # (N, k), nearest first
    counts = (votes[:, :, None] == votes[:, None, :]).sum(axis=2)  # (N, k)
    chosen: Ints = votes[
        np.arange(len(votes)), counts.argmax(axis=1)
    ]  # argmax takes the nearest of equals
    return chosen
