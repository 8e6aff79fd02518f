"""A tiny encoder and images of five flat colors with noise, three of them known."""

import numpy as np
import pytest
import torch
from torch import nn

from shoal.clustering.inference import InferenceSettings, infer
from shoal.clustering.matching import gcd_accuracy
from shoal.encoders.hub import import_transformers
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat, embed
from shoal.methods import method
from shoal.training.inputs import Task
from shoal.training.model import Batch
from small_models import limit_threads, make_model, make_tiny_encoder

one_thread = pytest.fixture(autouse=True, scope="module")(limit_threads)


COLORS = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [190, 190, 40], [40, 190, 190]])


@pytest.fixture(scope="session")
def tiny_encoder():
    return make_tiny_encoder


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(method, "load_encoder", make_tiny_encoder)


def make_truth():
    return np.arange(100) % 5


def make_task():
    rng = np.random.default_rng(0)
    truth = make_truth()
    pixels = COLORS[truth][:, None, None] + rng.integers(-50, 51, size=(100, 16, 16, 3))
    labels = np.where((truth < 3) & (rng.random(100) < 0.6), truth, -1)
    return Task(
        pixels=pixels.clip(0, 255).astype(np.uint8), labels=labels, validation=np.arange(0, 100, 3)
    )


@pytest.fixture
def truth():
    return make_truth()


@pytest.fixture
def task():
    return make_task()


@pytest.fixture
def dim_task():
    """200 images with very different brightness, which the frozen encoder mistakes for color; and
    the truth."""
    rng = np.random.default_rng(0)
    truth = np.arange(200) % 5
    light = rng.uniform(0.3, 1.25, size=(200, 1, 1, 1))
    pixels = COLORS[truth][:, None, None] * light + rng.integers(-40, 41, size=(200, 16, 16, 3))
    labels = np.where((truth < 3) & (rng.random(200) < 0.6), truth, -1)
    return Task(pixels=pixels.clip(0, 255).astype(np.uint8), labels=labels, n_clusters=5), truth


@pytest.fixture
def score(dim_task):
    """Return the accuracy of clusters on the unlabeled images of `dim_task`."""
    task, truth = dim_task
    hidden = task.labels < 0
    return lambda clusters: gcd_accuracy(truth[hidden], clusters[hidden], truth[hidden] < 3)


@pytest.fixture
def frozen_accuracy(dim_task, score, tiny_encoder):
    """The accuracy of Algorithm 1 with the frozen encoder on these images."""
    task, _ = dim_task
    frozen = embed(task.pixels, tiny_encoder("tiny"))
    return score(infer(frozen, task.labels, 5, InferenceSettings()).labels)


class TinyVit:
    """Two copies of a small ViT: one split into an encoder, one whole and run by the transformers
    library.

    In both, only the last block, which is the encoder's tail, has gradients.
    """

    def __init__(self):
        transformers = import_transformers()
        parts = split_model(make_model(transformers, "vit"), 32)
        self.encoder = Encoder(
            "vit", parts, InputFormat(size=32, mean=(0.5,) * 3, std=(0.5,) * 3), 1
        )
        self.whole = make_model(transformers, "vit").requires_grad_(False)
        self.layers = next(
            module for module in self.whole.modules() if isinstance(module, nn.ModuleList)
        )
        self.layers[-1].requires_grad_(True)
        self.views = torch.randn(
            12, 3, 32, 32, generator=torch.Generator().manual_seed(5)
        )  # two views of each of six images

    def features(self):
        """Return the features (12, 32) of the views from the whole model."""
        return self.whole(pixel_values=self.views).last_hidden_state[:, 0]

    def batch(self, model, labels, epoch=0):
        """Return the views as the trainer passes them to a loss, with the `labels` of the six
        images."""
        inputs = self.views if model.reads_images else model.encoder.trunk(self.views)
        return Batch(
            images=torch.arange(6).repeat(2),
            inputs=inputs,
            outputs=model(inputs),
            labels=torch.tensor(labels).repeat(2),
            epoch=epoch,
            generator=torch.Generator().manual_seed(9),
        )

    def check(self, loss, expected):
        """Check that a step of the method and its slow version give the same loss and the same
        gradients of the last block."""
        torch.testing.assert_close(loss, expected)
        loss.backward(retain_graph=True)
        expected.backward(retain_graph=True)
        ours = self.encoder.tail[0].parameters()
        theirs = self.layers[-1].parameters()
        for a, b in zip(ours, theirs, strict=True):
            assert float(b.grad.abs().max()) > 0
            torch.testing.assert_close(
                a.grad, b.grad, rtol=1e-3, atol=1e-5 * max(1.0, float(b.grad.abs().max()))
            )


@pytest.fixture
def tiny_vit():
    return TinyVit()
