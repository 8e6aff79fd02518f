"""The task of a training run: images, the user's labels, and which of these the loss must not see;
and its inputs: pixels on the device, and the trunk's tokens of images and of a pool of random
views, computed once.

The trunk is frozen, so after the first pass only the tail has to run over these.

Shapes: N images, n of them for training, T the shape of one image's tokens, D the dimension of an
embedding, P views of each image in a pool; of these N · P views, U are computed. R rows of images
or views.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.arrays import UNLABELED, Ints, digest_rows, read_cached, write_cached
from shoal.data.pixels.loading import Pixels
from shoal.device import free_memory
from shoal.distributed import gather_rows, shard, take_rows, world_size
from shoal.encoders.vision import (
    Encoder,
    ImageRows,
    autocast,
    center_images,
    to_device,
)
from shoal.files import cache_folder, scratch_array, writing
from shoal.progress import Progress, count_after
from shoal.settings import Plain
from shoal.training.sampling import choose_views, make_views, sample_view_parameters
from shoal.training.train_settings import ViewSettings
from shoal.training.validation import ValidationSet

# Maps the tokens (or images) of a batch to rows (b, D) of any norm
Represent = Callable[[Tensor], Tensor]

# Images or views that go through the trunk, or the tail, together
TOKEN_BATCH = 256

# The most parts in which a pool is cached; a killed run loses at most the last one
CACHED_PARTS = 20

# Images that go through a whole network together, if it reads images
IMAGE_BATCH = 128

# The share of the free memory of the device that pixels, and then tokens, may each take
SHARE_OF_MEMORY = 0.45


@dataclass(frozen=True)
class TokenCache:
    """The trunk's tokens of un-augmented images: this process's share of N images."""

    tokens: Tensor

    def embed(self, represent: Represent, device: torch.device) -> Tensor:
        """Return unit embeddings (N, D) of all images, in every process."""
        # For zero images, `split` returns one empty batch, which determines the number of columns.
        batches = torch.split(self.tokens, TOKEN_BATCH)
        return gather_rows(
            _embed_batches((batch.to(device).float() for batch in batches), represent, device)
        )


@dataclass(frozen=True)
class ImageInputs:
    """Un-augmented images for a network that reads images; every process embeds all N of them."""

    pixels: ImageRows
    encoder: Encoder

    def embed(self, represent: Represent, device: torch.device) -> Tensor:
        """Return unit embeddings (N, D) of all images."""
        images = (
            center_images(to_device(self.pixels[start : start + IMAGE_BATCH], device), self.encoder)
            for start in range(0, len(self.pixels), IMAGE_BATCH)
        )
        return _embed_batches(images, represent, device)


def _embed_batches(batches: Iterable[Tensor], represent: Represent, device: torch.device) -> Tensor:
    """Return unit rows (N, D), float32, of all batches."""
    with torch.inference_mode(), autocast(device):
        parts = [F.normalize(represent(batch).float(), dim=1) for batch in batches]
    # Outside of inference mode, so that the result can be changed in place.
    return torch.cat(parts)


def cache_tokens(
    pixels: ImageRows, encoder: Encoder, progress: Progress | None = None
) -> TokenCache:
    """Return the trunk's tokens of the center crops of all images; each process holds a share."""

    def images(start: int, stop: int) -> Tensor:
        return center_images(to_device(pixels[start:stop], encoder.device), encoder)

    return TokenCache(run_trunk(images, shard(len(pixels)), encoder, progress))


class TokenCollector:
    """Collects the trunk's tokens (R, T) in float16: on the device if they fit, else in memory or a
    mapped file."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.tokens: Tensor | None = None

    def __call__(self, rows: slice, tokens: Tensor) -> None:
        if self.tokens is None:
            # Embedding runs in inference mode, whose tensors training cannot use.
            with torch.inference_mode(False):
                self.tokens = _allocate((self.n_rows, *tokens.shape[1:]), tokens.device)
        limit = torch.finfo(torch.float16).max  # which residual streams may exceed
        self.tokens[rows] = tokens.clamp(-limit, limit).half()


def run_trunk(
    images: Callable[[int, int], Tensor],
    rows: slice,
    encoder: Encoder,
    progress: Progress | None,
) -> Tensor:
    """Return the trunk's tokens (R, T) in float16, batch by batch.

    `images` returns the normalized images of the rows from start to stop.
    """
    n_rows = rows.stop - rows.start
    size = encoder.chunk_size(TOKEN_BATCH)
    collector = TokenCollector(n_rows)
    # Without rows, the trunk runs on an empty batch to determine the shape.
    for start in range(rows.start, rows.stop, size) or [rows.start]:
        stop = min(start + size, rows.stop)
        batch = images(start, stop)
        with torch.inference_mode(), autocast(encoder.device):
            tokens = encoder.run_trunk(batch)
        done = start - rows.start
        collector(slice(done, done + len(tokens)), tokens)
        if progress is not None and n_rows:
            progress(done + len(tokens), n_rows)
    assert collector.tokens is not None
    return collector.tokens


def _run_trunk_cached(
    images: Callable[[int, int], Tensor],
    n_rows: int,
    encoder: Encoder,
    progress: Progress | None,
    cache_key: str,
) -> Tensor:
    """Run the trunk as `run_trunk` does, in parts that are cached as soon as they are computed."""
    size = TOKEN_BATCH * math.ceil(n_rows / (TOKEN_BATCH * CACHED_PARTS))
    collector = TokenCollector(n_rows)
    for start in range(0, n_rows, size):
        rows = slice(start, min(start + size, n_rows))
        part = read_cached("views", cache_key, start)
        if part is None:
            counted = count_after(progress, start, n_rows)
            part = run_trunk(images, rows, encoder, counted).numpy()
            write_cached("views", cache_key, part, start)
        collector(rows, torch.from_numpy(part))
    assert collector.tokens is not None
    return collector.tokens


def _allocate(shape: tuple[int, ...], device: torch.device) -> Tensor:
    if fits(2 * math.prod(shape), device):
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
    if device.type == "cpu" or world_size() > 1 or not fits(math.prod(pixels.shape), device):
        return pixels
    return to_device(pixels, device)


def take(pixels: ImageRows, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a tensor of images on the device, and the row of each wanted image in it.

    It holds all images if `pixels` is a tensor already, otherwise only the wanted ones.
    """
    if isinstance(pixels, Tensor):
        return pixels, rows
    unique, inverse = torch.unique(rows.cpu(), return_inverse=True)
    return to_device(pixels[unique.numpy()], device), inverse.to(device)


