"""Carry the categories of a reviewed run over to the next: images, names, ids and cannot-links.

People have merged, split and named categories. Clustering from scratch would use only the labels
and lose the rest, so the frozen result continues from the reviewed categories.

Shapes: N images, D columns, K categories of which the first C are known.
"""

from collections.abc import Mapping, Set
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.categories import category_centers, category_names
from shoal.clustering.matching import contingency
from shoal.clustering.n_clusters import clip_n_clusters
from shoal.clustering.neighbors import k_nearest
from shoal.data.collection import Collection, PreviousCategories
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.methods.method import Discovery
from shoal.review.reviewed_run import COUNTED_BY
from shoal.review.whitening import whitened
from shoal.runs import NO_CATEGORY

# Weight of a labeled image for its category, if an undecided one has 1
LABELED_WEIGHT = 5.0

N_NEIGHBORS = 20

# Weight of the neighbors' categories, compared with a cosine. The constants were chosen on
# Flowers-102 and Caltech-101.
VOTE_WEIGHT = 0.3


def _ids_before(collection: Collection, previous: PreviousCategories) -> Ints:
    """Return the category id (N,) of each image in the review, -1 for none."""
    return np.array([previous.categories.get(name, NO_CATEGORY) for name in collection.names])


def _rejected(collection: Collection, previous: PreviousCategories) -> dict[int, frozenset[int]]:
    """Return by row the ids of the categories that an image was rejected from."""
    return {
        row: previous.cannot_links[name]
        for row, name in enumerate(collection.names)
        if name in previous.cannot_links
    }


def reviewed_ids(collection: Collection) -> Ints:
    """Return the category id (N,) of each image: of its label, else in the review, else -1."""
    previous = collection.previous
    assert previous is not None
    class_ids = np.array([*previous.class_ids, NO_CATEGORY])  # the last one for unlabeled images
    return np.where(
        collection.labels == UNLABELED,
        _ids_before(collection, previous),
        class_ids[collection.labels],
    )


def count_reviewed(collection: Collection) -> int:
    """Return the number of categories with images, either by label or in the review."""
    ids = reviewed_ids(collection)
    return len(np.unique(ids[ids != NO_CATEGORY]))


def n_clusters_to_continue(collection: Collection, settings: DiscoverySettings) -> int | None:
    """Return the number of reviewed categories; None to cluster from scratch.

    Images are clustered from scratch if the settings ask for another number or no must-links.
    """
    if collection.previous is None or not settings.must_link:
        return None
    number = count_reviewed(collection)
    inference = settings.method_settings.inference
    wanted = settings.n_clusters or clip_n_clusters(
        number, inference.min_clusters, inference.max_clusters
    )
    return number if number == wanted else None


def continue_categories(
    discovery: Discovery, collection: Collection
) -> tuple[Discovery, Collection]:
    """Return the discovery with the reviewed categories as its clusters, and the collection with
    the resulting category of each image in `previous`.

    Each unlabeled image joins the nearest category that it was not rejected from, by its whitened
    embedding. Images without a category, because they were rejected
    or are new, form a new category if they are the majority of a cluster.
    """
    previous = collection.previous
    assert previous is not None
    ids = reviewed_ids(collection)
    has_none = ids == NO_CATEGORY
    sizes = np.bincount(discovery.clusters)
    shares = np.bincount(discovery.clusters, weights=has_none) / sizes
    is_new = has_none & (shares > 0.5)[discovery.clusters]
    ids = np.where(is_new, previous.next_id + discovery.clusters, ids)  # ids not used before
    is_labeled = collection.labels != UNLABELED
    cannot_links = _rejected(collection, previous)
    nearest = _nearest_ids(whitened(discovery.embeddings), ids, is_labeled, cannot_links)
    ids = np.where(is_labeled | is_new, ids, nearest)
    categories = {collection.names[row]: int(ids[row]) for row in np.flatnonzero(~is_new)}
    unlinked = discovery.clusters if discovery.unlinked is None else discovery.unlinked
    numbers, clusters = np.unique(ids, return_inverse=True)
    continued = replace(
        discovery,
        clusters=clusters,
        n_clusters=len(numbers),
        estimate=None,
        n_clusters_source=COUNTED_BY,
        unlinked=unlinked,
    )
    return continued, replace(collection, previous=replace(previous, categories=categories))


