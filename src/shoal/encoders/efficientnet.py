"""Split an EfficientNet-lite into parts, its batch norms folded into the convolutions.

Shapes: B images, C channels, H x W positions, D dimensions of a feature.
"""

import torch
from efficientnet_lite_pytorch import EfficientNet
from efficientnet_lite_pytorch.model import MBConvBlock
from torch import Tensor, nn

from shoal.encoders.convolution import FoldedConv
from shoal.encoders.vision import Parts


def split_efficientnet(network: EfficientNet) -> Parts:
    """Split an EfficientNet-lite of efficientnet_lite_pytorch, without its classifier.

    The parts share the network's parameters.
    """
    return Parts(
        stem=FoldedConv(network._conv_stem, network._bn0, has_activation=True),
        blocks=[MobileBlock(block) for block in network._blocks],
        finish=PooledMap(network),
        is_finish_trained=True,
        feature_dim=network._conv_head.out_channels,
    )


class MobileBlock(nn.Module):
    """An inverted bottleneck: expand, depthwise convolution, project; plus its input if the shapes
    agree."""

    def __init__(self, block: MBConvBlock) -> None:
        super().__init__()
        arguments = block._block_args
        layers = [
            FoldedConv(block._depthwise_conv, block._bn1, has_activation=True),
            FoldedConv(block._project_conv, block._bn2, has_activation=False),
        ]
        if arguments.expand_ratio != 1:
            layers.insert(0, FoldedConv(block._expand_conv, block._bn0, has_activation=True))
        self.layers = nn.Sequential(*layers)
        # The original network compares the stride with 1. It is a list in a stage's first block,
        # so those blocks never have a skip connection.
        same_size = arguments.stride == 1 and arguments.input_filters == arguments.output_filters
        self.has_skip = bool(block.id_skip and same_size)

    def forward(self, features: Tensor) -> Tensor:
        # Cached tokens have channels first, which would make the sum below slow.
        features = features.contiguous(memory_format=torch.channels_last)
        out = self.layers(features)
        if self.has_skip:
            out = out + features
        return out


class PooledMap(nn.Module):
    """The head convolution and the mean over positions."""

    def __init__(self, network: EfficientNet) -> None:
        super().__init__()
        self.conv = FoldedConv(network._conv_head, network._bn1, has_activation=True)

    def forward(self, features: Tensor) -> Tensor:
        """Turn a feature map (B, C, H, W) into features (B, D)."""
        return self.conv(features).mean(dim=(2, 3))
