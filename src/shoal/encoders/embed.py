"""Pixels to embeddings: the encoder run over a whole collection, in batches, on its device.

N images of S x S pixels, I the encoder's input size, D the dimension of an embedding.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.device import computing_device
from shoal.distributed import gather_rows, rank, shard, world_size
from shoal.encoders.openvino_trunk import probe_images
from shoal.encoders.vision import Encoder
from shoal.encoders.weights import in_a_line
from shoal.errors import DataError, ShoalError, UsageError
from shoal.progress import Progress
from shoal.words import first_few

CROP_RATIO = 0.875
"""The share of an image's side that is kept: 224 of 256 pixels."""

BATCHES_AT_ONCE = 64
"""Batches that a process embeds before they are handed on: so much is held where the rest goes to a
file."""

UNTRIED = ("mps",)
"""Kinds of devices whose features are compared with the CPU's before they are used."""

MOVE_TOLERANCE = 1e-3
"""How far unit features on Apple's GPU may lie from the CPU's; those of a wrong operation lie far
beyond."""

log = logging.getLogger(__name__)


class ImageRows(Protocol):
    """N uint8 images (N, S, S, 3): an array, a memory map, a tensor, or `data.pixels.Pixels`.

    Slices and index arrays give a batch as an array or tensor; nothing else is asked of it, and
    nothing is written.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, S, S, 3)."""

    @property
    def dtype(self) -> Any:
        """uint8, numpy's or torch's."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


OnTokens = Callable[[slice, Tensor], None]
"""Given some rows, and the trunk's tokens of them."""


def embed(
    pixels: ImageRows,
    encoder: Encoder,
    *,
    batch_size: int = 128,
    progress: Progress | None = None,
    on_tokens: OnTokens | None = None,
) -> Tensor:
    """Embed uint8 images (N, S, S, 3) as unit rows (N, D), float32, on the device that computes
    beside the encoder's.

    The embedding is the encoder's feature. Images are read a batch at a time (a memory map stays on
    disk), cut to their center and scaled. Several processes share the rows; each gets all of them.
    The batch size changes the result by rounding only. `on_tokens` is given the trunk's tokens of
    this process's rows as they come.
    """
    blocks = embed_blocks(
        pixels, encoder, batch_size=batch_size, progress=progress, on_tokens=on_tokens
    )
    features = torch.empty(
        len(pixels), encoder.feature_dim, device=computing_device(encoder.device)
    )
    for rows, block in blocks:
        features[rows] = block
    return features


