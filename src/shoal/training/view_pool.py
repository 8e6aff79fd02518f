"""A pool of views: the trunk's tokens of random views of each image, made once; training then needs
the tail only.

N images, V views of each, U of all these that are made, T the shape of one view's tokens.
"""

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.distributed import shard, take_rows
from shoal.encoders.embed import ImageRows, check_pixels
from shoal.encoders.vision import Encoder
from shoal.progress import Progress
from shoal.training.epoch_draws import choose_views
from shoal.training.tokens import keep_tokens, take, trunk_tokens
from shoal.training.views import ViewSettings, draw_views, make_views


class ViewPool:
    """The trunk's tokens of views of each image; a step takes two different ones.

    Several processes hold a share each, and send each other what their parts of a batch need.
    """

    def __init__(self, tokens: Tensor, n_views: int, made: Tensor) -> None:
        self.tokens = tokens
        self.n_views = n_views
        """The tokens are those of this process's share of the views made."""
        self.made = made
        """(U,) which views were made, as rows image · V + view, sorted."""

    def take(self, images: Tensor, view_draws: Tensor, n_views: int = 2) -> Tensor:
        """Tokens (W·b, T) for `images` (W·b,), W = `n_views`, view 1 of all, then view 2, by
        `view_draws` (W·b, 7).

        All processes take at once, each for images of its own.
        """
        views = choose_views(images, view_draws, self.n_views, n_views)  # (W·b,)

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
    """Run the trunk over random views of the images and keep its tokens, as `cache_tokens` does.

    `only` (U,) names the views that will be looked at, as rows image · V + view, sorted; the others
    are drawn and not made. Several processes keep a share each.
    """
    check_pixels(pixels)
    n_views = settings.pool
    assert n_views is not None
    view_draws = draw_views(len(pixels) * n_views, generator)  # (N * V, 7)
    made = torch.from_numpy(only)  # (U,)
    mine = made[shard(len(made))]

    def make(start: int, stop: int) -> Tensor:
        views = mine[start:stop]
        source, rows = take(pixels, (views // n_views).to(encoder.device), encoder.device)
        drawn = view_draws[views].to(encoder.device)
        return trunk_tokens(make_views(source, rows, drawn, encoder, settings), encoder)

    kept = keep_tokens(
        make, len(mine), batch_size, progress, lower="training.views.pool or input_size"
    )
    return ViewPool(kept, n_views, made.to(encoder.device))
