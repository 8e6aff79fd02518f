"""The contrastive losses of the paper (section 4.2), and the variants of its released code by name.

Rows come as two halves: row i and row i + B are the two views of image i. B images, D columns of a
unit embedding.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.arrays import UNLABELED
from shoal.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class ContrastSettings:
    """Temperatures and balance of InfoNCE and the supervised contrastive loss; the defaults are
    those of GCD.

    A method's settings hold the class with what its losses read, so that everything else is
    refused.
    """

    temperature: float = 1.0
    """τ of InfoNCE."""
    supervised_temperature: float = 0.07
    """τ_s of the supervised loss."""
    supervised_weight: float = 0.35
    """λ: the share of the supervised loss; the other loss has 1 - λ."""

    def __post_init__(self) -> None:
        for name in ("temperature", "supervised_temperature"):
            if not 0 < getattr(self, name) <= 10:
                raise UsageError(
                    f"loss.{name}: found {getattr(self, name)}, expected a number in (0, 10], say "
                    "0.25"
                )
        if not 0 <= self.supervised_weight <= 1:
            raise UsageError(
                f"loss.supervised_weight: found {self.supervised_weight}, expected λ in [0, 1]"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class GcdLossSettings(ContrastSettings):
    """The same with the variants of the supervised loss."""

    denominator: Literal["paper", "reference"] = "reference"
    """Whom a row of the supervised loss is contrasted with. 'paper': equation 7 of CMS, all others
    but the positives. 'reference', the released code and the usual one: all others."""


def contrastive_loss(views: Tensor, temperature: float, *, with_positive: bool = True) -> Tensor:
    """Equation 6: pull the two views of an image together, push all others apart; the mean over the
    2B rows.

    `with_positive` keeps the positive in the denominator, as the paper's sum over j ≠ i does.
    """
    similarity = _similarity(views, temperature)  # (2B, 2B)
    n_images = len(views) // 2
    partner = torch.arange(2 * n_images, device=views.device).roll(n_images)  # (2B,)
    positive = similarity.gather(1, partner[:, None])[:, 0]  # (2B,)
    left_out = _eye(len(views), views.device)
    if not with_positive:
        left_out = left_out | left_out.roll(n_images, dims=1)
    return (_log_sum(similarity, left_out) - positive).mean()


def supervised_loss(
    views: Tensor, labels: Tensor, temperature: float, *, with_positives: bool = False
) -> Tensor:
    """Equation 7: pull together rows of one class, push the others apart; the mean over the labeled
    rows.

    `labels` (2B,) has -1 for unlabeled rows, which take no part at all. Without labeled rows the
    loss is 0. The denominator of a row i sums over j outside P(i), j ≠ i; `with_positives` sums
    over every j ≠ i. A batch of one class leaves the paper's denominator empty; such rows are given
    their positives there.
    """
    is_labeled = labels != UNLABELED
    weights = is_labeled.to(views.dtype)
    similarity = _similarity(views, temperature)  # (2B, 2B)
    itself = _eye(len(views), views.device)
    pairs = is_labeled[:, None] & is_labeled[None, :] & ~itself
    positives = pairs & (labels[:, None] == labels[None, :])
    others = pairs if with_positives else pairs & ~positives
    others = torch.where(others.any(dim=1, keepdim=True), others, pairs)
    others = torch.where(
        is_labeled[:, None], others, ~itself
    )  # unlabeled rows: any finite value, weighted 0 below
    n_positives = positives.sum(dim=1)
    closeness = (similarity * positives).sum(dim=1) / n_positives.clamp_min(1)  # (2B,)
    losses = (_log_sum(similarity, ~others) - closeness) * weights * (n_positives > 0)
    # Sums and not a selection of rows: the shape of every tensor stays the same, so nothing waits
    # for the device.
    return losses.sum() / weights.sum().clamp_min(1)


def _similarity(views: Tensor, temperature: float) -> Tensor:
    with torch.autocast(views.device.type, enabled=False):
        views = views.float() if views.dtype in (torch.float16, torch.bfloat16) else views
        return views @ views.T / temperature


def _log_sum(similarity: Tensor, left_out: Tensor) -> Tensor:
    return similarity.masked_fill(left_out, -torch.inf).logsumexp(dim=1)


def _eye(n_rows: int, device: torch.device) -> Tensor:
    return torch.eye(n_rows, dtype=torch.bool, device=device)
