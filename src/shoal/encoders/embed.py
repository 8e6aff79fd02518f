"""Compute the embeddings of a whole collection in batches.

Shapes: N images of S x S pixels, I the encoder's input size, D the dimension of an embedding.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.distributed import gather_rows, rank, shard, world_size
from shoal.encoders.vision import Encoder
from shoal.errors import DataError
from shoal.progress import Progress
from shoal.words import first_few

# Share of an image's side in the central crop: 224 of 256 pixels
CROP_RATIO = 0.875

# Images in a batch; the number changes embeddings by rounding only
BATCH_IMAGES = 128

# Batches that a process embeds before it yields them; this bounds the memory
BLOCK_BATCHES = 64


# N uint8 images (N, S, S, 3): an array, a memory map, a tensor, or `data.pixels.Pixels`. Slices and
# index arrays return a batch as an array or tensor.
ImageRows = Any


def embed(
    pixels: ImageRows,
    encoder: Encoder,
    *,
    progress: Progress | None = None,
    on_tokens: Callable[[slice, Tensor], None] | None = None,
) -> Tensor:
    """Return the embeddings (N, D) of uint8 images (N, S, S, 3) as unit rows in float32.

    The embedding is the encoder's normalized feature. Images are read in batches (a memory map
    stays on disk), center-cropped and resized. Several processes share the work and each gets all
    rows. `on_tokens` is called with the rows of each batch of this process and the trunk's tokens
    for them. The result is on the encoder's device.
    """
    features = torch.empty(len(pixels), encoder.feature_dim, device=encoder.device)
    for rows, block in embed_blocks(pixels, encoder, progress=progress, on_tokens=on_tokens):
        features[rows] = block
    return features


def embed_blocks(
    pixels: ImageRows,
    encoder: Encoder,
    *,
    progress: Progress | None = None,
    on_tokens: Callable[[slice, Tensor], None] | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of rows and their embeddings (B, D), for callers that write them to a file.

    Every process gets the blocks of all processes.
    """
    everything = range(len(pixels))
    shares = [everything[shard(len(pixels), process)] for process in range(world_size())]
    step = BATCH_IMAGES * BLOCK_BATCHES
    for done in range(0, len(shares[0]), step):  # no share is longer than the first
        # The rows of each process in this round; the shares of some may have ended.
        blocks = [share[done : done + step] for share in shares]
        mine = blocks[rank()]
        parts = [torch.empty(0, encoder.feature_dim, device=encoder.device)]
        for start in range(0, len(mine), BATCH_IMAGES):
            batch = mine[start : start + BATCH_IMAGES]
            rows = slice(batch.start, batch.stop)
            with torch.inference_mode(), autocast(encoder.device):
                images = to_device(pixels[rows], encoder.device)
                chunks = torch.split(images, encoder.chunk_size(len(images)))
                tokens = torch.cat([encoder.run_trunk(center_images(c, encoder)) for c in chunks])
                if on_tokens is not None:
                    on_tokens(rows, tokens)
                parts.append(F.normalize(encoder.tail(tokens).float(), dim=1))
            if progress is not None:
                progress(done + start + len(batch), len(shares[rank()]))
        features = torch.split(gather_rows(torch.cat(parts)), [len(block) for block in blocks])
        for block, part in zip(blocks, features, strict=True):
            yield slice(block.start, block.stop), part


def check_directions(is_zero: Tensor, names: Sequence[str], input_size: int) -> None:
    """Raise an error if any embedding is zero, because it has no direction; `is_zero` is (N,)."""
    rows = is_zero.nonzero()[:, 0].tolist()
    if rows:
        listed = first_few([names[row] for row in rows])
        raise DataError(
            f"{listed}: the encoder's features are all zero at {input_size} px ({len(rows):,} of "
            f"{len(names):,} images); raise --input-size, or remove these images"
        )


def center_images(pixels: Tensor, encoder: Encoder) -> Tensor:
    """Crop uint8 images (B, S, S, 3) to their center, resize and normalize them: (B, 3, I, I)."""
    side = pixels.shape[1]
    crop = crop_size(side)
    start = (side - crop) // 2
    cropped = pixels[:, start : start + crop, start : start + crop]  # (B, C, C, 3)
    return encoder.normalize(resize(to_float(cropped), encoder.input_format.size))


def crop_size(side: int) -> int:
    return max(1, round(side * CROP_RATIO))


def to_float(pixels: Tensor) -> Tensor:
    """Return uint8 images (B, H, W, 3) as float images in [0, 1], (B, 3, H, W)."""
    return pixels.permute(0, 3, 1, 2).float() / 255


def resize(images: Tensor, size: int) -> Tensor:
    """Resize float images (B, 3, H, W) to (B, 3, size, size), bicubic and antialiased."""
    if images.shape[-2:] == (size, size):
        return images
    return F.interpolate(images, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)


def to_device(pixels: ImageRows, device: torch.device) -> Tensor:
    """Return a batch of images as a tensor on `device`, without a copy if it is there already."""
    if isinstance(pixels, Tensor):
        return pixels.to(device, non_blocking=True)
    # torch does not accept read-only memory maps: np.require copies them.
    batch = np.require(pixels[:], requirements=["C", "W"])
    return torch.from_numpy(batch).to(device, non_blocking=True)


def autocast(device: torch.device) -> torch.autocast:
    """Return the autocast context of networks: bfloat16 on CUDA, float32 elsewhere."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch means that memory ran out.

    CUDA's error has its own class; others can only be recognized by their message.
    """
    texts = ("can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in texts)
