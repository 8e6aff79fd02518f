"""An image encoder in two parts, a frozen trunk and a trained tail, the projection head, and the
embeddings of a whole collection, computed in batches.

`tail(trunk(images))` equals the model's output. Tokens of a transformer are (B, T, C); those of a
convolutional network are a feature map (B, C, H, W). The head projects features to embeddings on
the unit sphere.

Shapes: B images of S x S pixels, I the encoder's input size, T tokens, C channels of a token or
dimensions of a feature, N rows, D of an embedding, R of the bottleneck.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shoal.distributed import gather_rows, rank, shard, world_size
from shoal.encoders.convolution import FoldedConv
from shoal.encoders.engines import TORCH, OpenVINOTrunk, choose_engine, compile_trunk, wanted_engine
from shoal.encoders.weights import digest_weights
from shoal.errors import DataError, UsageError, first_few
from shoal.progress import Progress
from shoal.settings import Count

MIN_SIZE = 8

# Side of the largest images that an encoder may get
MAX_SIZE = 4096

# Images that go through a trunk together on a CPU. A batch of 256 images at 224 px would need 3 GB
# for feature maps and 0.5 GB for images in float32, and is not faster.
CPU_CHUNK = 32

# Share of an image's side in the central crop: 224 of 256 pixels
CROP_RATIO = 0.875

# Images in a batch; the number changes embeddings by rounding only
BATCH_IMAGES = 128

# Batches that a process embeds before it yields them; this bounds the memory
BLOCK_BATCHES = 64

# N uint8 images (N, S, S, 3): an array, a memory map, a tensor, or `data.pixels.Pixels`. Slices and
# index arrays return a batch as an array or tensor.
ImageRows = Any


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """Kind and size of the projection head."""

    kind: Literal["paper", "bottleneck", "mlp"] = "paper"
    """'paper': three linear + GELU pairs and a linear output (section 5.1), the default.
    'bottleneck': the head of the released code: two pairs, a linear layer down to the bottleneck,
    and a weight-normed output, so that embeddings have the rank of the bottleneck. 'mlp': two pairs
    and a linear output, for methods with a classifier."""
    width: Count = 2048
    """Width of the hidden layers."""
    dim: Count = 768
    """Dimension of the embedding."""
    bottleneck: Count = 256
    """Rank of the embeddings of the bottleneck head, if `dim` is not smaller."""


class Head(nn.Module):
    """A projection head from features to unit embeddings."""

    def __init__(self, feature_dim: int, settings: HeadSettings) -> None:
        super().__init__()
        self.settings = settings
        widths = [feature_dim, settings.width, settings.width]
        if settings.kind == "paper":
            widths.append(settings.width)
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(widths):
            layers += [nn.Linear(n_in, n_out), nn.GELU()]
        has_bottleneck = settings.kind == "bottleneck"
        n_last = settings.bottleneck if has_bottleneck else settings.dim
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], n_last))
        for layer in self.layers:
            if not isinstance(layer, nn.Linear):
                continue
            # The head `paper` preserves the scale of the features. With short outputs the gradient
            # of their normalization would be huge, and the first step would move all embeddings to
            # one point. The released code uses a fixed scale.
            std = (2 / layer.in_features) ** 0.5
            limit = 2 * std
            if has_bottleneck:
                std = 0.02
                limit = 2.0
            nn.init.trunc_normal_(layer.weight, std=std, a=-limit, b=limit)
            nn.init.zeros_(layer.bias)
        self.output: nn.Parameter | None = None
        if has_bottleneck:
            self.output = nn.Parameter(torch.empty(settings.dim, settings.bottleneck))
            nn.init.kaiming_uniform_(self.output, a=5**0.5)

    def forward(self, features: Tensor) -> Tensor:
        """Project features (N, C) to unit embeddings (N, D) in float32."""
        hidden = self.layers(features).float()  # (N, D) or (N, R)
        if self.output is None:
            return unit(hidden)
        with torch.autocast(features.device.type, enabled=False):
            # Weight norm with its gain fixed at 1: rows of length 1.
            weight = F.normalize(self.output, dim=1)  # (D, R)
            return unit(F.linear(unit(hidden), weight))  # (N, D)


def unit(rows: Tensor) -> Tensor:
    """Scale rows (N, D) to length 1. A row of zeros stays zero and has no gradient.

    Otherwise a view with zero features would be divided by almost nothing, and its gradient would
    dominate the step.
    """
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # (N, 1)
    is_zero = length == 0
    return torch.where(is_zero, rows.detach(), rows / torch.where(is_zero, 1.0, length))


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """Size and normalization of the images that an encoder expects."""

    # Height and width in pixels
    size: int
    # Mean of the red, green and blue channel, images scaled to [0, 1]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        if not MIN_SIZE <= self.size <= MAX_SIZE or min(self.std) <= 0:
            raise UsageError(
                f"input size: found {self.size} (std {self.std}), expected {MIN_SIZE} to "
                f"{MAX_SIZE:,} pixels (std above 0)"
            )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A model in parts: images -> stem -> blocks -> finish -> features, a tensor each."""

    stem: nn.Module
    # Empty for a model whose structure is unknown: the stem is all of it
    blocks: list[nn.Module]
    finish: nn.Module
    feature_dim: int
    # Whether the finish is trained with the tail: a head convolution is, a final norm is not
    is_finish_trained: bool = False
    # A frozen module that the blocks share
    context: nn.Module | None = None


