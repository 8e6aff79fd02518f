"""Pixels on the device, and the trunk's tokens of un-augmented images, computed once.

The trunk is frozen, so after the first pass only the tail has to run over these images.

Shapes: N images, T the shape of one image's tokens, D the dimension of an embedding.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.device import free_memory
from shoal.distributed import gather_rows, n_local, shard, world_size
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
"""Maps the tokens (or images) of a batch to rows (b, D) of any length."""

SHARE_OF_MEMORY = 0.45
"""The share of the free memory of the device that pixels, and then tokens, may each take."""


class TokenCache:
    """The trunk's tokens of un-augmented images: this process's share of N images."""

    def __init__(self, tokens: Tensor, batch_size: int) -> None:
        self.tokens = tokens
        self.batch_size = batch_size

    def embed(self, represent: Represent, device: torch.device) -> Tensor:
        """Return unit embeddings (N, D) of all images, in every process."""
        # A process without images runs an empty batch to determine the number of columns.
        starts = range(0, len(self.tokens), self.batch_size) or range(1)
        batches = (self.tokens[start : start + self.batch_size] for start in starts)
        return gather_rows(
            _embed_batches((batch.to(device).float() for batch in batches), represent, device)
        )


class ImageInputs:
    """Un-augmented images for a network that reads images; every process embeds all N of them."""

    def __init__(self, pixels: ImageRows, encoder: Encoder, batch_size: int) -> None:
        self.pixels = pixels
        self.encoder = encoder
        self.batch_size = batch_size

    def embed(self, represent: Represent, device: torch.device) -> Tensor:
        """Return unit embeddings (N, D) of all images."""
        starts = range(0, len(self.pixels), self.batch_size)
        batches = (self.pixels[start : start + self.batch_size] for start in starts)
        images = (center_images(to_device(batch, device), self.encoder) for batch in batches)
        return _embed_batches(images, represent, device)


def _embed_batches(batches: Iterable[Tensor], represent: Represent, device: torch.device) -> Tensor:
    """Return unit rows (N, D), float32, of all batches."""
    with torch.inference_mode(), autocast(device):
        parts = [F.normalize(represent(batch).float(), dim=1) for batch in batches]
    # Outside of inference mode, so that the result can be changed in place.
    return torch.cat(parts)


def cache_tokens(
    pixels: ImageRows,
    encoder: Encoder,
    *,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> TokenCache:
    """Return the trunk's tokens of the center crops of all images; each process holds a share."""
    check_pixels(pixels)
    first = shard(len(pixels)).start

    def make(start: int, stop: int) -> Tensor:
        block = to_device(pixels[first + start : first + stop], encoder.device)
        return trunk_tokens(center_images(block, encoder), encoder)

    size = encoder.chunk_size(batch_size)
    return TokenCache(store_tokens(make, n_local(len(pixels)), size, progress), batch_size)


class TokenCollector:
    """Stores in float16 the trunk's tokens that embedding N images computes, if they fit into
    memory."""

    def __init__(self, n_images: int) -> None:
        self.n_images = n_images
        self.tokens: Tensor | None = None
        self._has_room = True

    def __call__(self, rows: slice, tokens: Tensor) -> None:
        """Store the tokens of some rows."""
        if self.tokens is None and self._has_room:
            shape = (self.n_images, *tokens.shape[1:])
            self._has_room = fits(2 * math.prod(shape), tokens.device)
            if self._has_room:
                # Embedding runs in inference mode, whose tensors training cannot use.
                with torch.inference_mode(False):
                    self.tokens = torch.empty(shape, dtype=torch.float16, device=tokens.device)
        if self.tokens is not None:
            self.tokens[rows] = as_half(tokens)


def store_tokens(
    make: Callable[[int, int], Tensor],
    n_rows: int,
    batch_size: int,
    progress: Progress | None,
) -> Tensor:
    """Return tokens (R, T) in float16, made batch by batch: on the device if they fit, else in
    memory or a mapped file.

    `make` returns the tokens of the rows from start to stop.
    """
    stored: Tensor | None = None
    # Without rows, the trunk runs on an empty batch to determine the shape.
    for start in range(0, n_rows, batch_size) or range(1):
        stop = min(start + batch_size, n_rows)
        with explain_out_of_memory(
            f"training.batch_size (the trunk takes {batch_size} images at once)"
        ):
            tokens = make(start, stop)
        if stored is None:
            stored = _allocate((n_rows, *tokens.shape[1:]), tokens.device)
        stored[start:stop] = tokens
        if progress is not None and n_rows:
            progress(stop, n_rows)
    assert stored is not None
    return stored


def _allocate(shape: tuple[int, ...], device: torch.device) -> Tensor:
    if fits(2 * math.prod(shape), device):
        with explain_out_of_memory("training.views.pool or input_size"):
            return torch.empty(shape, dtype=torch.float16, device=device)
    cache = cache_folder()
    with writing(cache):
        return torch.from_numpy(scratch_array(shape, np.float16, cache))


def fits(n_bytes: int, device: torch.device) -> bool:
    """Return whether pixels, or tokens, may take `n_bytes` of the device's memory."""
    return n_bytes <= free_memory(device) * SHARE_OF_MEMORY


def resident(pixels: ImageRows, device: torch.device) -> ImageRows:
    """Return all pixels on a GPU if they fit, so that no step waits for the host; else unchanged.

    With several processes they are unchanged too: these share a mapped file in host memory.
    """
    check_pixels(pixels)
    if device.type == "cpu" or world_size() > 1 or not fits(math.prod(pixels.shape), device):
        return pixels
    return to_device(pixels, device)


def take(pixels: ImageRows, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images on the device, and the row of each wanted image among them: all images, or a
    copy of the wanted ones."""
    if isinstance(pixels, Tensor):
        return pixels, rows
    unique, inverse = torch.unique(rows.cpu(), return_inverse=True)
    return to_device(pixels[unique.numpy()], device), inverse.to(device)


@torch.inference_mode()
def trunk_tokens(images: Tensor, encoder: Encoder) -> Tensor:
    """Return the trunk's tokens of images in float16."""
    with autocast(encoder.device):
        tokens = encoder.run_trunk(images)
    return as_half(tokens)


def as_half(tokens: Tensor) -> Tensor:
    """Return tokens in float16, clamped to its range, which residual streams may exceed."""
    limit = torch.finfo(torch.float16).max
    return tokens.clamp(-limit, limit).half()
