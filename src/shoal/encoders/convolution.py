"""Convolutions with frozen batch norms, and faster gradients of them on a CPU.

A frozen batch norm is a scale and an offset per channel. Scaling the kernel instead of the feature
map gives the same function and gradients, to rounding; with channels last this is three times
faster on a CPU.

A 1 x 1 convolution is a matrix product over positions, which takes less CPU time than oneDNN's
convolution on ARM and x86. On ARM, oneDNN's gradients of a depthwise
convolution are slow too: they are computed by another convolution and by sums over positions.
B images, C channels in, D out, H x W positions, K the side of a kernel, P positions of padding.
"""

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Whether torch's gradients of a depthwise convolution are slow on this CPU
IS_BACKWARD_SLOW = platform.machine() in ("aarch64", "arm64")

# The upper limit of ReLU6
MAX = 6.0


class FoldedConv(nn.Module):
    """A convolution, the frozen batch norm after it, and optionally ReLU6."""

    weight: Tensor
    bias: Tensor

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, *, has_activation: bool) -> None:
        super().__init__()
        self.conv = conv
        self.norm = norm
        self.has_activation = has_activation
        self.stride = int(conv.stride[0])
        self.groups = conv.groups
        self.is_frozen = False

    def forward(self, features: Tensor) -> Tensor:
        """Turn a feature map (B, C, H, W) into (B, D, H, W), halved if the stride is 2."""
        # Images and cached tokens have channels first; for others this does nothing.
        features = features.contiguous(memory_format=torch.channels_last)
        weight, bias = self._folded()
        features, padding = _pad(features, weight.shape[-1], self.stride)
        if not self.is_frozen:
            out = convolve(features, weight, bias, self.stride, padding, self.groups)
            return _relu6(out) if self.has_activation else out
        out = F.conv2d(features, weight, bias, self.stride, padding, groups=self.groups)
        return F.relu6(out, inplace=True) if self.has_activation else out

    def freeze(self) -> None:
        """Fold once instead of in every call, and free the original weights."""
        weight, bias = self._folded()
        self.register_buffer("weight", weight.detach())
        self.register_buffer("bias", bias.detach())
        self.is_frozen = True
        del self.conv, self.norm

    def _folded(self) -> tuple[Tensor, Tensor]:
        if self.is_frozen:
            return self.weight, self.bias
        norm = self.norm
        scale = norm.weight * (norm.get_buffer("running_var") + norm.eps).rsqrt()  # (D,)
        weight = self.conv.weight * scale.view(-1, 1, 1, 1)
        bias = norm.bias - norm.get_buffer("running_mean") * scale
        return weight.contiguous(memory_format=torch.channels_last), bias


def _pad(features: Tensor, kernel: int, stride: int) -> tuple[Tensor, int]:
    """Apply TensorFlow's SAME padding.

    Odd padding is added here, with the odd pixel at the end; even padding is returned, for the
    convolution to add.
    """
    side = features.shape[-1]
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    half = total // 2
    if total % 2 == 0:
        return features, half
    return F.pad(features, [half, half + 1] * 2), 0


def convolve(
    features: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int, groups: int
) -> Tensor:
    """Return F.conv2d of a feature map (B, C, H, W) to rounding; with stride 1 the size is kept."""
    if features.device.type == "cpu" and stride == 1:
        if weight.shape[2:] == (1, 1) and groups == 1:
            by_position = features.permute(0, 2, 3, 1)  # (B, H, W, C)
            out = torch.addmm(bias, by_position.flatten(0, 2), weight.flatten(1).T)  # (B·H·W, D)
            return out.view(*by_position.shape[:3], -1).permute(0, 3, 1, 2)
        if IS_BACKWARD_SLOW and groups == features.shape[1] == len(weight):
            return _depthwise(features, weight, bias)
    return F.conv2d(features, weight, bias, stride, padding, groups=groups)


class _ReLU6(torch.autograd.Function):
    """ReLU6 whose gradient needs its output only, which the next layer stores too.

    F.relu6 would store its input.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        out = features.clamp(0, MAX)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(gradients[0], out, 0.0, MAX)


class _Depthwise(torch.autograd.Function):
    """A depthwise convolution by kernels (C, 1, K, K), K odd, that keeps the size."""

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
        padded = F.pad(features, [padding] * 4).permute(0, 2, 3, 1)  # (B, H + 2P, W + 2P, C)
        by_position = gradient.permute(0, 2, 3, 1)  # (B, H, W, C)
        weight_gradient = [
            (padded[:, top : top + height, left : left + width] * by_position).sum(dim=(0, 1, 2))
            for top in range(side)
            for left in range(side)
        ]
        del padded  # the largest array of a step
        return (
            F.conv2d(gradient, weight.flip(2, 3), padding=padding, groups=channels),
            torch.stack(weight_gradient, dim=1).view_as(weight),
            by_position.sum(dim=(0, 1, 2)),
        )


_relu6: Callable[[Tensor], Tensor] = _ReLU6.apply
_depthwise: Callable[[Tensor, Tensor, Tensor], Tensor] = _Depthwise.apply
