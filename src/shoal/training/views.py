"""Random views of images: crop, flip and color jitter of a whole batch, on the device that holds
the pixels.

The random parameters of all views of an epoch are sampled in advance, into one small table by one
CPU generator, so that views are the same on every device, with any number of processes, and after a
resume.

Shapes: B views, S the side of a stored image, C of the crop, I of the encoder's input.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from shoal.encoders.embed import crop_size, resize, to_float
from shoal.encoders.vision import Encoder
from shoal.settings import BelowOne, Fraction, Range

# Uniform random numbers that determine a view: top, left, flip, brightness, contrast, saturation,
# and one that is unused. Without it, the same seed would give other views.
N_PARAMETERS = 7

# Weights of red, green and blue in a pixel's brightness
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, kw_only=True)
class ViewSettings:
    """Settings of random views."""

    flip: Fraction = 0.5
    """Probability of a horizontal flip."""
    jitter: BelowOne = 0.2
    """Brightness, contrast and saturation are each multiplied by a number in [1 - jitter, 1 +
    jitter]; 0, as effectively in the released code, leaves colors unchanged."""
    pool: Annotated[
        int | None,
        Range("2 or more, or null for new views in every step", lambda n: n is None or n >= 2),
    ] = None
    """Number of views of each image that are computed once and sampled in every step, so that the
    frozen trunk runs only on these; None, as in the CMS paper: new views in every step."""


def sample_view_parameters(n_views: int, generator: torch.Generator) -> Tensor:
    """Return uniform numbers in [0, 1) that determine `n_views` views, (n_views, 7)."""
    return torch.rand(n_views, N_PARAMETERS, generator=generator)


def make_views(
    pixels: Tensor, rows: Tensor, view_parameters: Tensor, encoder: Encoder, settings: ViewSettings
) -> Tensor:
    """Return one view (B, 3, I, I), normalized for the trunk, of each of the images `rows` (B,) of
    `pixels` (N, S, S, 3).

    The crop keeps 7/8 of the side, at a random place, and is resized to the encoder's input.
    """
    side = pixels.shape[1]
    crop = crop_size(side)
    steps = torch.arange(crop, device=pixels.device)
    corners = (view_parameters[:, :2] * (side - crop + 1)).long()  # (B, 2)
    is_flipped = view_parameters[:, 2:3] < settings.flip
    down = corners[:, :1] + steps  # (B, C)
    across = corners[:, 1:] + torch.where(is_flipped, steps.flip(0), steps)  # (B, C)
    # One gather, in uint8, so that no larger copy is made.
    crops = pixels[rows[:, None, None], down[:, :, None], across[:, None]]  # (B, C, C, 3)
    images = resize(to_float(crops), encoder.input_format.size)
    if settings.jitter > 0:
        images = jitter(images, view_parameters[:, 3:6], settings.jitter)
    return encoder.normalize(images)


def jitter(images: Tensor, parameters: Tensor, strength: float) -> Tensor:
    """Change brightness, contrast and saturation of images (B, 3, H, W) in [0, 1] by `parameters`
    (B, 3).

    All three are linear in the colors, so one 3 x 3 matrix and one offset per image suffice.
    """
    spread = strength * (2 * parameters - 1)
    brightness, contrast, saturation = (1 + spread).T[..., None, None]  # (B, 1, 1) each
    # Filled on the device; a copy from the host would synchronize.
    luma = torch.stack([torch.full((), value, device=images.device) for value in LUMA])  # (3,)
    gray = luma.expand(3, 3)  # every channel becomes the brightness
    identity = torch.eye(3, device=images.device)
    color = saturation * identity + (1 - saturation) * gray  # (B, 3, 3)
    matrix = brightness * contrast * color
    # Contrast scales the distance to the mean brightness.
    mean = brightness[:, 0] * (images.mean(dim=(2, 3)) @ luma)[:, None]  # (B, 1)
    offset = (1 - contrast[:, 0]) * mean  # (B, 1)
    flat = torch.baddbmm(offset[:, :, None], matrix, images.flatten(2))  # (B, 3, H*W)
    return flat.view_as(images).clamp(0, 1)
