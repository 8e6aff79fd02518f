"""Has training collapsed? Two statistics of embeddings that show it.

N rows, D columns.
"""

from collections.abc import Mapping

from torch import Tensor

COLLAPSED = 0.999
"""Mean cosine of two rows from which embeddings count as collapsed. Runs of two epochs that found
every category were seen up to 0.9989, collapsed ones above 0.9999."""


def collapse_statistics(rows: Tensor) -> dict[str, float]:
    """Two numbers that show a collapse: the mean cosine of two rows (1: all alike), and the
    effective rank.

    The effective rank is (Σ λ)² / Σ λ² over the eigenvalues λ of the covariance: how many
    directions are in use. It needs no eigenvalue: these are the squared trace and the squared
    entries.
    """
    rows = rows.float()
    n_rows = len(rows)
    total = rows.sum(dim=0)
    cosine = (total @ total - n_rows) / max(n_rows * (n_rows - 1), 1)
    centered = rows - total / n_rows
    covariance = centered.T @ centered  # (R, R)
    rank = covariance.trace().square() / covariance.square().sum().clamp_min(1e-30)
    return {"bank_cosine": float(cosine), "bank_rank": float(rank)}


def describe_collapse(statistics: Mapping[str, float]) -> str | None:
    """What `collapse_statistics` shows and what to do about it; None where embeddings point in
    different directions."""
    cosine = statistics.get("bank_cosine", 0.0)
    if cosine <= COLLAPSED:
        return None
    return (
        "training seems to have collapsed: all embeddings point nearly the same way "
        f"(mean cosine {min(cosine, 1):.4f}); lower training.lr, raise loss.temperature or set "
        "training.max_gradient, and start over"
    )


def is_collapsed(rows: Tensor) -> bool:
    """Whether all embeddings (N, D) point nearly the same way."""
    return describe_collapse(collapse_statistics(rows)) is not None
