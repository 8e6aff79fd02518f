"""A pool of views: the trunk's tokens of random views of each image, made once; training then needs the tail only.

N images, V views of each, U of all these that are made, T the shape of one view's tokens.
"""

from pathlib import Path

import torch
from torch import Tensor

from shoal.arrays import Ints
from shoal.distributed import shard, take_rows
from shoal.encoders.embed import ImageRows, check_pixels
from shoal.encoders.vision import Encoder
from shoal.progress import Progress
from shoal.training.epoch_draws import choose_views
from shoal.training.tokens import Kept, keep_tokens, remove_tokens, take, token_shape, trunk_tokens
from shoal.training.views import ViewSettings, draw_views, make_views


class ViewPool:
    """The trunk's tokens of views of each image; a step takes two different ones.

    Several processes hold a share each, and send each other what their parts of a batch need.
    """

    def __init__(self, tokens: Kept, n_views: int, made: Tensor) -> None:
        self.tokens = tokens
        self.n_views = n_views
        """The tokens are those of this process's share of the views made."""
        self.made = made
        """(U,) which views were made, as rows image · V + view, sorted."""

    def take(self, images: Tensor, view_draws: Tensor, n_views: int = 2) -> Tensor:
        """Tokens (W·b, T) for `images` (W·b,), W = `n_views`, view 1 of all, then view 2, by `view_draws` (W·b, 7).

        All processes take at once, each for images of its own.
        """
        views = choose_views(images, view_draws, self.n_views, n_views)  # (W·b,)
        return take_rows(self._read, len(self.made), torch.searchsorted(self.made, views)).float()

    def _read(self, rows: Tensor) -> Tensor:
        if isinstance(self.tokens, Tensor):
            return self.tokens[rows]
        return torch.from_numpy(self.tokens[rows.cpu().numpy()]).to(rows.device)

    def remove(self) -> None:
        """Delete the file, where there is one."""
        remove_tokens(self.tokens)


def pool_views(
    pixels: ImageRows,
    encoder: Encoder,
    settings: ViewSettings,
    *,
    generator: torch.Generator,
    only: Ints | None = None,
    batch_size: int = 128,
    file: Path | None = None,
    memory: int | None = None,
    progress: Progress | None = None,
) -> ViewPool:
    """Run the trunk over `settings.pool` random views of each image and keep its tokens, as `cache_tokens` does.

    `only` (U,) names the views that will be looked at, as rows image · V + view, sorted; the others are drawn and not
    made. Several processes keep a share each.
    """
    check_pixels(pixels)
    n_views = settings.pool
    assert n_views is not None
    view_draws = draw_views(len(pixels) * n_views, generator)  # (N * V, 7)
    made = torch.arange(len(view_draws)) if only is None else torch.from_numpy(only)  # (U,)

    mine = made[shard(len(made))]

    def make(rows: slice) -> Tensor:
        views = mine[rows]
        source, source_rows = take(pixels, (views // n_views).to(encoder.device), encoder.device)
        return trunk_tokens(
            make_views(
                source, source_rows, view_draws[views].to(encoder.device), encoder, settings
            ),
            encoder,
        )

    shape = (len(mine), *token_shape(pixels, encoder))
    lower = "training.views.pool or input_size"
    kept = keep_tokens(make, shape, encoder, batch_size, file, memory, progress, lower=lower)
    return ViewPool(kept, n_views, made.to(encoder.device))
