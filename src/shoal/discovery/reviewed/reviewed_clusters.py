"""The first answer after a review goes on from the categories that people left, not from clusters
made anew.

People have merged, split and named categories. Clusters made anew on the same embeddings know of
that only what labels say, and put images that nobody has decided on back to where they were wrong.

N images, D columns, K categories.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Bools, Ints
from shoal.clustering.categories import category_centers
from shoal.clustering.n_clusters import keep_to
from shoal.clustering.neighbors import k_nearest
from shoal.data.collection import Collection
from shoal.discovery.discovery_settings import DiscoverySettings
from shoal.methods.clusters import Discovery
from shoal.review.decisions import COUNTED_BY

NONE = -1


def reviewed_number(collection: Collection, settings: DiscoverySettings) -> int | None:
    """How many categories to go on with; None where clusters are made anew.

    They are where another number is asked for, and where labels are not to be held to.
    """
    if not settings.must_link:
        return None
    number = n_reviewed(collection)
    inference = settings.of_method.inference
    asked = settings.n_clusters or keep_to(number, inference.min_clusters, inference.max_clusters)
    return number if number == asked else None


def n_reviewed(collection: Collection) -> int:
    """How many categories with images people left, with those of labels that came later."""
    ids = reviewed_ids(collection)
    return len(np.unique(ids[ids != NONE]))


def reviewed_ids(collection: Collection) -> Ints:
    """(N,) the id of the category that each image is labeled with, or else was left in; -1 for
    none."""
    earlier = collection.earlier
    labels = collection.labels
    assert earlier is not None
    before = np.array([earlier.categories.get(name, NONE) for name in collection.names])
    class_ids = np.array([*earlier.class_ids, NONE])  # the last one for unlabeled images
    return np.where(labels == UNLABELED, before, class_ids[labels])


def go_on(
    discovery: Discovery, points: Tensor, collection: Collection
) -> tuple[Discovery, Collection]:
    """Reviewed categories instead of the clusters of `discovery`, and the collection with what they
    are.

    Every unlabeled image is in the one whose center is nearest to its embedding, of `points` (N,
    D), unit rows. Where most of a cluster that was found has no category, because it was thrown out
    or came later, these images are a new one.
    """
    earlier = collection.earlier
    ids = reviewed_ids(collection)
    assert earlier is not None
    is_new = _is_new(discovery.clusters, ids == NONE)
    begun = np.where(
        is_new, earlier.next_id + discovery.clusters, ids
    )  # (N,) new ones under numbers that none had
    is_free = (collection.labels == UNLABELED) & ~is_new
    now = np.where(is_free, _nearest(points, begun), begun)
    kept = {
        name: int(c) for name, c, new in zip(collection.names, now, is_new, strict=True) if not new
    }
    unlinked = discovery.clusters if discovery.unlinked is None else discovery.unlinked
    numbers, clusters = np.unique(now, return_inverse=True)
    how: dict[str, Any] = {"estimate": None, "counted_by": COUNTED_BY, "unlinked": unlinked}
    return (
        replace(discovery, clusters=clusters, n_clusters=len(numbers), **how),
        replace(collection, earlier=replace(earlier, categories=kept)),
    )


def _is_new(clusters: Ints, has_none: Bools) -> Bools:
    """(N,) which images of no category are in a cluster that is mostly such images."""
    shares = np.bincount(clusters, weights=has_none) / np.bincount(clusters)
    is_new: Bools = has_none & (shares > 0.5)[clusters]
    return is_new


def _nearest(points: Tensor, ids: Ints) -> Ints:
    """(N,) the id whose images, of those that have one, have the nearest center."""
    rows = np.flatnonzero(ids != NONE)
    named, numbers = np.unique(ids[rows], return_inverse=True)
    centers = category_centers(
        points[torch.from_numpy(rows).to(points.device)], numbers, len(named)
    )
    nearest = k_nearest(points, centers.to(points.dtype), 1).indices[:, 0].cpu().numpy()
    nearest_ids: Ints = named[nearest]
    return nearest_ids