@dataclass(frozen=True)
class ViewPool:
    """The trunk's tokens of views of each image.

    Each of several processes stores a share, and sends the tokens that others need for a batch.
    """

    # Tokens of this process's share of the views
    tokens: Tensor
    # Number of views of each image, P
    n_pooled: int
    made: Tensor  # (U,) the computed views, as sorted rows image · P + view

    def take(self, images: Tensor, view_parameters: Tensor) -> Tensor:
        """Return tokens (2b, T) of two views of b images, view 1 of all, then view 2.

        `images` (2b,), `view_parameters` (2b, 7). All processes call this together, each with
        its own images.
        """
        views = choose_views(images, view_parameters, self.n_pooled)  # (2b,)

        def read(rows: Tensor) -> Tensor:
            return self.tokens[rows.to(self.tokens.device)].to(images.device)

        return take_rows(read, len(self.made), torch.searchsorted(self.made, views)).float()


def pool_views(
    pixels: ImageRows,
    encoder: Encoder,
    settings: ViewSettings,
    *,
    generator: torch.Generator,
    only: Ints,
    progress: Progress | None = None,
    cache_key: str | None = None,
) -> ViewPool:
    """Run the trunk over random views of the images and return its tokens; each process holds a
    share.

    `only` (U,) are the views that will be used, as sorted rows image · P + view; view parameters
    are sampled for all views, so that they do not depend on it. With a `cache_key`, for a single
    process on a CPU, cached tokens are read and the others are cached.
    """
    n_pooled = settings.pool
    assert n_pooled is not None
    view_parameters = sample_view_parameters(len(pixels) * n_pooled, generator)  # (N * P, 7)
    made = torch.from_numpy(only)  # (U,)
    device = encoder.device

    def images(start: int, stop: int) -> Tensor:
        views = made[start:stop]
        source, rows = take(pixels, (views // n_pooled).to(device), device)
        return make_views(source, rows, view_parameters[views].to(device), encoder, settings)

    if cache_key is None:
        tokens = run_trunk(images, shard(len(made)), encoder, progress)
    else:
        tokens = _run_trunk_cached(images, len(made), encoder, progress, cache_key)
    return ViewPool(tokens, n_pooled, made.to(device))


@dataclass(frozen=True, kw_only=True)
class Task:
    """Images, the labels a user has (-1 elsewhere), and the validation images."""

    pixels: ImageRows
    labels: Ints
    # Rows whose labels the loss does not see: they choose the snapshot and K. None: the last
    # snapshot is used, and no K is estimated.
    validation: Ints | None = None
    # Whether these images are trained on without their labels; else the loss does not see them
    trains_on_validation: bool = True
    # Other images that choose the snapshot and K instead of the validation rows
    validation_set: ValidationSet | None = None
    n_clusters: int | None = None
    tokens: TokenCache | None = None
    # The pool of views, if it is cached and the settings ask for one
    pool: ViewPool | None = None

    @property
    def training(self) -> Ints:
        """The rows that are trained on, (n,)."""
        rows = np.arange(len(self.labels))
        if self.validation is None or self.trains_on_validation:
            return rows
        return np.setdiff1d(rows, self.validation)

    @property
    def visible_labels(self) -> Ints:
        """The labels (N,) that the loss may see, -1 elsewhere."""
        labels = self.labels.copy()
        if self.validation is not None:
            labels[self.validation] = UNLABELED
        return labels

    @property
    def training_labels(self) -> Ints:
        """Those of the training rows, (n,)."""
        return self.visible_labels[self.training]

    def identity(self) -> Plain:
        """Return what must be the same for a training run to be resumed."""
        images = (
            self.pixels.checksum if isinstance(self.pixels, Pixels) else digest_rows(self.pixels)
        )
        validation = None if self.validation is None else digest_rows(self.validation)
        other = None if self.validation_set is None else digest_rows(self.validation_set.pixels)
        return {
            "images": images,
            "labels": digest_rows(self.labels),
            "validation": validation,
            "trains_on_validation": self.trains_on_validation,
            "validation_set": other,
        }
