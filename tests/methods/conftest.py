"""A tiny encoder and five flat colours with noise, three of them known."""

import numpy as np
import pytest
import torch
from torch import nn

from shoal.encoders.vision import Encoder, InputFormat, Parts
from shoal.methods import method
from shoal.methods.task import Task

COLOURS = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [190, 190, 40], [40, 190, 190]])


class Mean(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))


def make_tiny_encoder(name, *, n_tail_blocks=None, input_size=None):
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.ReLU(), nn.Conv2d(12, 16, 3)), nn.Sequential(nn.ReLU(), nn.Conv2d(16, 16, 3))]
    parts = Parts(
        stem=nn.Conv2d(3, 12, 3, stride=2), blocks=blocks, finish=Mean(), is_finish_trained=False, feature_dim=16
    )
    return Encoder(name, parts, InputFormat(size=14, mean=(0.5,) * 3, std=(0.25,) * 3), 1)


@pytest.fixture(scope="session")
def tiny_encoder():
    return make_tiny_encoder


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small networks are all overhead: on a busy machine two threads wait for each other at every layer."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(method, "load_encoder", make_tiny_encoder)


def make_truth():
    return np.arange(100) % 5


def make_task():
    rng, truth = np.random.default_rng(0), make_truth()
    pixels = COLOURS[truth][:, None, None] + rng.integers(-50, 51, size=(100, 16, 16, 3))
    labels = np.where((truth < 3) & (rng.random(100) < 0.6), truth, -1)
    return Task(pixels=pixels.clip(0, 255).astype(np.uint8), labels=labels, validation=np.arange(0, 100, 3))


@pytest.fixture
def truth():
    return make_truth()


@pytest.fixture
def task():
    return make_task()
