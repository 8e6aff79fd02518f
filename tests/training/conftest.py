"""A tiny encoder and a toy collection: flat colors with noise, 4 classes, the first 2 known."""

import numpy as np
import pytest
import torch
from torch import nn

from shoal.clustering.inference import InferenceSettings
from shoal.clustering.mean_shift import ShiftSettings
from shoal.encoders.vision import Encoder, HeadSettings, InputFormat, Parts
from shoal.methods.cms import Cms, CmsSettings, LossSettings
from shoal.training.inputs import Task
from shoal.training.model import TaskShape
from shoal.training.train_settings import TrainSettings
from small_models import Mean, limit_threads

one_thread = pytest.fixture(autouse=True, scope="module")(limit_threads)


COLORS = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [180, 180, 40]])


def make_encoder(size=14):
    torch.manual_seed(0)
    parts = Parts(
        stem=nn.Conv2d(3, 12, 3, stride=2),
        blocks=[nn.ReLU(), nn.Conv2d(12, 16, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(16, 16, 3))],
        finish=Mean(),
        is_finish_trained=False,
        feature_dim=16,
    )
    return Encoder("tiny", parts, InputFormat(size=size, mean=(0.5,) * 3, std=(0.25,) * 3), 1)


def make_truth(n_images=48):
    return np.arange(n_images) % 4


def make_data(n_images=48, *, with_validation=True, labeled=True, n_clusters=None):
    rng = np.random.default_rng(0)
    truth = make_truth(n_images)
    pixels = COLORS[truth][:, None, None] + rng.integers(-40, 41, size=(n_images, 16, 16, 3))
    labels = (
        np.where((truth < 2) & (rng.random(n_images) < 0.6), truth, -1)
        if labeled
        else np.full(n_images, -1)
    )
    validation = np.arange(n_images)[::3] if with_validation else None
    return Task(
        pixels=pixels.clip(0, 255).astype(np.uint8),
        labels=labels,
        validation=validation,
        n_clusters=n_clusters,
    )


def make_networks(kind="paper", shift=None, bank="images", **loss):
    """Return a CMS model as a tuple, the arguments of `train` between task and settings."""
    settings = CmsSettings(
        head=HeadSettings(kind=kind, width=24, dim=10, bottleneck=6),
        loss=LossSettings(**loss),
        inference=InferenceSettings(shift=shift or ShiftSettings(n_neighbors=3)),
        training=make_settings(),
        bank=bank,
    )
    return (Cms(make_encoder(), settings, TaskShape(n_images=48, n_known=2, n_clusters=None)),)


def make_settings(**changes):
    return TrainSettings(**{"epochs": 3, "batch_size": 8, "lr": 0.05, **changes})


@pytest.fixture
def toy():
    class Toy:
        encoder = staticmethod(make_encoder)
        data = staticmethod(make_data)
        networks = staticmethod(make_networks)
        settings = staticmethod(make_settings)
        truth = staticmethod(make_truth)

    return Toy
