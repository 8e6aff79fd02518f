"""Random views of images: crop, flip and color jitter, a whole batch at once, on the device that
holds the pixels.

What a view looks like is drawn apart from making it: all draws of an epoch are one small table from
one CPU generator, so that views are the same on every device, with any number of processes, and
after a resume. B views, S the side of a stored image, C of the crop, I of the encoder's input.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.encoders.embed import crop_size, resize, to_float
from shoal.encoders.vision import Encoder
from shoal.errors import UsageError

N_DRAWS = 7
"""Uniform numbers a view needs: top, left, flip, brightness, contrast, saturation, hue."""

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a pixel's brightness."""

TO_YIQ = (LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))
"""RGB to brightness and two color axes; hue is the angle in the plane of these two."""

FROM_YIQ = tuple(map(tuple, torch.linalg.inv(torch.tensor(TO_YIQ, dtype=torch.float64)).tolist()))


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewSettings:
    """How far apart two views of one image may be."""

    flip: float = 0.5
    """Chance of a left-right flip."""
    jitter: float = 0.2
    """Brightness, contrast and saturation are each multiplied by a number in [1 - jitter, 1 +
    jitter]; 0, as the released code effectively has it, leaves colors alone."""
    hue: float = 0.0
    """Largest rotation of the hue, in turns, at most 0.5."""
    pool: int | None = None
    """How many views of each image to make once and choose from, so that the frozen trunk runs over
    these alone; None, as in the paper, makes new views in every step."""

    def __post_init__(self) -> None:
        if not 0 <= self.flip <= 1:
            raise UsageError(f"views.flip: found {self.flip}, expected a chance in [0, 1]")
        if not 0 <= self.jitter < 1:
            raise UsageError(f"views.jitter: found {self.jitter}, expected a number in [0, 1)")
        if not 0 <= self.hue <= 0.5:
            raise UsageError(f"views.hue: found {self.hue}, expected turns in [0, 0.5]")
        if self.pool is not None and self.pool < 2:
            raise UsageError(
                f"views.pool: found {self.pool}, expected 2 or more, or null for new views in "
                "every step"
            )


def draw_views(n_views: int, generator: torch.Generator) -> Tensor:
    """Draw what `n_views` views will look like, (n_views, 7) uniform numbers in [0, 1)."""
    return torch.rand(n_views, N_DRAWS, generator=generator)


def make_views(
    pixels: Tensor, rows: Tensor, view_draws: Tensor, encoder: Encoder, settings: ViewSettings
) -> Tensor:
    """Cut, flip, color and normalize images `rows` (B,) of `pixels` (N, S, S, 3): (B, 3, I, I),
    ready for the trunk.

    The crop keeps 7/8 of the side, at a random place, and is scaled to the encoder's input, up or
    down, so images of any size will do.
    """
    side = pixels.shape[1]
    crop = crop_size(side)
    steps = torch.arange(crop, device=pixels.device)
    top = (view_draws[:, 0] * (side - crop + 1)).long()[:, None] + steps  # (B, C)
    left = (view_draws[:, 1] * (side - crop + 1)).long()[:, None]
    is_flipped = (view_draws[:, 2] < settings.flip)[:, None]
    across = left + torch.where(is_flipped, steps.flip(0), steps)  # (B, C)
    # One gather, in uint8; nothing else is copied.
    cut = pixels[rows[:, None, None], top[:, :, None], across[:, None, :]]  # (B, C, C, 3)
    images = resize(to_float(cut), encoder.input_format.size)
    if settings.jitter > 0 or settings.hue > 0:
        images = jitter(images, view_draws[:, 3:], settings)
    return encoder.normalize(images)


def jitter(images: Tensor, view_draws: Tensor, settings: ViewSettings) -> Tensor:
    """Change brightness, contrast, saturation and hue of images (B, 3, H, W) in [0, 1] by
    `view_draws` (B, 4).

    All four are linear in the colors, so one 3 x 3 matrix and one offset per image do them
    together.
    """
    spread = settings.jitter * (2 * view_draws[:, :3] - 1)
    brightness, contrast, saturation = (1 + spread).T[..., None, None]  # (B, 1, 1) each
    (luma,) = _matrix([LUMA], images.device)  # (3,)
    gray = luma.expand(3, 3)  # every channel becomes the brightness
    identity = torch.eye(3, device=images.device)
    color = saturation * identity + (1 - saturation) * gray  # (B, 3, 3)
    if settings.hue > 0:
        color = _hue_rotation((2 * view_draws[:, 3] - 1) * settings.hue) @ color
    matrix = brightness * contrast * color
    mean = (
        brightness[:, 0] * (images.mean(dim=(2, 3)) @ luma)[:, None]
    )  # (B, 1), what contrast turns around
    offset = (1 - contrast[:, 0]) * mean  # (B, 1)
    flat = torch.baddbmm(offset[:, :, None], matrix, images.flatten(2))  # (B, 3, H*W)
    return flat.view_as(images).clamp(0, 1)


def _hue_rotation(turns: Tensor) -> Tensor:
    """(B, 3, 3) matrices that turn colors about the gray axis, brightness kept."""
    angle = 2 * math.pi * turns
    cos = angle.cos()
    sin = angle.sin()
    zero = torch.zeros_like(angle)
    one = torch.ones_like(angle)
    turn = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], dim=1).view(-1, 3, 3)
    return _matrix(FROM_YIQ, turns.device) @ turn @ _matrix(TO_YIQ, turns.device)


def _matrix(rows: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    """Numbers as a matrix made on the device: copied from the host, they would make every step wait
    for it."""
    return torch.stack(
        [torch.full((), value, device=device) for row in rows for value in row]
    ).view(len(rows), -1)