def _nearest_ids(
    points: Floats, ids: Ints, is_labeled: NDArray[np.bool_], cannot_links: Mapping[int, Set[int]]
) -> Ints:
    """Return for each row (N, C) the id (N,) with the nearest center, of those that `cannot_links`
    does not forbid for it, if there are any; the share of an id among the neighbors is added.

    Labeled rows count more than others for a center and as neighbors.
    """
    numbers, positions = np.unique(ids, return_inverse=True)
    weights = np.where(is_labeled, LABELED_WEIGHT, 1.0)
    weights[ids == NO_CATEGORY] = 0.0
    weighted = torch.from_numpy(points * weights[:, None])
    centers = category_centers(weighted, positions, len(numbers)).numpy()  # (K, C)
    rows = torch.from_numpy(points)
    found = k_nearest(rows, rows, min(N_NEIGHBORS, len(rows) - 1), exclude=torch.arange(len(rows)))
    neighbors = found.indices.numpy()  # (N, k)
    votes = found.similarities.numpy().clip(min=0) * weights[neighbors]
    votes = VOTE_WEIGHT * votes / np.maximum(votes.sum(axis=1, keepdims=True), 1e-12)
    nearest = np.empty(len(points), dtype=np.int64)
    for row, point in enumerate(points):
        scores = centers @ point  # (K,)
        np.add.at(scores, positions[neighbors[row]], votes[row])
        is_allowed = ~np.isin(numbers, [NO_CATEGORY, *cannot_links.get(row, ())])
        if not is_allowed.any():
            is_allowed = numbers != NO_CATEGORY
        nearest[row] = np.where(is_allowed, scores, -np.inf).argmax()
    return numbers[nearest]


def reuse_names(
    categories: Ints, points: Tensor, collection: Collection, previous: PreviousCategories
) -> tuple[Ints, list[str], list[int], dict[int, set[int]]]:
    """Give each category the id and name of the reviewed one with mostly the same images.

    `categories` (N,) are positions, known classes first; `points` (N, D) unit rows. A known class
    without labeled images takes the category with mostly its images. Other categories get new ids
    and names. Images leave the categories they were rejected from.

    Return the new categories (N,), their names and ids (K,), and by row the positions of the
    categories that an image was rejected from.
    """
    classes = collection.classes
    same = match_groups(categories, _ids_before(collection, previous))
    filled = set(categories.tolist())
    position_of = {number: position for position, number in enumerate(previous.class_ids)}
    ids = list(previous.class_ids)
    positions = np.arange(int(categories.max()) + 1)
    next_id = previous.next_id
    for novel in range(len(classes), len(positions)):
        number = same.get(novel)
        if number in position_of and position_of[number] not in filled:
            positions[novel] = position_of[number]  # a known class without labeled images
            continue
        if number is None or number in position_of:
            number = next_id  # no reviewed category has mostly the same images
            next_id += 1
        positions[novel] = len(ids)
        ids.append(number)
    position_of = {number: position for position, number in enumerate(ids)}
    cannot_links = {
        row: {position_of[number] for number in rejected if number in position_of}
        for row, rejected in _rejected(collection, previous).items()
    }
    moved = apply_cannot_links(points, positions[categories], len(ids), cannot_links)
    if int(moved.max()) == len(ids):
        ids.append(next_id)
    taken = sorted({*previous.reserved_names, *previous.names.values(), *classes})
    n_new = sum(number not in previous.names for number in ids)
    new_names = iter(category_names(taken, n_new)[len(taken) :])
    names = list(classes)
    for number in ids[len(classes) :]:
        names.append(previous.names[number] if number in previous.names else next(new_names))
    return moved, names, ids, cannot_links


def match_groups(now: Ints, before: Ints) -> dict[int, int]:
    """Map groups of `now` (N,) to groups of `before` (N,) if they share more than half of the
    images of each.

    Hence each group is matched at most once. Images with -1 in `before` belong to no group there,
    but count for the size of their group in `now`.
    """
    counts, groups, earlier = contingency(before, now)  # (groups of now, groups of before)
    largest = np.maximum(counts.sum(axis=1)[:, None], counts.sum(axis=0))
    rows, columns = np.nonzero((2 * counts > largest) & (earlier != NO_CATEGORY))
    return dict(zip(groups[rows].tolist(), earlier[columns].tolist(), strict=True))


def apply_cannot_links(
    points: Tensor, categories: Ints, n_categories: int, cannot_links: Mapping[int, Set[int]]
) -> Ints:
    """Return categories (N,) of unit rows (N, D) that respect cannot-links.

    `cannot_links` maps a row to its forbidden categories. A row in one of these moves to the
    category with the nearest center that is allowed and has images; if there is none, it gets the
    number K, a new category.
    """
    wrong = {row: ids for row, ids in cannot_links.items() if categories[row] in ids}
    moved = categories.copy()
    if not wrong:
        return moved
    centers = category_centers(points, categories, n_categories)  # (K, D)
    rows = torch.tensor([*wrong], device=points.device)
    cosines = (points[rows].to(centers.dtype) @ centers.T).cpu().numpy()  # (M, K)
    cosines[:, np.bincount(categories, minlength=n_categories) == 0] = -np.inf
    for row, ids in zip(cosines, wrong.values(), strict=True):
        row[[*ids]] = -np.inf
    has_allowed = np.isfinite(cosines).any(axis=1)
    moved[[*wrong]] = np.where(has_allowed, cosines.argmax(axis=1), n_categories)
    return moved
