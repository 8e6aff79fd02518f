"""Convolutions in the form that trains fast equal torch's up to rounding."""

import pytest
import torch
from torch.nn import functional as F

from shoal.encoders import convolution


@pytest.mark.parametrize(
    ("kernel", "groups", "stride", "padding", "is_other"),
    [
        (1, 1, 1, 0, True),
        (3, 6, 1, 1, True),
        (5, 6, 1, 2, True),
        (3, 6, 2, 1, False),
        (3, 1, 1, 1, False),
    ],
)
def test_values_and_gradients_are_those_of_torch(
    kernel: int,
    groups: int,
    stride: int,
    padding: int,
    is_other: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convolution, "IS_BACKWARD_SLOW", True)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(shape, generator=generator)).requires_grad_()

    given = draw(4, 6, 7, 9), draw(6, 6 // groups, kernel, kernel, scale=3.0), draw(6)
    ours = convolution.convolve(*given, stride, padding, groups)
    theirs = F.conv2d(*given, stride, padding, 1, groups)
    assert (type(ours.grad_fn) is type(theirs.grad_fn)) == (not is_other)
    assert bool((theirs > 6).any() and (theirs < 0).any())  # ReLU6 clips at both ends
    ours = convolution._relu6(ours)
    theirs = F.relu6(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    toward = 0.01 * torch.randn(ours.shape, generator=generator)
    for a, b in zip(
        torch.autograd.grad(ours, given, toward),
        torch.autograd.grad(theirs, given, toward),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
