"""Prompts: what is learned before and inside of a frozen trunk, so that it too can be turned toward
a collection.

Each block of a plain transformer reads a few tokens of its own besides those of the image; any
other encoder reads images with a learned border. The trunk then runs in every step, with gradients.

b images of S × S pixels, T tokens, P prompts, C channels of a token, D entries of a feature.
"""

import torch
from torch import Tensor, nn

from shoal.encoders.vision import Encoder

N_ENSEMBLED = 2
"""How many of the prompts that come out of the last block are averaged to the feature of the
prompts."""


class TokenPrompts(nn.Module):
    """Tokens of their own for each block, put behind the first one in place of those of the block
    before."""

    def __init__(self, n_blocks: int, n_prompts: int, n_channels: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(n_blocks, n_prompts, n_channels) * 0.02)

    def forward(
        self, images: Tensor, trunk: nn.Sequential, tail: nn.Sequential
    ) -> dict[str, Tensor]:
        """Features (b, D) of images (b, 3, S, S), and those of the prompts."""
        stem, *blocks = trunk
        *more, finish = tail
        tokens = stem(images)  # (b, T, C)
        prompts = tokens[:, :0]
        for block, own in zip([*blocks, *more], self.tokens, strict=True):
            own = own.to(tokens.dtype).expand(len(tokens), -1, -1)  # (b, P, C)
            first, prompts, rest = block(
                torch.cat([tokens[:, :1], own, tokens[:, 1:]], dim=1)
            ).split([1, own.shape[1], tokens.shape[1] - 1], dim=1)
            tokens = torch.cat([first, rest], dim=1)
        # Each prompt is normed by itself, then they are averaged.
        ensembled = [
            finish(prompts[:, i : i + 1]) for i in range(min(N_ENSEMBLED, prompts.shape[1]))
        ]
        return {"features": finish(tokens), "prompt_features": torch.stack(ensembled).mean(dim=0)}


class BorderPrompt(nn.Module):
    """A border that is added to every image, where an encoder has no tokens to put others beside; 0
    at the start."""

    positions: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        is_border = torch.ones(size, size, dtype=torch.bool)
        is_border[width : size - width, width : size - width] = False
        self.register_buffer("positions", is_border.flatten().nonzero()[:, 0], persistent=False)
        self.border = nn.Parameter(torch.zeros(3, len(self.positions)))

    def forward(
        self, images: Tensor, trunk: nn.Sequential, tail: nn.Sequential
    ) -> dict[str, Tensor]:
        """Features (b, D) of images (b, 3, S, S)."""
        canvas = self.border.new_zeros(3, images.shape[2] * images.shape[3]).index_copy(
            1, self.positions, self.border
        )
        return {"features": tail(trunk(images + canvas.view(1, *images.shape[1:])))}


def make_prompts(encoder: Encoder, *, n_prompts: int, border: int) -> TokenPrompts | BorderPrompt:
    """Tokens for a plain transformer, a border for any other encoder: one whose blocks count on
    their tokens too."""
    size = encoder.input_format.size
    if encoder.n_blocks and encoder.context is None:
        with torch.no_grad():
            tokens = encoder.trunk[0](torch.zeros(1, 3, size, size, device=encoder.device))
        if tokens.ndim == 3:
            return TokenPrompts(encoder.n_blocks, n_prompts, tokens.shape[2])
    return BorderPrompt(size, min(border, size // 4))
