"""Learned prompts, which adapt a frozen trunk to a collection.

Each block of a plain transformer gets a few learned tokens in addition to those of the image; any
other encoder gets images with a learned border. The trunk then runs in every step, with gradients.

Shapes: b images of S × S pixels, T tokens, P prompts, C channels of a token, D dimensions of a
feature.
"""

import torch
from torch import Tensor, nn

from shoal.encoders.vision import Encoder

N_ENSEMBLED = 2
"""Outputs of the last block for prompts that are averaged to the feature of the prompts."""


class TokenPrompts(nn.Module):
    """Learned tokens for each block, inserted behind the class token."""

    def __init__(self, n_blocks: int, n_prompts: int, n_channels: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(n_blocks, n_prompts, n_channels) * 0.02)

    def forward(
        self, images: Tensor, trunk: nn.Sequential, tail: nn.Sequential
    ) -> dict[str, Tensor]:
        """Return features (b, D) of images (b, 3, S, S), and those of the prompts."""
        stem, *blocks, finish = [*trunk, *tail]
        tokens = stem(images)  # (b, T, C)
        prompts = tokens[:, :0]
        for block, learned in zip(blocks, self.tokens, strict=True):
            prompts = learned.to(tokens.dtype).expand(len(tokens), -1, -1)  # (b, P, C)
            out = block(torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], dim=1))
            sizes = [1, prompts.shape[1], tokens.shape[1] - 1]
            first, prompts, rest = out.split(sizes, dim=1)
            tokens = torch.cat([first, rest], dim=1)
        # Each prompt is normalized separately before averaging.
        ensembled = [finish(prompt) for prompt in prompts[:, :N_ENSEMBLED].split(1, dim=1)]
        return {"features": finish(tokens), "prompt_features": torch.stack(ensembled).mean(dim=0)}


class BorderPrompt(nn.Module):
    """A learned border, initially 0, that is added to every image."""

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
        """Return features (b, D) of images (b, 3, S, S)."""
        canvas = self.border.new_zeros(3, images.shape[2] * images.shape[3]).index_copy(
            1, self.positions, self.border
        )
        return {"features": tail(trunk(images + canvas.view(1, *images.shape[1:])))}


def make_prompts(encoder: Encoder, *, n_prompts: int, border: int) -> TokenPrompts | BorderPrompt:
    """Return token prompts for a plain transformer, a border for any other encoder.

    Blocks that compute arguments from their number of tokens (`context`) cannot take more tokens.
    """
    size = encoder.input_format.size
    if encoder.n_blocks and encoder.context is None:
        with torch.no_grad():
            tokens = encoder.trunk[0](torch.zeros(1, 3, size, size, device=encoder.device))
        if tokens.ndim == 3:
            return TokenPrompts(encoder.n_blocks, n_prompts, tokens.shape[2])
    return BorderPrompt(size, min(border, size // 4))
