"""SimGCD: the loss against a slow loop in a whole step on a tiny ViT, and the colors that training
finds."""

import pytest
import torch

from shoal.encoders.vision import HeadSettings
from shoal.methods.simgcd import SimGcd, SimGcdSettings
from shoal.training.model import TaskShape
from shoal.training.trainer import Sgd
from slow_steps import contrast, simgcd_loss, supervise

LABELS = [0, -1, 1, 0, -1, 1]

SMALL = SimGcdSettings(head=HeadSettings(kind="mlp", width=16, dim=8))


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
    views = model.head(features)
    labels = LABELS * 2
    contrastive, supervised = contrast(views, 1.0), supervise(views, labels, 0.07)
    tiny_vit.check(loss, simgcd_loss(cosines, labels, contrastive, supervised, epoch))
    torch.testing.assert_close(model.classifier.weight.grad, weight.grad, rtol=1e-3, atol=1e-5)


def test_biases_do_not_decay(tiny_encoder):
    model = SimGcd(tiny_encoder("tiny"), SMALL, TaskShape(n_images=2, n_known=1, n_clusters=3))
    parameters = [value for value in model.parameters() if value.requires_grad]
    optimizer = Sgd(parameters, momentum=0.9, weight_decay=0.1, decays_vectors=model.decays_vectors)
    decays = {value: decay for decay, group in optimizer.groups for value in group}
    expected = {(True, 0.1), (False, 0.0)}
    assert {(value.ndim > 1, decay) for value, decay in decays.items()} == expected
    assert decays.keys() == set(parameters)