class Encoder(nn.Module):
    """A model split before its last `n_tail_blocks` blocks into a frozen trunk and a trained tail.

    It is always in evaluation mode: batch-norm statistics stay fixed and dropout stays off during
    training too, so that the trunk's tokens can be cached.
    """

    _mean: Tensor
    _std: Tensor

    def __init__(
        self, name: str, parts: Parts, input_format: InputFormat, n_tail_blocks: int
    ) -> None:
        super().__init__()
        n_blocks = len(parts.blocks)
        if not 0 <= n_tail_blocks <= n_blocks:
            raise UsageError(
                f"n_tail_blocks: found {n_tail_blocks}, expected 0 to {n_blocks}, the blocks of "
                f"{name} that can be trained"
            )
        split = n_blocks - n_tail_blocks
        self.name = name
        self.n_blocks = n_blocks
        self.n_tail_blocks = n_tail_blocks
        self.input_format = input_format
        self.feature_dim = parts.feature_dim
        self.trunk = nn.Sequential(parts.stem, *parts.blocks[:split]).requires_grad_(False)
        self.tail = nn.Sequential(*parts.blocks[split:], parts.finish).requires_grad_(True)
        self.context = None if parts.context is None else parts.context.requires_grad_(False)
        parts.finish.requires_grad_(parts.is_finish_trained and n_tail_blocks > 0)
        for module in list(self.trunk.modules()):
            if isinstance(module, FoldedConv):
                module.freeze()
        # (3, 1, 1) each
        self.register_buffer(
            "_mean", torch.tensor(input_format.mean)[:, None, None], persistent=False
        )
        self.register_buffer(
            "_std", torch.tensor(input_format.std)[:, None, None], persistent=False
        )
        self._wanted_engine = wanted_engine()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Turn normalized images (B, 3, S, S) into features (B, D)."""
        return self.tail(self.trunk(images))

    def run_trunk(self, images: Tensor) -> Tensor:
        """Return the trunk's tokens of normalized images (B, 3, S, S), computed by the engine and
        without gradients."""
        if images.device.type == "cpu" and self._compiled is not None:
            return self._compiled(images)
        chunks = torch.split(images, self.chunk_size(max(1, len(images))))
        return torch.cat([self.trunk(chunk) for chunk in chunks])

    def chunk_size(self, batch_size: int) -> int:
        """Return how many images of a batch are prepared and go through the trunk together."""
        return min(batch_size, CPU_CHUNK) if self.device.type == "cpu" else batch_size

    @property
    def engine(self) -> str:
        return TORCH if self._compiled is None else self._compiled.engine

    @cached_property
    def _compiled(self) -> OpenVINOTrunk | None:
        """The trunk in OpenVINO; None if torch runs it, as on a GPU."""
        if self.device.type != "cpu":
            return None
        engine = self._wanted_engine or choose_engine()[0]
        if engine == TORCH:
            return None
        return compile_trunk(self.trunk, self.tail, self.input_format.size, engine)

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def normalize(self, images: Tensor) -> Tensor:
        """Normalize float images in [0, 1], (B, 3, S, S), as in the model's pretraining."""
        return (images - self._mean) / self._std

    @property
    def device(self) -> torch.device:
        return self._mean.device

    def identity(self) -> dict[str, str | int]:
        """Return what determines the encoder before training.

        The tail's weights are left out: a checkpoint restores them.
        """
        return {
            "engine": self.engine,
            "name": self.name,
            "n_tail_blocks": self.n_tail_blocks,
            "input": repr(self.input_format),
            "weights": digest_weights(self.trunk),
        }


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
