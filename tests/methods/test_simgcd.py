"""SimGCD: each loss against a slow loop, the whole step on a tiny ViT, and what it finds."""

import math

import numpy as np
import pytest
import torch

from shoal.encoders.head import HeadSettings
from shoal.encoders.hub import import_transformers
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.methods.simgcd import SimGcd, SimGcdSettings
from shoal.training.model import Batch, TaskShape
from shoal.training.train_settings import TrainSettings
from small_models import make_model

LABELS = torch.tensor([0, -1, 1, 0, -1, 1])

SMALL = SimGcdSettings(head=HeadSettings(kind="mlp", width=16, dim=8))


def slow_loss(cosines, views, epoch):
    """Six rows, two views of three images, the sum written out row by row."""
    n = len(cosines)
    sharp = np.linspace(0.07, 0.04, 30)[min(epoch, 29)]  # 0.04 from the thirtieth epoch on
    probabilities = [torch.softmax(row / 0.1, dim=0) for row in cosines]
    taught = 0.0
    for i in range(n):
        target = torch.softmax(cosines[(i + n // 2) % n].detach() / sharp, dim=0)
        taught = taught - sum(target[k] * probabilities[i][k].log() for k in range(len(target))) / n
    mean = sum(probabilities) / n
    spread = math.log(len(mean)) + sum(p * p.log() for p in mean)
    labeled = [i for i in range(n) if LABELS[i] >= 0]
    classified = -sum(probabilities[i][LABELS[i]].log() for i in labeled) / len(labeled)
    contrastive = supervised = 0.0
    for i in range(n):
        others = torch.stack([views[i] @ views[j] for j in range(n) if j != i])
        contrastive = contrastive + (others.logsumexp(0) - views[i] @ views[(i + n // 2) % n]) / n
    for i in labeled:
        rest = [j for j in labeled if j != i]
        log_sum = torch.stack([views[i] @ views[j] / 0.07 for j in rest]).logsumexp(0)
        alike = [j for j in rest if LABELS[j] == LABELS[i]]
        supervised = supervised + sum(log_sum - views[i] @ views[j] / 0.07 for j in alike) / len(
            alike
        ) / len(labeled)
    return 0.65 * (taught + 2 * spread + contrastive) + 0.35 * (classified + supervised)


def tiny_vit():
    parts = split_model(make_model(import_transformers(), "vit"), 32)
    return Encoder("vit", parts, InputFormat(size=32, mean=(0.5,) * 3, std=(0.5,) * 3), 1)


@pytest.mark.parametrize("epoch", [0, 10, 40])
def test_a_whole_step_on_a_tiny_vit_has_the_loss_and_the_gradients_of_a_slow_version(epoch):
    torch.manual_seed(0)
    settings = SMALL
    model = SimGcd(tiny_vit(), settings, TaskShape(n_images=3, n_known=2, n_clusters=5))
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    inputs = model.encoder.trunk(images)
    how = {
        "images": torch.arange(3).repeat(2),
        "labels": LABELS,
        "epoch": epoch,
        "generator": torch.Generator(),
    }
    found = model.loss(Batch(inputs=inputs, outputs=model(inputs), **how))["loss"]
    found.backward()
    ours = [value.grad.clone() for value in model.trained_parameters()]
    model.zero_grad()
    features = [model.encoder(image[None])[0] for image in images]
    directions = [row / row.norm() for row in model.classifier.weight]
    cosines = torch.stack(
        [torch.stack([(f / f.norm()) @ direction for direction in directions]) for f in features]
    )
    hidden = [model.head.layers(feature) for feature in features]
    expected = slow_loss(cosines, torch.stack([row / row.norm() for row in hidden]), epoch)
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for one, value in zip(ours, model.trained_parameters(), strict=True):
        torch.testing.assert_close(one, value.grad, rtol=1e-3, atol=1e-4)


def test_biases_do_not_decay():
    model = SimGcd(tiny_vit(), SMALL, TaskShape(n_images=2, n_known=1, n_clusters=3))
    optimizer = model.make_optimizer(TrainSettings(weight_decay=0.1))
    decays = {
        (value.ndim > 1, decay)
        for value, decay in zip(optimizer.parameters, optimizer.decays, strict=True)
    }
    assert decays == {(True, 0.1), (False, 0.0)}
    assert len(optimizer.parameters) == len(model.trained_parameters())
