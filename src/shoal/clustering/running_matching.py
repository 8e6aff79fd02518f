"""The best matching of clusters to classes, kept while clusters are merged: nothing is solved again.

C classes, K clusters.
"""

import numpy as np

from shoal.arrays import Ints


class RunningMatching:
    """The best matching of a table of counts while pairs of its clusters are merged.

    Keeps the dual solution of the assignment problem: what each class earns and what each cluster costs, with
    earning + cost >= count for every pair, equality for matched ones and no cost for unmatched clusters. Then the
    earnings and costs add up to the value of the best matching. A merge disturbs only the classes that compete for the
    merged cluster; these are matched again along shortest augmenting paths, the rest stays.

    Args:
        counts: (K, C) images per cluster and class; the table is copied.

    Attributes:
        counts: (C, K + C) the table now, a row per class, C empty clusters at the end so that no class is left over.
        total: images that agree under the best matching.
    """

    def __init__(self, counts: Ints) -> None:
        n_clusters, n_classes = counts.shape
        self.counts: Ints = np.zeros((n_classes, n_clusters + n_classes), dtype=np.int64)
        self.counts[:, :n_clusters] = counts.T
        self._earning = self.counts.max(axis=1)  # (C,)
        self._cost = np.zeros(self.counts.shape[1], dtype=np.int64)  # (K + C,)
        self._class_of = np.full(self.counts.shape[1], -1)  # (K + C,)
        self._cluster_of = np.full(n_classes, -1)  # (C,)
        for free in range(n_classes):
            self._augment(free)
        self.total = self._value()

    def merge(self, kept: int, gone: int) -> None:
        """Add cluster `gone` to cluster `kept`; `gone` stays as an empty cluster."""
        if not self.counts[:, gone].any():
            return
        if not self.counts[:, kept].any():
            self._swap(kept, gone)
            return
        self.counts[:, kept] += self.counts[:, gone]
        self.counts[:, gone] = 0
        for free in self._release(kept, gone):
            self._augment(free)
        self.total = self._value()

    def _value(self) -> int:
        return int(self._earning.sum() + self._cost.sum())

    def _swap(self, a: int, b: int) -> None:
        pair, swapped = [a, b], [b, a]
        self.counts[:, pair] = self.counts[:, swapped]
        self._cost[pair] = self._cost[swapped]
        self._class_of[pair] = self._class_of[swapped]
        for cluster in pair:
            if self._class_of[cluster] >= 0:
                self._cluster_of[self._class_of[cluster]] = cluster

    def _release(self, *changed: int) -> list[int]:
        """Unmatch the changed clusters at cost 0, and whomever that lets earn more; return the unmatched classes."""
        open_clusters, free = list(changed), []
        while open_clusters:
            cluster = open_clusters.pop()
            self._cost[cluster] = 0
            owner = self._class_of[cluster]
            tempted = np.flatnonzero(self.counts[:, cluster] > self._earning).tolist()
            self._earning[tempted] = self.counts[tempted, cluster]
            for leaving in {owner, *tempted} if owner >= 0 else tempted:
                left = self._cluster_of[leaving]
                if left < 0:
                    continue
                self._cluster_of[leaving], self._class_of[left] = -1, -1
                free.append(int(leaving))
                if self._cost[left] > 0:
                    open_clusters.append(int(left))
        return free

    def _augment(self, free: int) -> None:
        """Match a free class: the shortest path of reassignments to an unmatched cluster (Dijkstra on slack)."""
        slack = self._earning[free] + self._cost - self.counts[free]  # (K + C,) >= 0
        came_from = np.full(len(slack), free)
        is_matched = self._class_of >= 0
        far = np.iinfo(np.int64).max
        visited: list[int] = []
        reach = 2 * slack + is_matched  # of two equally near, the unmatched one ends the search
        while True:
            cluster = int(reach.argmin())
            owner = self._class_of[cluster]
            if owner < 0:
                break
            visited.append(cluster)
            reach[cluster] = far
            through = slack[cluster] + self._earning[owner] + self._cost - self.counts[owner]
            nearer = np.flatnonzero((through < slack) & (reach < far))
            slack[nearer], came_from[nearer] = through[nearer], owner
            reach[nearer] = 2 * through[nearer] + is_matched[nearer]
        length = slack[cluster]
        gained = length - slack[visited]
        self._cost[visited] += gained
        self._earning[self._class_of[visited]] -= gained
        self._earning[free] -= length
        while True:
            owner = came_from[cluster]
            self._class_of[cluster] = owner
            self._cluster_of[owner], cluster = cluster, self._cluster_of[owner]
            if owner == free:
                return
