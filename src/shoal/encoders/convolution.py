"""Convolutions that are trained on a CPU, in the form whose gradients are fastest there, and the
mean over places.

A 1 x 1 convolution is a matrix product over places, ReLU6 in place, which takes less CPU time than
oneDNN's convolution on ARM and on x86. On ARM oneDNN has no fast gradients of a convolution of each
channel by itself either: there they are taken by another convolution and by sums over places. B
images, C channels in, D out, H x W places, K the side of a kernel, P places of padding.
"""

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

IS_BACKWARD_SLOW = platform.machine() in ("aarch64", "arm64")
"""Whether torch's own backward convolutions of each channel by itself are slow on this CPU; on x86
they are not."""

MAX = 6.0
"""Where ReLU6 ends."""


def convolve(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: int,
    padding: int,
    groups: int,
    *,
    has_activation: bool,
) -> Tensor:
    """F.conv2d of a feature map (B, C, H, W), and F.relu6 after it where it `has_activation`, to
    rounding."""
    is_plain = features.device.type == "cpu" and stride == 1 and features.dtype == torch.float32
    if is_plain and weight.shape[2:] == (1, 1) and groups == 1:
        return _by_place(features, weight, bias, has_activation)
    is_by_channel = (
        groups == features.shape[1] == len(weight) and weight.shape[-1] == 2 * padding + 1
    )
    if IS_BACKWARD_SLOW and is_plain and is_by_channel:
        out = _by_channel(features, weight, bias)
    else:
        out = F.conv2d(features, weight, bias, stride, padding, 1, groups)
    # In place: a convolution's gradients do not ask for what came out of it.
    return F.relu6(out, inplace=True) if has_activation else out


def mean_over_places(features: Tensor) -> Tensor:
    """(B, C) of a feature map (B, C, H, W); on a CPU by a sum, since torch writes out a mean's
    gradient place by place.

    The values are the same bits there.
    """
    if features.device.type != "cpu":
        return features.mean(dim=(2, 3))
    return features.sum(dim=(2, 3)) / features.shape[2:].numel()


class _ByPlace(torch.autograd.Function):
    """The channels of each place by one matrix (D, C, 1, 1), and ReLU6 where there is one."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, has_activation: bool
    ) -> Tensor:
        by_place = features.permute(0, 2, 3, 1)  # (B, H, W, C)
        rows = by_place.reshape(-1, by_place.shape[-1])  # (B·H·W, C)
        out = torch.addmm(bias, rows, weight.flatten(1).T)  # (B·H·W, D)
        if has_activation:
            out.clamp_(0, MAX)
        ctx.save_for_backward(rows, weight, out if has_activation else None)
        return out.view(*by_place.shape[:3], -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        rows, weight, out = ctx.saved_tensors
        gradient = gradients[0].permute(0, 2, 3, 1)  # (B, H, W, D)
        places = gradient.shape[:3]
        if out is not None:
            gradient = torch.ops.aten.hardtanh_backward(
                gradient, out.view(gradient.shape), 0.0, MAX
            )
        gradient = gradient.reshape(-1, gradient.shape[-1])  # (B·H·W, D)
        of_features = None
        if ctx.needs_input_grad[0]:
            of_features = (gradient @ weight.flatten(1)).view(*places, -1).permute(0, 3, 1, 2)
        return of_features, (gradient.T @ rows).view_as(weight), gradient.sum(dim=0), None


class _ByChannel(torch.autograd.Function):
    """Each channel (B, 1, H, W) with its own kernel (1, K, K), K odd, as many positions out as
    in."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(features, weight)
        return F.conv2d(features, weight, bias, padding=weight.shape[-1] // 2, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        side = weight.shape[-1]
        padding = side // 2
        (_, channels, height, width) = features.shape
        of_features = F.conv2d(gradient, weight.flip(2, 3), padding=padding, groups=channels)
        padded = F.pad(features, [padding] * 4).permute(0, 2, 3, 1)  # (B, H + 2P, W + 2P, C)
        by_place = gradient.permute(0, 2, 3, 1)  # (B, H, W, C)
        of_weight = [
            (padded[:, top : top + height, left : left + width] * by_place).sum(dim=(0, 1, 2))
            for top in range(side)
            for left in range(side)
        ]
        return (
            of_features,
            torch.stack(of_weight, dim=1).view_as(weight),
            by_place.sum(dim=(0, 1, 2)),
        )


_by_place: Callable[[Tensor, Tensor, Tensor, bool], Tensor] = _ByPlace.apply
_by_channel: Callable[[Tensor, Tensor, Tensor], Tensor] = _ByChannel.apply
