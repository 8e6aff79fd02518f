"""How far clusters may merge: a limit that rises with every round, so that most nearest clusters need not be known.

All mutually nearest pairs may merge at once, but a cluster that has just merged is far from everyone, and to find its
nearest costs a scan. With a limit, only the pairs within it merge. A cluster that is proven to have nobody within it
waits, and its proof is a list that reaches beyond. By the time the limit gets there, fewer clusters are left.

The limit depends on the number of merges and on distances decided, both the same on every device and for any block
size, so it changes no bit either.
"""

import torch
from torch import Tensor

PATIENT = 4096
"""With no more clusters than this there is no limit: scans are short, and rounds count for more."""

FIRST_SHARE = 4
"""At first one cluster in so many has its nearest within the limit."""

FIRST_GROWTH = 1.04
"""How much the limit grows at first; later that follows the share of clusters that merged."""

WANTED = (0.02, 0.08)
"""That share: after less the limit grows twice as fast, after more half as fast."""


class Limit:
    """The largest D at which clusters merge now; none if no distances are given."""

    def __init__(self, distances: Tensor | None) -> None:
        self.value = torch.inf
        self._growth = FIRST_GROWTH
        if distances is not None:  # of every cluster to its nearest
            self._n_before = len(distances)
            self.value = float(distances.kthvalue(1 + len(distances) // FIRST_SHARE).values)

    def rise(self, n_live: int) -> None:
        """Let more clusters merge, `n_live` being left."""
        if n_live <= PATIENT or self.value == torch.inf:
            self.value = torch.inf
            return
        share = 1 - n_live / self._n_before
        if share < WANTED[0]:
            self._growth *= self._growth
        elif share > WANTED[1]:
            self._growth **= 0.5
        self._n_before = n_live
        self.value = max(self.value, 1e-300) * self._growth
