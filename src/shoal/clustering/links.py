"""Links: the labeled images of a class begin as one cluster, and no cluster holds two classes.

In place of each labeled row stands the mean of its class. Equal rows are joined first, into a
cluster of that center and size, and a cluster's center and size are all that Ward's distances ask
for: so the tree begins with the classes. A cluster of its cut that holds several classes is parted
again, each row to the nearest of their means.

N images, D columns, L of them labeled, C classes, K clusters.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from shoal.arrays import UNLABELED, Ints
from shoal.clustering.average import LinkageMethod, join_small
from shoal.clustering.duplicates import equal_rows
from shoal.clustering.iterates import unit_tree
from shoal.clustering.sums import grouped_sums
from shoal.clustering.tree import Tree


@dataclass(frozen=True, eq=False, kw_only=True)
class Links:
    """Which images belong together, and where."""

    points: Tensor
    """(N, D) the images."""
    rows: Tensor
    """(N, D) the same with class means in place of labeled images."""
    classes: Ints
    """(N,) 0 … C-1, -1 for unlabeled."""
    means: Tensor
    """(C, D) of the classes."""

    @classmethod
    def of(cls, points: Tensor, labels: Ints) -> Self:
        """Link the images (N, D) of each class; `labels` (N,), -1 for unlabeled."""
        classes = _label_copies(points, labels)
        labeled = torch.from_numpy(np.flatnonzero(classes != UNLABELED)).to(points.device)  # (L,)
        groups = torch.from_numpy(classes[classes != UNLABELED]).to(points.device)  # (L,)
        n_classes = int(classes.max()) + 1
        sums = grouped_sums(points[labeled], groups, n_classes)
        means = (sums / torch.bincount(groups, minlength=n_classes)[:, None]).to(points.dtype)
        rows = points.clone()
        rows[labeled] = means[groups]
        return cls(points=points, rows=rows, classes=classes, means=means)

    @property
    def n_classes(self) -> int:
        """The number of classes, C."""
        return len(self.means)

    def cut(self, tree: Tree, n_clusters: int) -> Ints:
        """(N,) K clusters of the tree of `rows`, numbered by their first image, none of which holds
        two classes.

        The tree is cut higher by as many clusters as that parts.
        """
        # (C,) an image of each class
        first = np.unique(self.classes, return_index=True)[1][-self.n_classes :]
        low = 1
        high = n_clusters
        while low < high:  # the largest cut that leaves at most K clusters
            middle = (low + high + 1) // 2
            is_few = middle + self.n_classes - len(np.unique(tree.cut(middle)[first])) <= n_clusters
            low, high = (middle, high) if is_few else (low, middle - 1)
        clusters = tree.cut(low)
        return _renumber(self._part(clusters, clusters[first]))

    def _part(self, clusters: Ints, held_in: Ints) -> Ints:
        """Part the clusters that hold several classes; `held_in` (C,) is the cluster of each
        class."""
        parted = clusters.copy()
        for cluster in np.flatnonzero(np.bincount(held_in) > 1):
            classes = np.flatnonzero(held_in == cluster)
            rows = np.flatnonzero(clusters == cluster)
            points = self.points[torch.from_numpy(rows).to(self.points.device)].double()
            means = self.means[torch.from_numpy(classes).to(self.points.device)].double()
            # (classes, rows)
            gaps = torch.stack([(points - mean).square().sum(dim=1) for mean in means])
            nearest = classes[gaps.argmin(dim=0).cpu().numpy()]
            own = self.classes[rows]
            parted[rows] = len(clusters) + np.where(own == UNLABELED, nearest, own)
        return parted


def linked_clusters(
    points: Tensor, labels: Ints, n_clusters: int, method: LinkageMethod = "ward"
) -> tuple[Tree, Ints] | None:
    """The tree that begins with the classes, and its K clusters (N,); None where K does not allow
    it."""
    links = Links.of(points, labels)
    tree = unit_tree(links.rows)
    if not links.n_classes or tree.n_distinct < n_clusters:
        return None
    tree = join_small(points, tree, n_clusters, method)
    return tree, links.cut(tree, n_clusters)


def _label_copies(points: Tensor, labels: Ints) -> Ints:
    """Labels (N,), 0 … C-1, in which copies of a labeled row have its label too; copies labeled
    differently have none.

    So no copies are parted: the order of rows would decide between them.
    """
    member = equal_rows(points).member.cpu().numpy()  # (N,)
    labeled = np.flatnonzero(labels != UNLABELED)
    lowest = np.full(member.max() + 1, len(labels))
    highest = np.full(member.max() + 1, UNLABELED)
    np.minimum.at(lowest, member[labeled], labels[labeled])
    np.maximum.at(highest, member[labeled], labels[labeled])
    shared = np.where(lowest == highest, highest, UNLABELED)[member]
    classes: Ints = np.searchsorted(np.unique(shared[shared != UNLABELED]), shared)
    return np.where(shared == UNLABELED, UNLABELED, classes)


def _renumber(clusters: Ints) -> Ints:
    """Number clusters by their first image."""
    _, first, inverse = np.unique(clusters, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), dtype=np.int64)
    numbers[np.argsort(first)] = np.arange(len(first))
    return numbers[inverse]
