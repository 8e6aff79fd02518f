"""Average linkage of small Ward clusters, which does not split large classes.

Ward's distance between two clusters grows with their sizes, so the clusters of a cut are of similar
size: a class with a tenth of the images is split, and small classes are merged instead. The mean
distance between the images of two clusters does not depend on their sizes, but with average linkage
alone, outliers would become separate clusters. Therefore Ward's tree is used down to a few small
clusters per cluster, and these are merged by their mean squared distance.

Shapes: N images, D columns, K clusters, M small clusters, C classes.
"""

from itertools import islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Floats, Ints
from shoal.clustering.categories import category_centers
from shoal.clustering.matching import correct_images, is_worse
from shoal.clustering.mean_shift import ShiftSettings, iterates
from shoal.clustering.neighbors import k_nearest
from shoal.clustering.sums import grouped_means
from shoal.clustering.tree import Tree

# How the small clusters of Ward's tree are merged into K
LinkageMethod = Literal["ward", "average"]

# Small clusters per cluster; 3 and 12 gave the same accuracy
SMALL_PER_CLUSTER = 6

# Largest number of small clusters; the distances of all their pairs take 1.2 GB
MAX_SMALL = 12_000

# Smallest and largest number of labeled images that choose the linkage
MIN_LABELED = 200
MAX_LABELED = 10_000


def join_small(points: Tensor, tree: Tree, n_clusters: int, method: LinkageMethod) -> Tree:
    """Return Ward's `tree` of unit rows (N, D) with the merges above its small clusters replaced by
    those of `method`."""
    n_small = min(SMALL_PER_CLUSTER * n_clusters, MAX_SMALL, tree.n_distinct)
    if method == "ward" or n_small <= n_clusters:
        return tree
    labels = tree.cut(n_small)  # (N,)
    sizes = np.bincount(labels)  # (M,)
    groups = torch.from_numpy(labels).to(points.device)
    centers = grouped_means(points, groups, n_small).cpu().numpy()  # (M, D)
    # Rows have length 1, so the mean squared distance between the rows of two clusters is 2 minus
    # twice their mean product.
    kept, gone, distances = average_linkage(2 - 2 * centers @ centers.T, sizes)
    n_merges = tree.n_leaves - n_small
    below = tree.heights[n_merges - 1] if n_merges else 0.0
    return tree.with_top(n_small, kept, gone, below + np.sqrt(distances.clip(min=0)))


def choose_linkage(
    points: Tensor, labels: Ints, shift: ShiftSettings, n_shifts: int
) -> LinkageMethod:
    """Return "average" if it is more accurate than Ward's linkage by over a standard error.

    Only the labeled images of `points` (N, D), unit rows, are clustered, after `n_shifts` shifts,
    into as many clusters as they have classes. With all images the comparison would be biased:
    average linkage adds more images of novel classes to known clusters, which labels do not show.
    """
    rows = sample_labeled(points, labels)
    truth = labels[rows]
    n_classes = len(np.unique(truth))
    if len(rows) < MIN_LABELED or n_classes < 2:
        return "ward"
    labeled_points = points[torch.from_numpy(rows).to(points.device)]
    iterate = next(islice(iterates(labeled_points, shift), n_shifts, None))
    by_average = join_small(iterate.points, iterate.tree, n_classes, "average").cut(n_classes)
    by_ward = iterate.tree.cut(n_classes)
    if is_worse(correct_images(truth, by_ward), correct_images(truth, by_average)):
        return "average"
    return "ward"


def sample_labeled(points: Tensor, labels: Ints) -> Ints:
    """Return a sample of the labeled rows in which each class is in proportion to its estimated
    number of images.

    People label some classes more than others. The number of images of a class is estimated by how
    many of the `points` (N, D) are nearest to its mean. The sampled share of each class is one that
    three quarters of the classes have enough labels for; rows are sampled at even intervals.
    """
    labeled = np.flatnonzero(labels != UNLABELED)
    if len(labeled) < MIN_LABELED:
        return labeled
    classes, class_of = np.unique(labels[labeled], return_inverse=True)
    n_labels = np.bincount(class_of)  # (C,)
    labeled_points = points[torch.from_numpy(labeled).to(points.device)]
    means = category_centers(labeled_points, class_of, len(classes))  # (C, D)
    nearest = k_nearest(points, means.to(points.dtype), 1).indices[:, 0]  # (N,)
    n_nearest = torch.bincount(nearest, minlength=len(classes)).cpu().numpy()
    n_images = np.maximum(n_nearest, n_labels)  # (C,)
    share = min(float(np.quantile(n_labels / n_images, 0.25)), MAX_LABELED / n_images.sum())
    n_sampled = np.maximum(1, np.rint(share * n_images).astype(np.int64))
    n_sampled = np.minimum(n_labels, n_sampled)  # (C,)
    sampled = []
    for c in range(len(classes)):
        evenly = np.linspace(0, n_labels[c] - 1, n_sampled[c]).round().astype(np.int64)
        sampled.append(labeled[class_of == c][evenly])
    return np.sort(np.concatenate(sampled))


def average_linkage(distances: Floats, sizes: Ints) -> tuple[Ints, Ints, Floats]:
    """Merge M clusters of `sizes` (M,) by average linkage of their `distances` (M, M).

    Return, for each merge, the slots `kept` and `gone`, and the distance, which never decreases. A
    union is stored in the lower of the two slots. The nearest-neighbor chain algorithm needs M²
    operations: mutual nearest neighbors can be merged at any time without changing later merges.
    """
    apart = distances.astype(np.float64)
    n_left = sizes.astype(np.float64)
    np.fill_diagonal(apart, np.inf)
    height_of = np.full(len(sizes), -np.inf)
    slots: list[tuple[int, int]] = []
    heights: list[float] = []
    chain: list[int] = []
    while len(slots) < len(sizes) - 1:
        if not chain:
            chain = [int((n_left > 0).argmax())]
        last = chain[-1]
        nearest = int(apart[last].argmin())
        if len(chain) == 1 or apart[last, nearest] < apart[last, chain[-2]]:
            chain.append(nearest)
            continue
        kept, gone = sorted(chain[-2:])
        del chain[-2:]
        # Because of rounding, a union may be lower than one of its parts.
        height_of[kept] = max(apart[kept, gone], height_of[kept], height_of[gone])
        slots.append((kept, gone))
        heights.append(height_of[kept])
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
