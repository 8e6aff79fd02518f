"""Nearest clusters of many: from neighbor lists while these are certain, by a scan where they are not.

M slots, of which some are dead until they are renumbered; R rows at work; k entries of a list.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.clustering.ward.lists import Decision, Fates, Lists, Pairs, follow, join, settle
from shoal.clustering.ward.scan import Scanner

CHUNK_ROWS = {"cpu": 1 << 10, "cuda": 1 << 18}
"""Rows whose lists are renewed at once."""

FOLLOW_ROWS = {"cpu": 1 << 13, "cuda": 1 << 18}
"""Lists brought up to date at once: few of their entries need it."""

SCAN_COLUMNS = 1500
"""Columns scanned at the cost of measuring one listed cluster (about 400), for each time that this spares the scan."""

Accept = Callable[[Tensor, Decision], None]
"""Takes rows and their nearest clusters as they are found; a distance beyond the limit: nobody is within it."""


class Search:
    """The lists of all clusters, and the scanner that makes them anew."""

    def __init__(self, scanner: Scanner, lists: Lists | None) -> None:
        self.scanner, self.geometry, self.workers = scanner, scanner.geometry, scanner.workers
        self.n_scans = 0
        self.lists = self._blank()
        if lists is not None:
            n_ready = lists.index.shape[1]
            self.lists.index[:, :n_ready], self.lists.low[:, :n_ready] = lists.index, lists.low
            self.lists.outside = lists.outside

    def nearest(self, rows: Tensor, limit: float, n_rounds: int, accept: Accept) -> None:
        """Find the nearest cluster of each row, or that it has none within the limit."""
        patience = self.scanner.n_live / SCAN_COLUMNS

        def settle_part(part: Tensor) -> Tensor:
            lists = self.lists.take(part)
            decision = settle(self.geometry, self.scanner.margins, part, lists, n_rounds, limit, patience=patience)
            sure = decision.is_certain.nonzero()[:, 0]
            self.lists.put(part[sure], lists.take(sure))
            accept(part[sure], decision.take(sure))
            return part[~decision.is_certain]

        def accept_scanned(part: Tensor, lists: Lists, decision: Decision) -> None:
            self.lists.put(part, lists)
            accept(part, decision)

        # Chunks do not meet: each reads and writes the lists of its own rows alone.
        rest = torch.cat(self.workers.map(settle_part, torch.split(rows, CHUNK_ROWS[rows.device.type])))
        self.n_scans += len(rest)
        self.scanner.scan(rest, n_rounds, limit, accept_scanned)

    def floor(self) -> Tensor:
        """(M,) a low of each cluster's distance to every other."""
        return self.lists.floor()

    def merge(self, pairs: Pairs) -> None:
        """Bring all lists up to date with a round of merges."""
        self.scanner.merge(pairs.kept, pairs.gone)
        fates = Fates.of(pairs, self.geometry.sizes)
        live = self.geometry.sizes[self.scanner.is_live]
        span = (live.min(), live.max())
        step = CHUNK_ROWS[live.device.type]

        def follow_part(start: int) -> None:
            part = slice(start, start + FOLLOW_ROWS[live.device.type])
            views = Lists(self.lists.index[part], self.lists.low[part], self.lists.outside[part])
            follow(views, fates.size[part], fates, self.scanner.margins.eta)

        def join_part(start: int) -> None:
            part = pairs.take(slice(start, start + step))
            left, right = self.lists.take(part.kept), self.lists.take(part.gone)
            self.lists.put(part.kept, join(left, right, part, self.geometry.sizes, span, self.scanner.margins.eta))

        self.workers.map(follow_part, range(0, len(fates.size), FOLLOW_ROWS[live.device.type]))
        self.workers.map(join_part, range(0, len(pairs.kept), step))

    def keep(self, slots: Tensor, number: Tensor) -> None:
        """Forget all but the given slots (ascending); `number` (M,) are the new ones."""
        self.scanner.keep(slots)
        self.lists = self.lists.take(slots)
        self.lists.index = number[self.lists.index]

    def _blank(self) -> Lists:
        """Lists that say nothing."""
        n, k = len(self.geometry.sizes), self.scanner.k
        index = torch.arange(n, device=self.geometry.sizes.device)[:, None].repeat(1, k)
        outside = torch.zeros_like(self.geometry.sizes)
        return Lists(index, outside[:, None].expand(-1, k) + torch.inf, outside)
