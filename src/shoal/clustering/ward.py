"""Ward's tree of a matrix of embeddings."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage

from shoal.arrays import Floats, as_embeddings


def ward_linkage(
    X: Any,
    *,
    device: str | torch.device | None = None,
    neighbors: Any = None,
    memory: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """Link the rows of an (N, D) matrix by Ward's method; scipy's format, (N-1, 4)."""
    rows = as_embeddings(X.detach().cpu() if isinstance(X, torch.Tensor) else X)
    if len(rows) == 1:
        return np.zeros((0, 4))
    return linkage(rows.astype(np.float64), "ward")
