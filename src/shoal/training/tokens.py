"""What a run computes once and keeps: pixels on the device, and the trunk's tokens of un-augmented
images.

The trunk is frozen, so the bank and the validation images need only the tail after the first pass.
N images, T the shape of one image's tokens, D the dimension of an embedding.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.device import free_memory
from shoal.distributed import gather_rows, shard, world_size
from shoal.encoders.embed import (
    ImageRows,
    autocast,
    center_images,
    check_pixels,
    explain_out_of_memory,
    to_device,
)
from shoal.encoders.vision import Encoder
from shoal.files import cache_folder, scratch_array, writing
from shoal.progress import Progress

Represent = Callable[[Tensor], Tensor]
"""From tokens (or images) of a batch to rows (b, D) of any length."""

SHARE_OF_MEMORY = 0.45
"""The share of the free memory of the device that pixels, and then tokens, may each take."""


class TokenCache:
    """The trunk's tokens of N un-augmented images, this process's share; `embed` runs a network
    over them."""

    def __init__(self, tokens: Tensor, batch_size: int) -> None:
        self.tokens = tokens
        self.batch_size = batch_size

    def embed(self, represent: Represent, device: torch.device) -> Tensor:
        """Unit embeddings (N, D) of all images by what `represent` makes of their tokens; in every
        process."""
        # A process without images runs none of them, to learn how long a row is.
        starts = range(0, len(self.tokens), self.batch_size) or range(1)
        parts = (self.tokens[start : start + self.batch_size] for start in starts)
        batches = (part.to(device).float() for part in parts)
        return gather_rows(_embed_batches(batches, represent, device))


class ImageInputs:
    """N un-augmented images for a network that reads images; nothing is kept, and each process does
    all of them."""

    def __init__(self, pixels: ImageRows, encoder: Encoder, batch_size: int) -> None:
        self.pixels = pixels
        self.encoder = encoder
        self.batch_size = batch_size

    def embed(self, represent: Represent, device: torch.device) -> Tensor:
        """Unit embeddings (N, D) of all images by what `represent` makes of them."""
        starts = range(0, len(self.pixels), self.batch_size)
        parts = (self.pixels[start : start + self.batch_size] for start in starts)
        batches = (center_images(to_device(part, device), self.encoder) for part in parts)
        return _embed_batches(batches, represent, device)


def _embed_batches(batches: Iterable[Tensor], represent: Represent, device: torch.device) -> Tensor:
    """Unit rows (N, D), float32, of what `represent` makes of each batch."""
    with torch.inference_mode(), autocast(device):
        parts = [F.normalize(represent(batch).float(), dim=1) for batch in batches]
    # Outside of inference mode: whoever is given them may use them in place.
    return torch.cat(parts)


def cache_tokens(
    pixels: ImageRows,
    encoder: Encoder,
    *,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> TokenCache:
    """Run the trunk over the center crops of all images and keep its tokens, as `keep_tokens` does.

    Several processes keep a share each.
    """
    check_pixels(pixels)
    mine = shard(len(pixels))

    def make(start: int, stop: int) -> Tensor:
        own = pixels[mine.start + start : mine.start + stop]
        return trunk_tokens(center_images(to_device(own, encoder.device), encoder), encoder)

    n_own = mine.stop - mine.start
    return TokenCache(keep_tokens(make, n_own, batch_size, progress), batch_size)


class TokenKeeper:
    """Takes the trunk's tokens of N images as another one makes them, in float16, where they fit
    into memory."""

    def __init__(self, n_images: int) -> None:
        self.n_images = n_images
        self.tokens: Tensor | None = None
        self._has_room = True

    def __call__(self, rows: slice, tokens: Tensor) -> None:
        """Keep the tokens of some rows."""
        if self.tokens is None and self._has_room:
            shape = (self.n_images, *tokens.shape[1:])
            self._has_room = fits(2 * math.prod(shape), tokens.device)
            if self._has_room:
                with torch.inference_mode(False):  # which embedding is in, and training is not
                    self.tokens = torch.empty(shape, dtype=torch.float16, device=tokens.device)
        if self.tokens is not None:
            self.tokens[rows] = as_half(tokens)


def keep_tokens(
    make: Callable[[int, int], Tensor],
    n_rows: int,
    batch_size: int,
    progress: Progress | None,
    *,
    lower: str = "input_size",
) -> Tensor:
    """(R, T) tokens in float16, made batch by batch: on the device where they fit, else in memory
    or a mapped file.

    `make` gives the tokens of rows from start to stop, `lower` is the setting to lower where there
    is no room.
    """
    kept: Tensor | None = None
    # Without rows the trunk runs over none, to learn the shape.
    for start in range(0, n_rows, batch_size) or range(1):
        stop = min(start + batch_size, n_rows)
        with explain_out_of_memory(
            f"training.batch_size (the trunk takes {batch_size} images at once)"
        ):
            tokens = make(start, stop)
        if kept is None:
            kept = _room_for((n_rows, *tokens.shape[1:]), tokens.device, lower)
        kept[start:stop] = tokens
        if progress is not None and n_rows:
            progress(stop, n_rows)
    assert kept is not None
    return kept


def _room_for(shape: tuple[int, ...], device: torch.device, lower: str) -> Tensor:
    if fits(2 * math.prod(shape), device):
        with explain_out_of_memory(lower):
            return torch.empty(shape, dtype=torch.float16, device=device)
    cache = cache_folder()
    with writing(cache):
        return torch.from_numpy(scratch_array(shape, np.float16, cache))


def fits(n_bytes: int, device: torch.device) -> bool:
    """Whether pixels, or tokens, may take so much of the device's memory."""
    return n_bytes <= free_memory(device) * SHARE_OF_MEMORY


def resident(pixels: ImageRows, device: torch.device) -> ImageRows:
    """Bring all pixels to the device where they fit, so that no step waits for the host; else leave
    them.

    Several processes leave them too: a mapped file is in the memory of a machine once, and each
    reads what its part of a batch needs.
    """
    check_pixels(pixels)
    if world_size() > 1 or not fits(math.prod(pixels.shape), device):
        return pixels
    return to_device(pixels, device)


def take(pixels: ImageRows, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """The images to cut views from, and each view's row among them: all of them, or a copy of just
    those."""
    if isinstance(pixels, Tensor):
        return pixels, rows
    unique, inverse = torch.unique(rows.cpu(), return_inverse=True)
    return to_device(pixels[unique.numpy()], device), inverse.to(device)


@torch.inference_mode()
def trunk_tokens(images: Tensor, encoder: Encoder) -> Tensor:
    """Tokens in float16."""
    with autocast(encoder.device):
        tokens = encoder.run_trunk(images)
    return as_half(tokens)


def as_half(tokens: Tensor) -> Tensor:
    """The same in float16; a residual stream beyond its range is cut at the largest number it
    holds."""
    limit = torch.finfo(torch.float16).max
    return tokens.clamp(-limit, limit).half()
