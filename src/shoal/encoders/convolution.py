"""Convolutions that are trained on a CPU, in the form whose gradients are fastest there.

On ARM processors oneDNN has no fast backward convolutions. There a 1 x 1 convolution is a matrix product over
positions, and a convolution of each channel by itself takes its gradients by another one and by sums over positions.
B images, C channels in, D out, H x W positions, K the side of a kernel, P positions of padding.
"""

import platform
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

IS_BACKWARD_SLOW = platform.machine() in ("aarch64", "arm64")
"""Whether torch's own backward convolutions are slow on this CPU; on others they were not compared."""


def convolve(features: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int, groups: int) -> Tensor:
    """F.conv2d of a feature map (B, C, H, W), to rounding."""
    if IS_BACKWARD_SLOW and features.device.type == "cpu" and stride == 1 and features.dtype == torch.float32:
        if weight.shape[2:] == (1, 1) and groups == 1:
            return F.linear(features.permute(0, 2, 3, 1), weight.flatten(1), bias).permute(0, 3, 1, 2)
        if groups == features.shape[1] == len(weight) and weight.shape[-1] == 2 * padding + 1:
            out: Tensor = _ByChannel.apply(features, weight, bias)  # type: ignore[no-untyped-call]
            return out
    return F.conv2d(features, weight, bias, stride, padding, 1, groups)


class _ByChannel(torch.autograd.Function):
    """Each channel (B, 1, H, W) with its own kernel (1, K, K), K odd, as many positions out as in."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(features, weight)
        return F.conv2d(features, weight, bias, padding=weight.shape[-1] // 2, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        side = weight.shape[-1]
        padding, (_, channels, height, width) = side // 2, features.shape
        of_features = F.conv2d(gradient, weight.flip(2, 3), padding=padding, groups=channels)
        padded = F.pad(features, [padding] * 4).permute(0, 2, 3, 1)  # (B, H + 2P, W + 2P, C)
        by_place = gradient.permute(0, 2, 3, 1)  # (B, H, W, C)
        of_weight = [
            (padded[:, top : top + height, left : left + width] * by_place).sum(dim=(0, 1, 2))
            for top in range(side)
            for left in range(side)
        ]
        return of_features, torch.stack(of_weight, dim=1).view_as(weight), by_place.sum(dim=(0, 1, 2))
