"""What a run computes once and keeps: pixels on the device, and the trunk's tokens of un-augmented images.

The trunk is frozen, so the bank and the validation images need only the tail after the first pass.
N images, T the shape of one image's tokens, D the dimension of an embedding.
"""

import math
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import Ints
from shoal.device import free_memory
from shoal.distributed import gather_rows, rank, shard, world_size
from shoal.encoders.embed import (
    ImageRows,
    autocast,
    center_images,
    check_pixels,
    explain_out_of_memory,
    to_device,
)
from shoal.encoders.vision import Encoder
from shoal.errors import ShoalError
from shoal.files import writing
from shoal.progress import Progress

Kept = Tensor | NDArray[np.float16]
"""Tokens in the device's memory, or in a memory-mapped file."""

Represent = Callable[[Tensor], Tensor]
"""From tokens (or images) of a batch to rows (b, D) of any length."""

SHARE_OF_MEMORY = 0.45
"""The share of the free memory of the device that pixels, and then tokens, may each take."""


class TokenCache:
    """The trunk's tokens of N un-augmented images, this process's share; `embed` runs a network over them."""

    def __init__(self, tokens: Kept, batch_size: int) -> None:
        self.tokens = tokens
        self.batch_size = batch_size

    @property
    def is_resident(self) -> bool:
        """Whether the tokens are in the device's memory; else they are in a file."""
        return isinstance(self.tokens, Tensor)

    def remove(self) -> None:
        """Delete the file, where there is one."""
        remove_tokens(self.tokens)

    def embed(self, represent: Represent, device: torch.device) -> Tensor:
        """Unit embeddings (N, D) of all images by what `represent` makes of their tokens; in every process."""
        # A process without images runs none of them, to learn how long a row is.
        starts = range(0, len(self.tokens), self.batch_size) or range(1)
        return gather_rows(
            embed_batches((self._batch(start, device) for start in starts), represent, device)
        )

    def _batch(self, start: int, device: torch.device) -> Tensor:
        batch = self.tokens[start : start + self.batch_size]
        return (
            batch if isinstance(batch, Tensor) else torch.from_numpy(np.array(batch)).to(device)
        ).float()


class ImageInputs:
    """N un-augmented images for a network that reads images; nothing is kept, and each process does all of them."""

    def __init__(self, pixels: ImageRows, encoder: Encoder, batch_size: int) -> None:
        self.pixels = pixels
        self.encoder = encoder
        self.batch_size = batch_size

    def remove(self) -> None:
        """There is no file."""

    def embed(self, represent: Represent, device: torch.device) -> Tensor:
        """Unit embeddings (N, D) of all images by what `represent` makes of them."""
        starts = range(0, len(self.pixels), self.batch_size)
        return embed_batches((self._batch(start, device) for start in starts), represent, device)

    def _batch(self, start: int, device: torch.device) -> Tensor:
        return center_images(
            to_device(self.pixels[start : start + self.batch_size], device), self.encoder
        )


def embed_batches(batches: Iterable[Tensor], represent: Represent, device: torch.device) -> Tensor:
    """Unit rows (N, D), float32, of what `represent` makes of each batch."""
    with torch.inference_mode(), autocast(device):
        parts = [F.normalize(represent(batch).float(), dim=1) for batch in batches]
    return torch.cat(
        parts
    )  # outside of inference mode: whoever is given them may use them in place


def cache_tokens(
    pixels: ImageRows,
    encoder: Encoder,
    *,
    images: Ints | None = None,
    batch_size: int = 128,
    file: Path | None = None,
    memory: int | None = None,
    progress: Progress | None = None,
) -> TokenCache:
    """Run the trunk over the center crops of some `images` (all of them when None) and keep its tokens, in float16.

    They stay on the device where they fit into `memory` bytes (a share of what is free unless given), and go to a
    memory-mapped `file` where they do not. Several processes keep a share each.
    """
    check_pixels(pixels)
    images = np.arange(len(pixels)) if images is None else images
    mine = images[shard(len(images))]

    def make(rows: slice) -> Tensor:
        return trunk_tokens(
            center_images(to_device(pixels[mine[rows]], encoder.device), encoder), encoder
        )

    shape = (len(mine), *token_shape(pixels, encoder))
    return TokenCache(
        keep_tokens(make, shape, encoder, batch_size, file, memory, progress), batch_size
    )


