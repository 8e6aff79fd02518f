"""SimGCD: each loss against a slow loop, the whole step on a tiny ViT, and what it finds."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from shoal.encoders.head import HeadSettings
from shoal.encoders.hub import import_transformers
from shoal.encoders.splitting import split_model
from shoal.encoders.vision import Encoder, InputFormat
from shoal.errors import UsageError
from shoal.methods.registry import load_recipe
from shoal.methods.simgcd import SimGcd, SimGcdSettings
from shoal.training.model import Batch, TaskShape
from shoal.training.train_settings import TrainSettings
from small_models import make_model

LABELS = torch.tensor([0, -1, 1, 0, -1, 1])

SMALL = SimGcdSettings(head=HeadSettings(kind="mlp", width=16, dim=8))


def slow_loss(cosines, views, epoch):
    """Six rows, two views of three images, the sum written out row by row."""
    n = len(cosines)
    sharp = 0.07 + min(1, epoch / 30) * (0.04 - 0.07)
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


def test_a_target_is_the_other_views_and_carries_no_gradient():
    torch.manual_seed(0)
    model = SimGcd(tiny_vit(), SMALL, TaskShape(n_images=2, n_known=1, n_clusters=3))
    cosines = torch.tensor(
        [[0.9, 0.0, 0.0], [0.0, 0.9, 0.0], [0.0, 0.9, 0.0], [0.9, 0.0, 0.0]], requires_grad=True
    )
    fixed = torch.zeros(4, 3)
    assert not model.taught_loss(cosines, fixed, 0).requires_grad
    logits = {
        name: 9.0 * F.one_hot(torch.tensor(c), 3)
        for name, c in (("swapped", [1, 0, 0, 1]), ("same", [0, 1, 1, 0]))
    }
    swapped, plain = (model.taught_loss(cosines, logits[name], 40) for name in ("swapped", "same"))
    assert float(swapped) < 0.01 < float(plain)


def test_the_teachers_temperature_falls_along_a_line_and_stays():
    settings = SimGcdSettings()
    assert [round(settings.teacher_temperature_at(epoch), 4) for epoch in (0, 15, 30, 99)] == [
        0.07,
        0.055,
        0.04,
        0.04,
    ]
    assert replace(settings, teacher_warmup=0).teacher_temperature_at(0) == 0.04


@pytest.mark.parametrize(("epochs", "n_falling"), [(200, 30), (60, 30), (8, 4), (3, 1), (1, 0)])
def test_the_teachers_temperature_has_fallen_before_the_end_of_a_short_training(epochs, n_falling):
    settings = SimGcdSettings(training=TrainSettings(epochs=epochs))
    has_fallen = [
        settings.teacher_temperature_at(epoch) == pytest.approx(0.04) for epoch in range(epochs)
    ]
    assert has_fallen == [epoch >= n_falling for epoch in range(epochs)]


def test_biases_do_not_decay():
    model = SimGcd(tiny_vit(), SMALL, TaskShape(n_images=2, n_known=1, n_clusters=3))
    (decayed, decay), (plain, no_decay) = model.make_optimizer(
        TrainSettings(weight_decay=0.1)
    ).groups
    assert (decay, no_decay) == (0.1, 0.0)
    assert {value.ndim for value in plain} == {1}
    assert len(decayed) + len(plain) == len(model.trained_parameters())


def test_values_out_of_range_are_refused():
    for name, value in (
        ("student_temperature", 0),
        ("teacher_warmup", -1),
        ("entropy_weight", -0.5),
    ):
        with pytest.raises(UsageError, match=name):
            SimGcdSettings(**{name: value})


def test_the_recipe_for_dino_holds_the_published_values():
    settings = load_recipe("dino", "simgcd")
    assert (
        settings.student_temperature,
        settings.first_teacher_temperature,
        settings.teacher_temperature,
    ) == (
        0.1,
        0.07,
        0.04,
    )
    assert (settings.teacher_warmup, settings.loss.supervised_weight, settings.training.lr) == (
        30,
        0.35,
        0.1,
    )
    assert settings.training.snapshot == "last"
