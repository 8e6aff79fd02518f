"""Labels as constraints: less variance within classes, and must-links.

Images of a class are made more alike, also those of novel classes: the labeled images of a class
differ in pose, light or background, and so do those of other classes. The directions of these
differences are scaled down for all images, by λ / (v + λ) where the variance within the known
classes is v. Only embeddings that were not trained with the labels show how the images of novel
classes differ.

Must-links: the labeled images of a class start as one cluster, and no cluster holds two classes.
Each labeled row is replaced by the mean of its class. Ward joins equal rows first, into a cluster
of the right center and size, which is all that its distances depend on: so the tree starts from the
classes. A cluster of the cut that holds several classes is split again, each row going to the
nearest of their means.

Shapes: N images, L of them labeled, D columns, C classes, K clusters, R = min(L, D).
"""

from bisect import bisect_right

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.average import LinkageMethod, join_small
from shoal.clustering.mean_shift import onto_sphere, unit_tree
from shoal.clustering.sums import BLOCK_ROWS, equal_rows, grouped_means
from shoal.clustering.tree import Tree, number_by_first

# λ, as a share of the mean of v, weighted by v. On CUB-200 and Caltech-101, 1 was as accurate, and
# 3 less (benchmarks/results/2026-11-18_2-core-arm_within_class.md).
RIDGE = 0.3

# Numbers are rounded to multiples of 1 / GRID, far more than the rounding errors of matrix
# products, so that threads and devices rarely give different bits
GRID = 2.0**18

# Mean squared distance from the class mean that may be due to rounding
NO_VARIANCE = 1e-12


@torch.no_grad()
def reduce_within_class(points: Tensor, labels: Ints, n_frozen: int | None = None) -> Tensor:
    """Return unit rows (N, D) with less variance within the classes of `labels` (N,), -1 for
    unlabeled.

    `points` (N, D) are unit rows. They are returned unchanged if no class has two different rows.
    Of a blend, only the first `n_frozen` columns are changed, which are not trained with labels.
    """
    if n_frozen is not None and n_frozen < points.shape[1]:
        frozen = points[:, :n_frozen]
        lengths = frozen.norm(dim=1, keepdim=True)
        reduced = reduce_within_class(frozen / lengths, labels)
        return torch.cat([reduced * lengths, points[:, n_frozen:]], dim=1)
    labeled = np.flatnonzero(labels != UNLABELED)
    classes, class_of = np.unique(labels[labeled], return_inverse=True)
    rows = points[torch.from_numpy(labeled).to(points.device)]  # (L, D)
    groups = torch.from_numpy(class_of).to(points.device)
    residuals = rows.double() - grouped_means(rows, groups, len(classes))[groups]  # (L, D)
    if not len(rows) or residuals.square().sum() <= NO_VARIANCE * len(rows):
        return points
    residuals = torch.linalg.qr(residuals, mode="r").R  # (R, D), with the same covariance
    products = residuals @ residuals.T  # (R, R)
    ridge = RIDGE * products.square().sum() / products.trace()
    products.diagonal().add_(ridge)
    weights = torch.linalg.solve(products, residuals)  # (R, D)
    mean = grouped_means(points, torch.zeros_like(points[:, 0], dtype=torch.int64), 1)  # (1, D)
    reduced = torch.empty_like(points)
    for start in range(0, len(points), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        centered = points[part].double() - mean
        moved = centered - centered @ residuals.T @ weights
        reduced[part] = onto_sphere((moved * GRID).round() / GRID, points[part])
    return reduced


def linked_clusters(
    points: Tensor, labels: Ints, n_clusters: int, method: LinkageMethod = "ward"
) -> tuple[Tree, Ints] | None:
    """Return the tree of `points` (N, D) that starts from the classes in `labels` (N,), -1 for
    unlabeled, and K clusters (N,) numbered by their first image; None if K does not allow it.

    The tree is cut higher by as many clusters as are split.
    """
    classes = _label_copies(points, labels)  # (N,)
    labeled = torch.from_numpy(np.flatnonzero(classes != UNLABELED)).to(points.device)  # (L,)
    class_of = torch.from_numpy(classes[classes != UNLABELED]).to(points.device)  # (L,)
    n_classes = int(classes.max()) + 1
    means = grouped_means(points[labeled], class_of, n_classes).to(points.dtype)
    rows = points.clone()
    rows[labeled] = means[class_of]
    tree = unit_tree(rows)
    if tree.n_distinct < n_clusters:
        return None
    tree = join_small(points, tree, n_clusters, method)
    # (C,) an image of each class
    first = np.unique(classes, return_index=True)[1][-n_classes:]

    def n_after_splitting(n_cut: int) -> int:
        return n_cut + n_classes - len(np.unique(tree.cut(n_cut)[first]))

    # The largest cut that leaves at most K clusters.
    n_cut = bisect_right(range(1, n_clusters + 1), n_clusters, key=n_after_splitting)
    clusters = tree.cut(max(n_cut, 1))
    separated = clusters.copy()
    for cluster in np.flatnonzero(np.bincount(clusters[first]) > 1):
        held_classes = np.flatnonzero(clusters[first] == cluster)
        members = np.flatnonzero(clusters == cluster)
        member_points = points[torch.from_numpy(members).to(points.device)].double()
        squares = [(member_points - means[c].double()).square().sum(dim=1) for c in held_classes]
        nearest = held_classes[torch.stack(squares).argmin(dim=0).cpu().numpy()]
        member_classes = classes[members]
        target = np.where(member_classes == UNLABELED, nearest, member_classes)
        separated[members] = len(clusters) + target
    return tree, number_by_first(separated)


def _label_copies(points: Tensor, labels: Ints) -> Ints:
    """Return labels (N,), 0 … C-1, in which copies of a labeled row share its label.

    Copies with different labels have none: a split between them would depend on the order of rows.
    """
    group = equal_rows(points)[1].cpu().numpy()  # (N,)
    labeled = np.flatnonzero(labels != UNLABELED)
    lowest = np.full(len(group), len(labels))
    highest = np.full(len(group), UNLABELED)
    np.minimum.at(lowest, group[labeled], labels[labeled])
    np.maximum.at(highest, group[labeled], labels[labeled])
    shared = np.where(lowest == highest, highest, UNLABELED)[group]
    classes = np.searchsorted(np.unique(shared[shared != UNLABELED]), shared)
    return np.where(shared == UNLABELED, UNLABELED, classes)
