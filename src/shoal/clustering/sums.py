"""Sums and square roots whose bits do not depend on the device, the number of threads or the size of a block."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def halving_sum(terms: Tensor) -> Tensor:
    """Add up the last dimension along a halving tree that only its length shapes; overwrites `terms`.

    Each addition is a separate elementwise one, which IEEE arithmetic rounds the same way everywhere; a call that sums
    would add in an order of its own.
    """
    width = terms.shape[-1]
    while width > 1:
        half = width // 2
        terms[..., :half].add_(terms[..., half : 2 * half])  # += on a slice would also copy it onto itself
        if width % 2:
            terms[..., 0].add_(terms[..., width - 1])
        width = half
    return terms[..., 0]


def root(squares: Tensor) -> Tensor:
    """The float64 nearest to each square root, differentiable.

    On a CPU torch takes roots by a library that misses the nearest float64 in about one of a hundred; numpy and CUDA
    round as IEEE arithmetic does.
    """
    found: Tensor = _Root.apply(squares)  # type: ignore[no-untyped-call]
    return found


class _Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, squares: Tensor) -> Tensor:
        squares = squares.detach()
        roots = torch.from_numpy(np.sqrt(squares.numpy())) if squares.device.type == "cpu" else squares.sqrt()
        ctx.save_for_backward(roots)
        return roots

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (roots,) = ctx.saved_tensors
        found: Tensor = gradients[0] / (2 * roots)
        return found
