"""A batch of views through the networks: cut or from a pool, trunk, the model's forward.

b views, W of each image, C the side of a crop, T tokens of a view, X columns of an output.
"""

from typing import Any

import torch
from torch import Tensor

from shoal.encoders.embed import ImageRows, autocast
from shoal.training.model import Model
from shoal.training.tokens import take
from shoal.training.view_pool import ViewPool
from shoal.training.views import ViewSettings, cut_views, finish_views


class Forward:
    """The forward pass of a step, over views of `pixels`, or those of a `pool`, where there is one."""

    def __init__(self, model: Model[Any], views: ViewSettings) -> None:
        self.model = model
        self.encoder = model.encoder
        self.views = views
        self.pixels: ImageRows
        self.pool: ViewPool | None = None

    def inputs(self, images: Tensor, view_draws: Tensor, n_views: int = 2) -> Tensor:
        """The trunk's tokens (b, T, …) of views of `images` (b,); or the views, where the model reads them."""
        if self.pool is not None:
            return self.pool.take(images, view_draws, n_views)
        source, rows = take(self.pixels, images, self.encoder.device)
        return self.tokens(self.cut(source, rows, view_draws), view_draws)

    def cut(self, pixels: Tensor, rows: Tensor, view_draws: Tensor) -> Tensor:
        """Cut views of images `rows` (b,) of `pixels`: (b, C, C, 3) uint8."""
        return cut_views(pixels, rows, view_draws, self.views)

    @torch.no_grad()  # and not inference mode, whose tensors the model's backward could not keep
    def tokens(self, cut: Tensor, view_draws: Tensor) -> Tensor:
        """Color what was cut and run the trunk over it, unless the model reads images: (b, T, …)."""
        views = finish_views(cut, view_draws, self.encoder, self.views)  # (b, 3, I, I)
        if self.model.reads_images:
            return views
        with autocast(self.encoder.device):
            return self.encoder.run_trunk(views)

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """What the model makes of its inputs, (b, X) each, with gradients."""
        with autocast(self.encoder.device):
            return self.model.forward(inputs)
