"""Average linkage above Ward's small clusters: an end of the tree that does not cut large classes
to pieces.

Ward's distance of two clusters grows with their sizes, so at K clusters all are about equally
large: a class with a tenth of the images is cut into several, and small ones are joined instead.
The mean distance of two clusters' images does not depend on how many they are, but single images
that are far from everything would be clusters of their own. So Ward's tree is kept up to a few
small clusters per cluster, and these are joined by their mean squared distance.

N images, D columns, K clusters, M small clusters.
"""

from itertools import islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.categories import category_centers
from shoal.clustering.iterates import iterates
from shoal.clustering.matching import is_worse, put_right
from shoal.clustering.mean_shift import ShiftSettings
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.sums import grouped_sums
from shoal.clustering.tree import Tree

LinkageMethod = Literal["ward", "average"]
"""How the small clusters of Ward's tree are joined to K."""

SMALL_PER_CLUSTER = 6
"""Small clusters for each of the K; 3 and 12 put as many labeled images right."""

MAX_SMALL = 12_000
"""Most small clusters: each two of them have a distance, 1.2 GB for so many."""

MIN_LABELED = 200
MAX_LABELED = 10_000
"""Fewest and most labeled images that choose between the two."""


def join_small(points: Tensor, tree: Tree, n_clusters: int, method: LinkageMethod) -> Tree:
    """The tree to be cut at K: Ward's `tree` of unit rows (N, D), its top joined by `method`."""
    n_small = min(SMALL_PER_CLUSTER * n_clusters, MAX_SMALL, tree.n_distinct)
    if method == "ward" or n_small <= n_clusters:
        return tree
    labels = tree.cut(n_small)  # (N,)
    sizes = np.bincount(labels)  # (M,)
    sums = grouped_sums(points, torch.from_numpy(labels).to(points.device), n_small).cpu().numpy()
    centers = sums / sizes[:, None]  # (M, D)
    # Rows have length 1, so the mean squared distance of two clusters' rows is 2 minus twice their
    # mean product.
    kept, gone, distances = average_linkage(2 - 2 * centers @ centers.T, sizes)
    done = tree.n_leaves - n_small
    below = tree.heights[done - 1] if done else 0.0
    return tree.with_top(n_small, kept, gone, below + np.sqrt(distances.clip(min=0)))


def choose_linkage(
    points: Tensor, labels: Ints, moves: ShiftSettings, n_shifts: int
) -> LinkageMethod:
    """Average linkage where it puts more labeled images right by more than a standard error, else
    Ward's.

    Labeled images of `points` (N, D), unit rows, are clustered alone, after so many shifts, into as
    many clusters as they have classes. Among all images labels cannot say it: they do not see what
    images of novel classes a cluster takes in, and average linkage takes in more of them. Few
    labels say too little.
    """
    if (labels != UNLABELED).sum() < MIN_LABELED:
        return "ward"
    rows = draw_in_proportion(points, labels)
    truth = labels[rows]
    n_classes = len(np.unique(truth))
    if len(rows) < MIN_LABELED or n_classes < 2:
        return "ward"
    alone = points[torch.from_numpy(rows).to(points.device)]
    one = next(islice(iterates(alone, moves), n_shifts, None))
    if one.tree.n_distinct < n_classes:
        return "ward"
    by_average = join_small(one.points, one.tree, n_classes, "average").cut(n_classes)
    by_ward = one.tree.cut(n_classes)
    if is_worse(put_right(truth, by_ward), put_right(truth, by_average)):
        return "average"
    return "ward"


def draw_in_proportion(points: Tensor, labels: Ints) -> Ints:
    """Rows of labeled images, of each class about as many as it has images: people label some
    classes more than others.

    How many images (N, D) a class has is taken from how many are nearest to its mean. Of classes
    with more labels for that than a quarter of the classes have, some are left out, evenly over its
    rows.
    """
    labeled = np.flatnonzero(labels != UNLABELED)
    classes, own = np.unique(labels[labeled], return_inverse=True)
    n_labels = np.bincount(own)  # (C,)
    # (C, D)
    means = category_centers(points[torch.from_numpy(labeled).to(points.device)], own, len(classes))
    nearest = k_nearest(points, means.to(points.dtype), 1).indices[:, 0]  # (N,)
    # (C,)
    n_images = np.maximum(torch.bincount(nearest, minlength=len(classes)).cpu().numpy(), n_labels)
    share = min(float(np.quantile(n_labels / n_images, 0.25)), MAX_LABELED / n_images.sum())
    wanted = np.minimum(n_labels, np.maximum(1, np.rint(share * n_images).astype(np.int64)))  # (C,)
    kept = []
    for c in range(len(classes)):
        evenly = np.linspace(0, n_labels[c] - 1, wanted[c]).round().astype(np.int64)
        kept.append(labeled[own == c][evenly])
    return np.sort(np.concatenate(kept))


def average_linkage(distances: Floats, sizes: Ints) -> tuple[Ints, Ints, Floats]:
    """Join M clusters by average linkage: which slots are `kept` and `gone` at each step, and at
    what distance.

    `distances` (M, M) of clusters of `sizes` (M,). A joined cluster is in the lower slot of the
    two; distances never fall. Two clusters that are each other's nearest can be joined at any time
    without changing what others join later, so a chain of nearest ones is followed until it ends in
    such a pair: M² steps in all.
    """
    apart = distances.astype(np.float64)
    n_left = sizes.astype(np.float64)
    np.fill_diagonal(apart, np.inf)
    joined_at = np.full(len(sizes), -np.inf)
    slots: list[tuple[int, int]] = []
    heights: list[float] = []
    chain: list[int] = []
    while len(slots) < len(sizes) - 1:
        chain = chain or [int((n_left > 0).argmax())]
        last = chain[-1]
        nearest = int(apart[last].argmin())
        if len(chain) == 1 or apart[last, nearest] < apart[last, chain[-2]]:
            chain.append(nearest)
            continue
        kept, gone = sorted(chain[-2:])
        del chain[-2:]
        # Rounding may put a cluster below one that is in it.
        joined_at[kept] = max(apart[kept, gone], joined_at[kept], joined_at[gone])
        slots.append((kept, gone))
        heights.append(joined_at[kept])
        total = n_left[kept] + n_left[gone]
        row = (n_left[kept] * apart[kept] + n_left[gone] * apart[gone]) / total
        apart[kept] = row
        apart[:, kept] = row
        apart[gone] = np.inf
        apart[:, gone] = np.inf
        n_left[kept] = total
        n_left[gone] = 0
    order = np.argsort(heights, kind="stable")
    pairs = np.array(slots, dtype=np.int64).reshape(-1, 2)[order]
    return pairs[:, 0], pairs[:, 1], np.array(heights)[order]
