"""Links: the labeled images of a class begin as one cluster, and no cluster holds two classes.

In place of each labeled row stands the mean of its class. Equal rows are joined first, into a
cluster of that center and size, and a cluster's center and size are all that Ward's distances ask
for: so the tree begins with the classes. A cluster of its cut that holds several classes is parted
again, each row to the nearest of their means.

N images, D columns, L of them labeled, C classes, K clusters.
"""

from bisect import bisect_right

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.average import LinkageMethod, join_small
from shoal.clustering.duplicates import equal_rows
from shoal.clustering.iterates import unit_tree
from shoal.clustering.sums import grouped_sums
from shoal.clustering.tree import Tree, number_by_first


def linked_clusters(
    points: Tensor, labels: Ints, n_clusters: int, method: LinkageMethod = "ward"
) -> tuple[Tree, Ints] | None:
    """The tree of `points` (N, D) that begins with the classes in `labels` (N,), -1 for unlabeled,
    and K clusters (N,), numbered by their first image; None where K does not allow it.

    The tree is cut higher by as many clusters as are parted.
    """
    classes = _label_copies(points, labels)  # (N,)
    labeled = torch.from_numpy(np.flatnonzero(classes != UNLABELED)).to(points.device)  # (L,)
    groups = torch.from_numpy(classes[classes != UNLABELED]).to(points.device)  # (L,)
    n_classes = int(classes.max()) + 1
    sums = grouped_sums(points[labeled], groups, n_classes)
    means = (sums / torch.bincount(groups, minlength=n_classes)[:, None]).to(points.dtype)
    rows = points.clone()
    rows[labeled] = means[groups]
    tree = unit_tree(rows)
    if not n_classes or tree.n_distinct < n_clusters:
        return None
    tree = join_small(points, tree, n_clusters, method)
    # (C,) an image of each class
    first = np.unique(classes, return_index=True)[1][-n_classes:]

    def n_parted(n_cut: int) -> int:
        return n_cut + n_classes - len(np.unique(tree.cut(n_cut)[first]))

    # The largest cut that leaves at most K clusters.
    n_cut = bisect_right(range(1, n_clusters + 1), n_clusters, key=n_parted)
    clusters = tree.cut(max(n_cut, 1))
    parted = clusters.copy()
    for cluster in np.flatnonzero(np.bincount(clusters[first]) > 1):
        held = np.flatnonzero(clusters[first] == cluster)  # classes
        members = np.flatnonzero(clusters == cluster)
        own = points[torch.from_numpy(members).to(points.device)].double()
        gaps = torch.stack([(own - means[each].double()).square().sum(dim=1) for each in held])
        nearest = held[gaps.argmin(dim=0).cpu().numpy()]
        given = classes[members]
        parted[members] = len(clusters) + np.where(given == UNLABELED, nearest, given)
    return tree, number_by_first(parted)


def _label_copies(points: Tensor, labels: Ints) -> Ints:
    """Labels (N,), 0 … C-1, in which copies of a labeled row have its label too; copies labeled
    differently have none.

    So no copies are parted: the order of rows would decide between them.
    """
    member = equal_rows(points).member.cpu().numpy()  # (N,)
    labeled = np.flatnonzero(labels != UNLABELED)
    lowest = np.full(len(member), len(labels))
    highest = np.full(len(member), UNLABELED)
    np.minimum.at(lowest, member[labeled], labels[labeled])
    np.maximum.at(highest, member[labeled], labels[labeled])
    shared = np.where(lowest == highest, highest, UNLABELED)[member]
    classes: Ints = np.searchsorted(np.unique(shared[shared != UNLABELED]), shared)
    return np.where(shared == UNLABELED, UNLABELED, classes)