def embed_blocks(
    pixels: ImageRows,
    encoder: Encoder,
    *,
    batch_size: int = 128,
    progress: Progress | None = None,
    on_tokens: OnTokens | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """The same a block at a time, for who keeps them elsewhere: which rows, and their embeddings
    (B, D).

    Every process is given every block, its own ones and those of the others in turn.
    """
    check_pixels(pixels)
    if batch_size < 1:
        raise UsageError(f"batch_size: found {batch_size}, expected at least 1")
    shares = [shard(len(pixels), of) for of in range(world_size())]
    own = shares[rank()]
    step = batch_size * BATCHES_AT_ONCE
    for done in range(0, shares[0].stop, step):  # no share is longer than the first
        # The rows of each process in this round; a share may have ended.
        rounds = [
            slice(min(s.start + done, s.stop), min(s.start + done + step, s.stop)) for s in shares
        ]
        rows = rounds[rank()]
        parts = [torch.empty(0, encoder.feature_dim, device=computing_device(encoder.device))]
        for start in range(rows.start, rows.stop, batch_size):
            part = slice(start, min(start + batch_size, rows.stop))
            with explain_out_of_memory(f"input_size (now {encoder.input_format.size})"):
                parts.append(embed_batch(pixels[part], encoder, part, on_tokens))
            if progress is not None:
                progress(part.stop - own.start, own.stop - own.start)
        sizes = [rows.stop - rows.start for rows in rounds]
        yield from zip(rounds, torch.split(gather_rows(torch.cat(parts)), sizes), strict=True)


def move_encoder(encoder: Encoder, device: torch.device) -> Encoder:
    """Move an encoder to a device. Apple's GPU must give the features of the CPU, or that one is
    kept."""
    if device.type not in UNTRIED:
        return encoder.to(device)
    probe = probe_images(encoder.input_format.size)
    with torch.inference_mode():
        expected = F.normalize(encoder(probe), dim=1)
        try:
            features = F.normalize(encoder.to(device)(probe.to(device)).float(), dim=1).cpu()
            error = float((features - expected).abs().max())
            if error <= MOVE_TOLERANCE:
                return encoder
            why = f"its features differ from the CPU's by {error:.1e}"
        except (RuntimeError, TypeError) as problem:  # an operation that it does not have
            why = in_a_line(problem, 160)
    log.warning("encoder: %s cannot run it (%s), so the CPU does", device.type, why)
    return encoder.to("cpu")


def check_directions(is_zero: Tensor, names: Sequence[str], input_size: int) -> None:
    """Refuse embeddings (N,) of zeros alone, because they have no direction, by the names of their
    images."""
    rows = is_zero.nonzero()[:, 0].tolist()
    if rows:
        listed = first_few([names[row] for row in rows])
        raise DataError(
            f"{listed}: the encoder's features are only zeros at {input_size} px ({len(rows):,} of "
            f"{len(names):,} images), so no direction; raise --input-size, or leave those out"
        )


def center_images(pixels: Tensor, encoder: Encoder) -> Tensor:
    """Cut uint8 images (B, S, S, 3) to their center, scale them to the encoder's input and
    normalize: (B, 3, I, I)."""
    side = pixels.shape[1]
    crop = crop_size(side)
    start = (side - crop) // 2
    cut = pixels[:, start : start + crop, start : start + crop]  # (B, C, C, 3)
    return encoder.normalize(resize(to_float(cut), encoder.input_format.size).to(encoder.device))


def crop_size(side: int) -> int:
    """The side of the crop taken from images of `side` pixels."""
    return max(1, round(side * CROP_RATIO))


def to_float(pixels: Tensor) -> Tensor:
    """Turn uint8 images (B, H, W, 3) into float images in [0, 1], (B, 3, H, W)."""
    return pixels.permute(0, 3, 1, 2).float() / 255


def resize(images: Tensor, size: int) -> Tensor:
    """Scale float images (B, 3, H, W) to (B, 3, size, size), bicubic, without aliasing."""
    if images.shape[-2:] == (size, size):
        return images
    return F.interpolate(images, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)


def to_device(pixels: ImageRows, device: torch.device) -> Tensor:
    """Bring a batch of images to `device`, without a copy where it is there already."""
    if isinstance(pixels, Tensor):
        return pixels.to(device, non_blocking=True)
    # A memory map is read-only, which torch does not take: np.require copies it then.
    batch = np.require(pixels[:], requirements=["C", "W"])
    return torch.from_numpy(batch).to(device, non_blocking=True)


def autocast(device: torch.device) -> torch.autocast:
    """The context in which networks run: bfloat16 on CUDA, plain float32 elsewhere."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def check_pixels(pixels: ImageRows) -> None:
    """Refuse anything but uint8 images (N, S, S, 3)."""
    shape = tuple(pixels.shape)
    is_bytes = pixels.dtype in (np.uint8, torch.uint8)
    if not is_bytes or len(shape) != 4 or shape[3] != 3 or shape[1] != shape[2] or shape[1] < 1:
        raise DataError(
            f"pixels: found shape {shape} and dtype {pixels.dtype}, expected (N, S, S, 3) and uint8"
        )


@contextmanager
def explain_out_of_memory(lower: str) -> Iterator[None]:
    """Turn torch's out-of-memory errors into one that names the setting to lower."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ShoalError(
            f"out of memory; lower {lower}, or use a smaller encoder or input size"
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch, or a library that it calls, found no memory: CUDA's error has a class, others
    only a text."""
    told = ("can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(part in str(error) for part in told)


def embed_batch(
    pixels: ImageRows, encoder: Encoder, rows: slice, on_tokens: OnTokens | None
) -> Tensor:
    """Embed one batch of images, the given rows, in this process alone.

    Images are cut and scaled where is computed: Apple's GPU has no antialiased bicubic scaling.
    """
    home = computing_device(encoder.device)
    with torch.inference_mode(), autocast(encoder.device):
        tokens = encoder.run_trunk(center_images(to_device(pixels, home), encoder))
        if on_tokens is not None:
            on_tokens(rows, tokens)
        features = encoder.tail(tokens)
        return F.normalize(features.float(), dim=1).to(home)
