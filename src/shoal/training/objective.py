"""What a method adds to the loop: a loss over a batch, with whatever it learns besides the tail and the head.

B images of a batch, b this process's share, X columns of anything.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shoal.distributed import gather_rows, shard
from shoal.training.bank import Bank, BankKind


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Two views of each image of a batch, as far as they run through this process: view 1 of all, then view 2."""

    images: Tensor
    """(2b,) which image each view is of: its position among the training images, which is its row in the bank."""
    features: Tensor
    """(2b, C) from the tail, with gradients."""
    embeddings: Tensor
    """(2b, D) from the head, unit rows, with gradients."""
    labels: Tensor
    """(2B,) labels of all views of the batch, in every process; -1 for unlabeled."""
    bank: Bank | None
    """The bank of this epoch, where the objective uses one."""
    epoch: int
    generator: torch.Generator
    """For an objective that draws: in the same state in every process, so draw for the whole batch, then take `own`."""

    def gather(self, own: Tensor) -> Tensor:
        """Put rows (2b, X) of this process between those of the others, (2B, X); only its own carry gradients.

        When every process backs the same loss over all rows through its own, their gradients add up to the whole.
        """
        return torch.cat([_gather_half(half, len(self.labels) // 2) for half in own.chunk(2)])

    def own(self, everyone: Tensor) -> Tensor:
        """Take the rows (2b, X) of this process out of those of the whole batch, (2B, X)."""
        mine = shard(len(self.labels) // 2)
        return torch.cat([half[mine] for half in everyone.chunk(2)])


class Objective(nn.Module):
    """A loss over a batch. Its parameters are trained with the tail and the head; its state goes into checkpoints."""

    uses_bank = True
    """Whether the bank is to be renewed before each epoch."""
    discards_head = False
    """Whether images are clustered by the tail's features, the head serving the loss alone."""

    def check_images(self, n_images: int, bank: BankKind) -> None:
        """Refuse, before any work, a number of training images that this loss cannot do with."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Named scalars; 'loss' is minimized, the others are recorded."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """The settings that make two runs of this objective the same, for the check of a resume."""
        raise NotImplementedError


def _gather_half(own: Tensor, n_rows: int) -> Tensor:
    mine = shard(n_rows)
    if mine == slice(0, n_rows):
        return own
    everyone = gather_rows(own.detach())  # (B, X)
    return torch.cat([everyone[: mine.start], own, everyone[mine.stop :]])
