"""Convolutions with frozen batch norms, and faster gradients of them on a CPU.

A frozen batch norm is a scale and an offset per channel. Scaling the kernel instead of the feature
map gives the same function and gradients, to rounding; with channels last this is three times
faster on a CPU.

A 1 x 1 convolution is a matrix product over positions, with ReLU6 in place; this takes less CPU
time than oneDNN's convolution on ARM and x86. On ARM, oneDNN's gradients of a depthwise
convolution are slow too: they are computed by another convolution and by sums over positions.
B images, C channels in, D out, H x W positions, K the side of a kernel, P positions of padding.
"""

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IS_BACKWARD_SLOW = platform.machine() in ("aarch64", "arm64")
"""Whether torch's gradients of a depthwise convolution are slow on this CPU."""

MAX = 6.0
"""The upper limit of ReLU6."""


class FoldedConv(nn.Module):
    """A convolution, the frozen batch norm after it, and optionally ReLU6."""

    weight: Tensor | None
    bias: Tensor | None
    _cast_weight: Tensor | None
    _cast_bias: Tensor | None

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, *, has_activation: bool) -> None:
        super().__init__()
        self.conv = conv
        self.norm = norm
        self.has_activation = has_activation
        self.stride = int(conv.stride[0])
        self.groups = conv.groups
        # Folded weights of a frozen convolution, and these in the precision of autocast, which
        # would convert them in every call.
        self.register_buffer("weight", None)
        self.register_buffer("bias", None)
        self.register_buffer("_cast_weight", None, persistent=False)
        self.register_buffer("_cast_bias", None, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Turn a feature map (B, C, H, W) into (B, D, H, W), halved if the stride is 2."""
        # Images and cached tokens have channels first; for others this does nothing.
        features = features.contiguous(memory_format=torch.channels_last)
        if self.weight is None or self.bias is None:
            weight, bias = self._folded()
            features, padding = _pad(features, weight.shape[-1], self.stride)
            return convolve(
                features,
                weight,
                bias,
                self.stride,
                padding,
                self.groups,
                has_activation=self.has_activation,
            )
        weight, bias = self._cast(self.weight, self.bias, features.device.type)
        features, padding = _pad(features, weight.shape[-1], self.stride)
        out = F.conv2d(features, weight, bias, self.stride, padding, groups=self.groups)
        if self.has_activation:
            out = F.relu6(out, inplace=True)
        return out

    def freeze(self) -> None:
        """Fold once instead of in every call, and free the original weights."""
        with torch.no_grad():
            self.weight, self.bias = self._folded()
        del self.conv, self.norm

    def _folded(self) -> tuple[Tensor, Tensor]:
        norm = self.norm
        assert norm.running_var is not None
        assert norm.running_mean is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()  # (D,)
        weight = self.conv.weight * scale.view(-1, 1, 1, 1)
        bias = norm.bias - norm.running_mean * scale
        return weight.contiguous(memory_format=torch.channels_last), bias

    def _cast(self, weight: Tensor, bias: Tensor, device_type: str) -> tuple[Tensor, Tensor]:
        """Return frozen weights in the precision that the convolution is computed in."""
        if not torch.is_autocast_enabled(device_type):
            return weight, bias
        dtype = torch.get_autocast_dtype(device_type)
        if self._cast_weight is None or self._cast_weight.dtype != dtype:
            # Tensors made in inference mode could not be used in training.
            with torch.inference_mode(False):
                self._cast_weight = weight.to(dtype)
                self._cast_bias = bias.to(dtype)
        assert self._cast_bias is not None
        return self._cast_weight, self._cast_bias


def _pad(features: Tensor, kernel: int, stride: int) -> tuple[Tensor, int]:
    """Apply TensorFlow's SAME padding.

    Odd padding is added here, with the odd pixel at the end; even padding is returned, for the
    convolution to add.
    """
    side = features.shape[-1]
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    if total % 2 == 0:
        return features, total // 2
    return F.pad(features, [total // 2, total - total // 2] * 2), 0


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
    """Return F.conv2d of a feature map (B, C, H, W), optionally with F.relu6, to rounding."""
    is_plain = features.device.type == "cpu" and stride == 1 and features.dtype == torch.float32
    if is_plain and weight.shape[2:] == (1, 1) and groups == 1:
        return _pointwise(features, weight, bias, has_activation)
    is_depthwise = (
        groups == features.shape[1] == len(weight) and weight.shape[-1] == 2 * padding + 1
    )
    if IS_BACKWARD_SLOW and is_plain and is_depthwise:
        out = _depthwise(features, weight, bias)
    else:
        out = F.conv2d(features, weight, bias, stride, padding, 1, groups)
    return _relu6(out) if has_activation else out


def mean_over_positions(features: Tensor) -> Tensor:
    """Return the mean (B, C) of a feature map (B, C, H, W).

    On a CPU by a sum, with the same bits: torch materializes the gradient of a mean.
    """
    if features.device.type != "cpu":
        return features.mean(dim=(2, 3))
    return features.sum(dim=(2, 3)) / features.shape[2:].numel()


class _Pointwise(torch.autograd.Function):
    """A 1 x 1 convolution by weights (D, C, 1, 1), optionally followed by ReLU6."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, has_activation: bool
    ) -> Tensor:
        by_position = features.permute(0, 2, 3, 1)  # (B, H, W, C)
        rows = by_position.reshape(-1, by_position.shape[-1])  # (B·H·W, C)
        out = torch.addmm(bias, rows, weight.flatten(1).T)  # (B·H·W, D)
        if has_activation:
            out.clamp_(0, MAX)
        ctx.save_for_backward(rows, weight, out if has_activation else None)
        return out.view(*by_position.shape[:3], -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        rows, weight, out = ctx.saved_tensors
        gradient = gradients[0].permute(0, 2, 3, 1)  # (B, H, W, D)
        positions = gradient.shape[:3]
        if out is not None:
            gradient = torch.ops.aten.hardtanh_backward(
                gradient, out.view(gradient.shape), 0.0, MAX
            )
        gradient = gradient.reshape(-1, gradient.shape[-1])  # (B·H·W, D)
        features_gradient = None
        if ctx.needs_input_grad[0]:
            features_gradient = (
                (gradient @ weight.flatten(1)).view(*positions, -1).permute(0, 3, 1, 2)
            )
        return features_gradient, (gradient.T @ rows).view_as(weight), gradient.sum(dim=0), None


class _ReLU6(torch.autograd.Function):
    """ReLU6 in place, for the output of a convolution, whose gradients do not need it.

    F.relu6 would copy its input, though the gradient can be computed from the output.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        out = features.clamp_(0, MAX)
        ctx.mark_dirty(out)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        gradient: Tensor = torch.ops.aten.hardtanh_backward(gradients[0], out, 0.0, MAX)
        return gradient


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


_pointwise: Callable[[Tensor, Tensor, Tensor, bool], Tensor] = _Pointwise.apply
_relu6: Callable[[Tensor], Tensor] = _ReLU6.apply
_depthwise: Callable[[Tensor, Tensor, Tensor], Tensor] = _Depthwise.apply
