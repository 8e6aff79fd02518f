"""InfoNCE and the supervised contrastive loss (section 4.2 of CMS), with the variants of its
released code.

Rows come in two halves: row i and row i + B are the two views of image i. B images, D columns of a
unit embedding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.arrays import UNLABELED
from shoal.settings import Fraction, Temperature


@dataclass(frozen=True, kw_only=True)
class ContrastSettings:
    """Temperatures and weights of InfoNCE and the supervised contrastive loss; the defaults are
    GCD's.

    A method whose losses read more has a subclass, so that a setting without effect is refused.
    """

    temperature: Temperature = 1.0
    """τ of InfoNCE."""
    supervised_temperature: Temperature = 0.07
    """τ_s of the supervised loss."""
    supervised_weight: Fraction = 0.35
    """λ: the weight of the supervised loss; the other loss has 1 - λ."""


def contrastive_loss(views: Tensor, temperature: float, *, with_positive: bool = True) -> Tensor:
    """Return InfoNCE (equation 6), the mean over 2B unit rows.

    `with_positive` keeps the positive in the denominator, as the CMS paper's sum over j ≠ i does.
    """
    return info_nce(views @ views.T / temperature, with_positive=with_positive)


def info_nce(similarity: Tensor, *, with_positive: bool = True) -> Tensor:
    """Return InfoNCE of similarities (2B, 2B), divided by the temperature."""
    n_images = len(similarity) // 2
    positive = similarity.roll(n_images, dims=1).diagonal()  # (2B,)
    excluded = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    if not with_positive:
        excluded = excluded | excluded.roll(n_images, dims=1)
    return (_log_sum(similarity, excluded) - positive).mean()


def supervised_loss(
    views: Tensor, labels: Tensor, temperature: float, *, with_positives: bool = False
) -> Tensor:
    """Return the supervised contrastive loss (equation 7), the mean over the labeled rows.

    `labels` (2B,) are -1 for unlabeled rows, which take no part; without labeled rows the loss is
    0. The denominator of row i sums over j ≠ i outside the positives P(i); `with_positives` sums
    over every j ≠ i. In a batch of one class the CMS paper's denominator would be empty, so it then
    includes the positives.
    """
    return supervised_contrast(views @ views.T / temperature, labels, with_positives=with_positives)


def supervised_contrast(
    similarity: Tensor, labels: Tensor, *, with_positives: bool = False
) -> Tensor:
    """Return the supervised contrastive loss of similarities (2B, 2B), divided by the
    temperature."""
    is_labeled = labels != UNLABELED
    weights = is_labeled.to(similarity.dtype)
    itself = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    pairs = is_labeled[:, None] & is_labeled & ~itself
    positives = pairs & (labels[:, None] == labels)
    others = pairs if with_positives else pairs & ~positives
    others = torch.where(others.any(dim=1, keepdim=True), others, pairs)
    # Unlabeled rows have weight 0 below, but need a finite value.
    others = torch.where(is_labeled[:, None], others, ~itself)
    n_positives = positives.sum(dim=1)
    mean_positive = (similarity * positives).sum(dim=1) / n_positives.clamp_min(1)  # (2B,)
    losses = (_log_sum(similarity, ~others) - mean_positive) * weights * (n_positives > 0)
    # A weighted sum instead of a selection of rows: shapes do not depend on values, so the host
    # need not wait for the device.
    return losses.sum() / weights.sum().clamp_min(1)


def _log_sum(similarity: Tensor, excluded: Tensor) -> Tensor:
    return similarity.masked_fill(excluded, -torch.inf).logsumexp(dim=1)
