"""Points made anew as centroids move, and the best of each row of a block of products.

C clusters of a block of columns, R rows, D dimensions.
"""

import torch
from torch import Tensor

from shoal.clustering.products import ENCODE_ROWS, Points, Precision
from shoal.clustering.ward.workers import Scratch, Workers

GROUP = 8
"""Columns whose maximum stands for them in the first stage of `top`; a power of two."""

N_MIDDLE = 255
"""Centroids whose median is taken."""


def rounded(centroids: Tensor, center: Tensor, precision: Precision, workers: Workers) -> Points:
    """The points of all centroids."""
    points = Points.blank(centroids, precision)
    renew(points, torch.arange(len(centroids), device=centroids.device), centroids, center, precision, workers)
    return points


def renew(
    points: Points, rows: Tensor, centroids: Tensor, center: Tensor, precision: Precision, workers: Workers
) -> None:
    """Round the centroids of some rows anew, a chunk at a time."""

    def work(part: Tensor) -> None:
        points.put(part, Points.of(centroids[part], center, precision))

    workers.map_rows(work, rows, at_most=ENCODE_ROWS[rows.device.type])


def middle(centroids: Tensor) -> Tensor:
    """(D,) a point amid the centroids, wherever a few of them are: the median of some."""
    return centroids[:: max(1, len(centroids) // N_MIDDLE)].median(0).values


def top(values: Tensor, k: int, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (R, C), descending, and their columns.

    The k largest lie in the k groups of the largest maxima, so only those are searched.
    """
    n_rows, n_columns = values.shape
    n_groups = n_columns // GROUP
    if n_groups < 2 * k:
        best = values.topk(min(k, n_columns), 1)
        return best.values, best.indices
    width = n_groups * GROUP // 2  # group g holds the columns g, g + n_groups, g + 2·n_groups, …
    heads = scratch.array("heads", (n_rows, width), values.dtype)
    torch.maximum(values[:, :width], values[:, width : 2 * width], out=heads)
    while width > n_groups:
        width //= 2
        torch.maximum(heads[:, :width], heads[:, width : 2 * width], out=heads[:, :width])
    groups = heads[:, :n_groups].topk(k, 1, sorted=False).indices  # (R, k)
    offsets = torch.arange(0, n_groups * GROUP, n_groups, device=values.device)
    rest = torch.arange(n_groups * GROUP, n_columns, device=values.device)
    columns = torch.cat([(groups[:, :, None] + offsets).flatten(1), rest.expand(n_rows, -1)], 1)
    best = values.gather(1, columns).topk(k, 1)
    return best.values, columns.gather(1, best.indices)
