"""Detection of collapsed embeddings.

Shapes: N rows, D columns.
"""

from collections.abc import Mapping

from torch import Tensor

COLLAPSED = 0.999
"""Mean cosine of two rows above which embeddings count as collapsed."""


def collapse_statistics(rows: Tensor) -> dict[str, float]:
    """Return the mean cosine of two unit rows (N, D), and their effective rank.

    The effective rank is (Σ λ)² / Σ λ² over the eigenvalues λ of the covariance. It needs no
    eigenvalues: numerator and denominator are the squared trace and the squared Frobenius norm.
    """
    rows = rows.float()
    n_rows = len(rows)
    total = rows.sum(dim=0)
    cosine = (total @ total - n_rows) / max(n_rows * (n_rows - 1), 1)
    centered = rows - total / n_rows
    covariance = centered.T @ centered  # (D, D)
    rank = covariance.trace().square() / covariance.square().sum().clamp_min(1e-30)
    return {"bank_cosine": float(cosine), "bank_rank": float(rank)}


def describe_collapse(statistics: Mapping[str, float]) -> str | None:
    """Return a message for collapsed embeddings by their `collapse_statistics`; None for others."""
    cosine = statistics.get("bank_cosine", 0.0)
    if cosine <= COLLAPSED:
        return None
    return (
        "training seems to have collapsed: all embeddings have nearly the same direction "
        f"(mean cosine {min(cosine, 1):.4f}); lower training.lr, raise loss.temperature or set "
        "training.max_gradient, and start over"
    )


def is_collapsed(rows: Tensor) -> bool:
    """Return whether all embeddings (N, D) have nearly the same direction."""
    return describe_collapse(collapse_statistics(rows)) is not None
