"""Small random models of the real architectures of the transformers library."""

import json
from copy import deepcopy
from functools import cache

import torch
from torch import nn

from shoal.encoders.vision import Encoder, InputFormat, Parts

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
VIT = {**SIZES, "intermediate_size": 64}
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}

# Class, configuration and its sizes; the last three cannot be split
KINDS = {
    "vit": ("ViTModel", "ViTConfig", VIT),
    "deit": ("DeiTModel", "DeiTConfig", VIT),
    "dinov2": ("Dinov2Model", "Dinov2Config", SIZES | {"mlp_ratio": 2}),
    "dinov2-registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersConfig",
        SIZES | {"mlp_ratio": 2},
    ),
    "dinov3": ("DINOv3ViTModel", "DINOv3ViTConfig", VIT | {"num_register_tokens": 2}),
    "vit-msn": ("ViTMSNModel", "ViTMSNConfig", VIT),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", VIT),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", VIT),
    "vit-mae": ("ViTMAEModel", "ViTMAEConfig", VIT),
    "resnet": ("ResNetModel", "ResNetConfig", STAGES | {"embedding_size": 8}),
    "pvt": ("PvtV2Model", "PvtV2Config", STAGES | {"num_attention_heads": [1, 1, 2, 4]}),
}


def make_model(transformers, kind):
    """Build a model of one kind with random weights and statistics, large enough that every path
    affects the output."""
    return deepcopy(_made(transformers, kind))


@cache
def _made(transformers, kind):
    model_class, config, sizes = KINDS[kind]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config)(**sizes))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn(value.shape))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def save_folder(model, folder, **preprocessor):
    """Save a model as transformers does, with the configuration of its image preprocessing."""
    model.save_pretrained(folder)
    preprocessor = {
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [1, 2, 3],
        "crop_size": {"height": 32},
    } | preprocessor
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))


class Mean(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


def make_tiny_encoder(name, *, n_tail_blocks=None, input_size=None):
    """A convolutional encoder of two blocks for images of 14 px."""
    torch.manual_seed(1)
    blocks = [
        nn.Sequential(nn.ReLU(), nn.Conv2d(12, 16, 3)),
        nn.Sequential(nn.ReLU(), nn.Conv2d(16, 16, 3)),
    ]
    parts = Parts(
        stem=nn.Conv2d(3, 12, 3, stride=2),
        blocks=blocks,
        finish=Mean(),
        is_finish_trained=False,
        feature_dim=16,
    )
    return Encoder(name, parts, InputFormat(size=14, mean=(0.5,) * 3, std=(0.25,) * 3), 1)


def limit_threads():
    """With small networks on a busy machine, several threads only wait for each other."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)
