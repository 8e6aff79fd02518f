"""SimGCD: the loss against a slow loop in a whole step on a tiny ViT, and the colors that training
finds."""

import math

import numpy as np
import pytest
import torch

from shoal.encoders.head import HeadSettings
from shoal.methods.simgcd import SimGcd, SimGcdSettings
from shoal.training.model import TaskShape
from shoal.training.sgd import Sgd
from slow_steps import contrast, supervise

LABELS = [0, -1, 1, 0, -1, 1]

SMALL = SimGcdSettings(head=HeadSettings(kind="mlp", width=16, dim=8))


def slow_loss(cosines, views, epoch):
    """Compute the loss of two views of six images, row by row."""
    n = len(cosines)
    sharp = np.linspace(0.07, 0.04, 30)[min(epoch, 29)]  # 0.04 from the thirtieth epoch on
    probabilities = [torch.softmax(row / 0.1, dim=0) for row in cosines]
    taught = 0.0
    for i in range(n):
        target = torch.softmax(cosines[(i + n // 2) % n].detach() / sharp, dim=0)
        taught = taught - sum(target[k] * probabilities[i][k].log() for k in range(len(target))) / n
    mean = sum(probabilities) / n
    spread = math.log(len(mean)) + sum(p * p.log() for p in mean)
    labeled = [i for i in range(n) if LABELS[i % 6] >= 0]
    classified = -sum(probabilities[i][LABELS[i % 6]].log() for i in labeled) / len(labeled)
    contrastive = contrast(views, 1.0)
    supervised = supervise(views, LABELS * 2, 0.07)
    return 0.65 * (taught + 2 * spread + contrastive) + 0.35 * (classified + supervised)


@pytest.mark.parametrize("epoch", [0, 10, 40])
def test_a_step_is_that_of_a_slow_version_on_a_vit(tiny_vit, epoch):
    torch.manual_seed(0)
    model = SimGcd(tiny_vit.encoder, SMALL, TaskShape(n_images=6, n_known=2, n_clusters=5))
    loss = model.loss(tiny_vit.batch(model, LABELS, epoch=epoch))["loss"]
    weight = model.classifier.weight.detach().clone().requires_grad_()
    features = tiny_vit.features()
    directions = [row / row.norm() for row in weight]
    cosines = torch.stack(
        [torch.stack([(f / f.norm()) @ direction for direction in directions]) for f in features]
    )
    tiny_vit.check(loss, slow_loss(cosines, model.head(features), epoch))
    torch.testing.assert_close(model.classifier.weight.grad, weight.grad, rtol=1e-3, atol=1e-5)


def test_biases_do_not_decay(tiny_encoder):
    model = SimGcd(tiny_encoder("tiny"), SMALL, TaskShape(n_images=2, n_known=1, n_clusters=3))
    parameters = [value for value in model.parameters() if value.requires_grad]
    optimizer = Sgd(parameters, momentum=0.9, weight_decay=0.1, decays_vectors=model.decays_vectors)
    decays = {value: decay for decay, group in optimizer.groups for value in group}
    expected = {(True, 0.1), (False, 0.0)}
    assert {(value.ndim > 1, decay) for value, decay in decays.items()} == expected
    assert decays.keys() == set(parameters)
