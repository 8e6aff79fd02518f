"""Must-links: the labeled images of a class start as one cluster, and no cluster holds two classes.

Each labeled row is replaced by the mean of its class. Ward joins equal rows first, into a cluster
of the right center and size, which is all that its distances depend on: so the tree starts from the
classes. A cluster of the cut that holds several classes is split again, each row going to the
nearest of their means.

Shapes: N images, L of them labeled, D columns, C classes, K clusters.
"""

from bisect import bisect_right

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.average import LinkageMethod, join_small
from shoal.clustering.iterates import unit_tree
from shoal.clustering.sums import equal_rows, grouped_means
from shoal.clustering.tree import Tree, number_by_first


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
    if not n_classes or tree.n_distinct < n_clusters:
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
    _, group = equal_rows(points)
    group_of = group.cpu().numpy()  # (N,)
    labeled = np.flatnonzero(labels != UNLABELED)
    lowest = np.full(len(group_of), len(labels))
    highest = np.full(len(group_of), UNLABELED)
    np.minimum.at(lowest, group_of[labeled], labels[labeled])
    np.maximum.at(highest, group_of[labeled], labels[labeled])
    shared = np.where(lowest == highest, highest, UNLABELED)[group_of]
    classes: Ints = np.searchsorted(np.unique(shared[shared != UNLABELED]), shared)
    return np.where(shared == UNLABELED, UNLABELED, classes)
