"""Small random models of the real architectures."""

import sys
from functools import partial

import pytest

from shoal.encoders.hub import import_transformers
from small_models import limit_threads, make_model

one_thread = pytest.fixture(autouse=True, scope="module")(limit_threads)


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
