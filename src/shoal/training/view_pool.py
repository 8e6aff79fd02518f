"""A pool of views: the trunk's tokens of random views of each image, computed once, so that
training runs only the tail.

Shapes: N images, P views of each, U views in total that are computed, T the shape of one view's
tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.distributed import shard, take_rows
from shoal.encoders.embed import ImageRows
from shoal.encoders.vision import Encoder
from shoal.progress import Progress
from shoal.training.sampling import choose_views
from shoal.training.tokens import run_trunk, take
from shoal.training.views import ViewSettings, make_views, sample_view_parameters


@dataclass(frozen=True)
class ViewPool:
    """The trunk's tokens of views of each image.

    Each of several processes stores a share, and sends the tokens that others need for a batch.
    """

    tokens: Tensor
    """Tokens of this process's share of the views."""
    n_pooled: int
    """Number of views of each image, P."""
    made: Tensor
    """(U,) the computed views, as sorted rows image · P + view."""

    def take(self, images: Tensor, parameters: Tensor) -> Tensor:
        """Return tokens (2b, T) of two views of b images, view 1 of all, then view 2.

        `images` (2b,), `parameters` (2b, 7). All processes call this together, each with its own
        images.
        """
        views = choose_views(images, parameters, self.n_pooled)  # (2b,)

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
    batch_size: int = 128,
    progress: Progress | None = None,
) -> ViewPool:
    """Run the trunk over random views of the images and return its tokens; each process holds a
    share.

    `only` (U,) are the views that will be used, as sorted rows image · P + view; parameters are
    sampled for all views, so that they do not depend on it.
    """
    n_pooled = settings.pool
    assert n_pooled is not None
    parameters = sample_view_parameters(len(pixels) * n_pooled, generator)  # (N * P, 7)
    made = torch.from_numpy(only)  # (U,)
    mine = made[shard(len(made))]

    device = encoder.device

    def images(start: int, stop: int) -> Tensor:
        views = mine[start:stop]
        source, rows = take(pixels, (views // n_pooled).to(device), device)
        return make_views(source, rows, parameters[views].to(device), encoder, settings)

    tokens = run_trunk(images, len(mine), encoder, batch_size, progress)
    return ViewPool(tokens, n_pooled, made.to(device))
