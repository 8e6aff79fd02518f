"""The bank V: an embedding of every image, renewed at the start of each epoch, in which neighbors are looked up.

N bank rows, B views, D columns of an embedding, R of its compact form.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.clustering.mean_shift import NeighborAttention, ShiftSettings, find_neighbors, shift
from shoal.clustering.neighbors import Neighbors, k_nearest
from shoal.encoders.head import compact, expand

BankKind = Literal["images", "views"]
"""'images': one row per image, un-augmented. 'views': the released code's, both random views of every image."""

COLLAPSED = 0.999
"""Mean cosine of two rows from which a bank counts as collapsed. Runs of two epochs that found every category
were seen up to 0.9989, collapsed ones above 0.9999."""


@dataclass(frozen=True, kw_only=True)
class Bank:
    """Detached embeddings in compact form; searches and means in it are those of the full embeddings, exactly."""

    rows: Tensor
    """(N, R), or (2N, R) for views: view 1 of all images, then view 2."""
    basis: Tensor | None
    """(D, R) from compact to full embeddings; None where they are the same."""
    kind: BankKind = "images"

    def neighbors(
        self,
        views: Tensor,
        images: Tensor,
        settings: ShiftSettings,
        generator: torch.Generator | None = None,
    ) -> Neighbors:
        """The neighbors of `views` (B, D), each a view of the image `images` (B,), its own image left out.

        In a bank of views the nearest row is dropped instead, whatever it is, as the released code does.
        """
        queries = compact(views.detach(), self.basis)  # (B, R)
        if self.kind == "views":
            lists = k_nearest(queries, self.rows, settings.n_neighbors + 1, exact=False)
            return Neighbors(lists.indices[:, 1:], lists.similarities[:, 1:])
        return find_neighbors(
            queries, self.rows, settings, exclude=images, exact=False, generator=generator
        )

    def shift(
        self,
        views: Tensor,
        neighbors: Neighbors,
        settings: ShiftSettings,
        *,
        attention: NeighborAttention | None = None,
        detach_norm: bool = False,
    ) -> Tensor:
        """Move `views` (B, D) one step toward their neighbors; gradients flow through the views only."""
        used = neighbors.indices[:, : settings.list_length(len(self.rows))]
        near = expand(self.rows[used].flatten(0, 1), self.basis)  # (B*k, D)
        positions = torch.arange(used.numel(), device=used.device).view(used.shape)
        listed = Neighbors(positions, neighbors.similarities[:, : used.shape[1]])
        return shift(views, near, listed, settings, attention=attention, detach_norm=detach_norm)


def collapse_statistics(rows: Tensor) -> dict[str, float]:
    """Two numbers that show a bank collapsing: the mean cosine of two rows (1: all alike), and the effective rank.

    The effective rank is (Σ λ)² / Σ λ² over the eigenvalues λ of the covariance: how many directions are in use. It
    needs no eigenvalue: these are the squared trace and the squared entries.
    """
    rows = rows.float()
    n_rows = len(rows)
    total = rows.sum(dim=0)
    cosine = (total @ total - n_rows) / max(n_rows * (n_rows - 1), 1)
    centered = rows - total / n_rows
    covariance = centered.T @ centered  # (R, R)
    rank = covariance.trace().square() / covariance.square().sum().clamp_min(1e-30)
    return {"bank_cosine": float(cosine), "bank_rank": float(rank)}


def describe_collapse(statistics: Mapping[str, Any]) -> str | None:
    """What `collapse_statistics` shows and what to do about it; None where embeddings point in different directions."""
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
