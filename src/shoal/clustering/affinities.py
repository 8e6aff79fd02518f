"""Affinities of the nodes of a graph: how often two are neighbors of the same nodes.

G nodes, of which affinities of the first V are computed, D columns, k neighbors.
"""

import torch
from torch import Tensor


def affinities(nodes: Tensor, exists: Tensor, n_first: int, n_neighbors: int) -> Tensor:
    """Return the affinities (V, G) of the first nodes with all unit nodes (G, D).

    Two nodes count once for every node that has both among its nearest, itself and its k neighbors,
    so there must be more than k nodes. With P these counts normalized to rows that sum to 1, an
    affinity is an entry of P P Pᵀ + I, one step of diffusion. Nodes that do not exist yet have no
    affinity; the first V all exist. The counts are integers, so their order does not matter.
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
    """Return which affinities (V, G) are above a quantile of those above the mean."""
    mean = (affinity * exists).sum() / (exists.sum() * len(affinity))
    # torch.quantile refuses more than 16 million numbers. Positions stay tensors, so that nothing
    # waits for the GPU. Those above the mean come first.
    ordered = affinity.masked_fill(affinity <= mean, torch.inf).flatten().sort().values
    position = quantile * ((affinity > mean).sum() - 1).clamp_min(0).double()
    below = ordered[position.floor().long()]
    above = ordered[position.ceil().long()]
    limit = below.lerp(above, position.frac().to(affinity.dtype))
    return affinity >= limit  # none if no affinity is above the mean