class TokenKeeper:
    """Takes the trunk's tokens of N images as another one makes them, in float16, where they fit into memory."""

    def __init__(self, n_images: int) -> None:
        self.n_images = n_images
        self.tokens: Tensor | None = None
        self._has_room = True

    def __call__(self, rows: slice, tokens: Tensor) -> None:
        """Keep the tokens of some rows."""
        if self.tokens is None and self._has_room:
            shape = (self.n_images, *tokens.shape[1:])
            self._has_room = 2 * math.prod(shape) <= free_memory(tokens.device) * SHARE_OF_MEMORY
            if self._has_room:
                with torch.inference_mode(False):  # which embedding is in, and training is not
                    self.tokens = torch.empty(shape, dtype=torch.float16, device=tokens.device)
        if self.tokens is not None:
            self.tokens[rows] = as_half(tokens)


def keep_tokens(
    make: Callable[[slice], Tensor],
    shape: tuple[int, ...],
    encoder: Encoder,
    batch_size: int,
    file: Path | None,
    memory: int | None,
    progress: Progress | None,
    *,
    lower: str = "input_size",
) -> Kept:
    """Fill an array of tokens (R, T) batch by batch: on the device where it fits into `memory` bytes, else in `file`.

    `make` gives the tokens of some rows, `lower` is the setting that there is to lower where neither has room.
    """
    budget = free_memory(encoder.device) * SHARE_OF_MEMORY if memory is None else memory
    kept: Kept
    if 2 * math.prod(shape) <= budget or file is None:
        with explain_out_of_memory(lower):
            kept = torch.empty(shape, dtype=torch.float16, device=encoder.device)
    else:
        kept = _open_file(file.with_name(f"{file.name}.{rank()}"), shape, lower)
    for start in range(0, shape[0], batch_size):
        stop = min(start + batch_size, shape[0])
        with explain_out_of_memory(
            f"training.batch_size (the trunk takes {batch_size} images at once)"
        ):
            tokens = make(slice(start, stop))
        if isinstance(kept, Tensor):
            kept[start:stop] = tokens
        else:
            kept[start:stop] = tokens.cpu().numpy()
        if progress is not None:
            progress(stop, shape[0])
    return kept


def remove_tokens(tokens: Kept) -> None:
    """Delete the file of tokens, where they are in one."""
    if isinstance(tokens, np.memmap) and tokens.filename is not None:
        Path(tokens.filename).unlink(missing_ok=True)


def resident(pixels: ImageRows, device: torch.device, memory: int | None = None) -> ImageRows:
    """Bring all pixels to the device where they fit, so that no step waits for the host; else leave them.

    Several processes leave them too: a mapped file is in the memory of a machine once, and each reads what its part of
    a batch needs.
    """
    check_pixels(pixels)
    if world_size() > 1:
        return pixels
    budget = free_memory(device) * SHARE_OF_MEMORY if memory is None else memory
    return to_device(pixels, device) if math.prod(pixels.shape) <= budget else pixels


def take(pixels: ImageRows, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """The images to cut views from, and each view's row among them: all of them, or a copy of just those."""
    if isinstance(pixels, Tensor):
        return pixels, rows
    unique, inverse = torch.unique(rows.cpu(), return_inverse=True)
    return to_device(pixels[unique.numpy()], device), inverse.to(device)


def token_shape(pixels: ImageRows, encoder: Encoder) -> tuple[int, ...]:
    """The shape of one image's tokens, T."""
    with torch.inference_mode(), autocast(encoder.device):
        tokens: Tensor = encoder.trunk(
            center_images(to_device(pixels[:1], encoder.device), encoder)
        )
    return tokens.shape[1:]


def _open_file(file: Path, shape: tuple[int, ...], lower: str) -> NDArray[np.float16]:
    """A new memory-mapped file; a full disk is noticed here, because writing to the map would kill the process."""
    wanted = 2 * math.prod(shape)
    free = shutil.disk_usage(file.parent).free
    if wanted > free:
        raise ShoalError(
            f"{file}: tokens of {shape[0]:,} images or views take {wanted / 1e9:.1f} GB, more than fit into memory, "
            f"and the disk has {free / 1e9:.1f} GB left; free some, lower {lower}, or use a smaller encoder"
        )
    with writing(file):
        return np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape)


@torch.inference_mode()
def trunk_tokens(images: Tensor, encoder: Encoder) -> Tensor:
    """Tokens in float16."""
    with autocast(encoder.device):
        tokens = encoder.run_trunk(images)
    return as_half(tokens)


def as_half(tokens: Tensor) -> Tensor:
    """The same in float16; a residual stream beyond its range is cut at the largest number it holds."""
    limit = torch.finfo(torch.float16).max
    return tokens.clamp(-limit, limit).half()
