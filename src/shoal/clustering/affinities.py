"""Affinities: how much nodes of a graph belong together, by how often they are neighbors of the
same nodes.

G nodes, V of them, the first ones, whose affinities are asked for, D columns, k neighbors.
"""

import torch
from torch import Tensor


def affinities(nodes: Tensor, exists: Tensor, n_first: int, n_neighbors: int) -> Tensor:
    """How much each of the first nodes belongs together with each of all unit nodes (G, D): (V, G).

    Two nodes agree as often as both are among the nearest of one node: itself and its k neighbors,
    so there must be more than k nodes. P being these counts with rows that sum to 1, an affinity is
    an entry of P P Pᵀ + I, one step of diffusion. Nodes that do not exist yet count for nothing;
    the first ones all exist. The counts are whole numbers, so no order of adding them changes them.
    """
    n_nodes = len(nodes)
    n_near = n_neighbors + 1
    with torch.autocast(nodes.device.type, enabled=False):
        closeness = (nodes @ nodes.T).masked_fill(~exists, -torch.inf)  # (G, G)
        near = closeness.topk(n_near, dim=1).indices  # (G, k + 1)
        pairs = (near[:, :, None] * n_nodes + near[:, None, :]).flatten()  # (G·(k + 1)²,)
        votes = exists.float().repeat_interleave(n_near**2)
        counts = (
            torch.zeros(n_nodes**2, device=nodes.device)
            .scatter_add_(0, pairs, votes)
            .view(n_nodes, n_nodes)
        )
        counts.fill_diagonal_(0)
        steps = counts / counts.sum(dim=1, keepdim=True).clamp_min(1)  # P
        diffused = (steps[:n_first] @ steps) @ steps.T  # (V, G)
        diffused.diagonal().add_(1)
        return diffused


def strongest(affinity: Tensor, exists: Tensor, quantile: float) -> Tensor:
    """Which affinities (V, G) are above a quantile of those that are over the mean."""
    mean = (affinity * exists).sum() / (exists.sum() * len(affinity))
    # Sorted here: torch.quantile refuses more than 16 million numbers. Positions stay tensors:
    # nothing waits for a GPU.
    # Those over the mean come first.
    ordered = affinity.masked_fill(affinity <= mean, torch.inf).flatten().sort().values
    position = quantile * ((affinity > mean).sum() - 1).clamp_min(0).double()
    below = ordered[position.floor().long()]
    above = ordered[position.ceil().long()]
    limit = below.lerp(above, position.frac().to(affinity.dtype))
    return affinity >= limit  # nothing where there is no number above the mean
