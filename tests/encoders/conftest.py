"""Small random models of the real architectures, made once per session."""

import sys

import pytest
import torch

from shoal.encoders.hub import import_transformers

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small networks are all overhead: on a busy machine two threads wait for each other at every layer."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="session")
def transformers():
    had = "torchvision" in sys.modules
    module = import_transformers()
    yield module
    if not had:
        sys.modules.pop("torchvision", None)


@pytest.fixture(scope="session")
def make_transformer(transformers):
    """Build a small model of one kind with random weights large enough that every path matters."""
    kinds = {
        "vit": lambda: transformers.ViTModel(transformers.ViTConfig(intermediate_size=64, **SMALL)),
        "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(mlp_ratio=2, **SMALL)),
        "clip": lambda: transformers.CLIPVisionModel(transformers.CLIPVisionConfig(intermediate_size=64, **SMALL)),
    }

    def make(kind):
        generator = torch.Generator().manual_seed(3)
        model = kinds[kind]()
        with torch.no_grad():
            for value in model.parameters():
                value.add_(0.1 * torch.randn(value.shape, generator=generator))
        return model.eval()

    return make
