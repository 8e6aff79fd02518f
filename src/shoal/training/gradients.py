"""Gradients of a step: added up over processes, measured, and cut where too long; nothing waits for the device."""

import torch
from torch import Tensor

from shoal.distributed import mean_over_processes, world_size


def add_over_processes(gradients: list[Tensor]) -> None:
    """Add up gradients over all processes, in place, in one message."""
    if world_size() == 1:
        return
    flat = mean_over_processes(torch.cat([g.flatten() for g in gradients])) * world_size()
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def cut_to_length(gradients: list[Tensor], limit: float | None) -> Tensor:
    """Scale gradients, in place, so that together they are no longer than `limit`; how long they were."""
    length: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if limit is not None:
        torch._foreach_mul_(gradients, (limit / length).clamp_max(1))
    return length
