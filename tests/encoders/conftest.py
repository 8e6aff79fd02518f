"""Small random models of the real architectures."""

import sys
from functools import partial

import pytest
import torch

from shoal.encoders.hub import import_transformers
from small_models import make_model


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """With small networks on a busy machine, several threads only wait for each other."""
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
    """Build a small model of one kind (see `small_models.KINDS`)."""
    return partial(make_model, transformers)
