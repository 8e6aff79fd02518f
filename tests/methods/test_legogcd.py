"""LegoGCD: the loss against a slow loop in float64, and which views each of its terms moves."""

import math

import pytest
import torch

from shoal.encoders.vision import HeadSettings, unit
from shoal.methods.legogcd import LegoGcd, LegoGcdSettings
from shoal.methods.registry import load_recipe, recipe_for
from shoal.training.model import Batch, TaskShape
from slow_steps import contrast, simgcd_loss, supervise

LABELS = [0, -1, 1, 0, -1, 1]

SMALL = LegoGcdSettings(head=HeadSettings(kind="mlp", width=16, dim=8), threshold=0.7)
SHAPE = TaskShape(n_images=6, n_known=2, n_clusters=5)


@pytest.fixture
def model(tiny_encoder):
    return LegoGcd(tiny_encoder("tiny"), SMALL, SHAPE)


def batch_of(cosines, views=None, labels=LABELS, epoch=0):
    outputs = {"scores": cosines, "projections": views}
    images = torch.arange(len(cosines) // 2).repeat(2)
    return Batch(
        images=images,
        inputs=images,
        outputs=outputs,
        labels=torch.tensor(labels * 2),
        epoch=epoch,
        generator=torch.Generator(),
    )


def slow_entropy(cosines, labels, frequencies):
    """LER with δ = 0.7 and two known classes, view by view."""
    total = 0.0
    for row, label in zip(cosines, labels, strict=True):
        probabilities = torch.softmax(row.detach() / 0.1, dim=0).tolist()
        best = max(range(len(row)), key=probabilities.__getitem__)
        if label >= 0 or best >= 2 or probabilities[best] < 0.7:
            continue
        logits = [value / 0.05 for value in row]
        raised = [x + 0.4 * math.log(f) for x, f in zip(logits, frequencies, strict=True)]
        below = sum(x.exp() for x in logits)
        below_raised = sum(x.exp() for x in raised)
        for x, y in zip(logits, raised, strict=True):
            total = total - x.exp() / below * (y.exp() / below_raised).log()
    return total / len(cosines)


def slow_divergence(cosines):
    """DKL, image by image."""
    n_images = len(cosines) // 2
    total = 0.0
    for i in range(n_images):
        first, second = (torch.softmax(cosines[j] / 0.1, dim=0) for j in (i, i + n_images))
        total = total + sum(p * (p / q).log() for p, q in zip(first, second, strict=True))
    return total / n_images


@pytest.mark.parametrize("epoch", [0, 40])
def test_the_loss_and_its_gradient_are_those_of_a_slow_loop(model, epoch):
    generator = torch.Generator().manual_seed(0)
    cosines = 0.3 * torch.randn(12, 5, dtype=torch.float64, generator=generator)
    cosines[1, 0] += 1  # both unlabeled, one view of a known and one of a novel class
    cosines[4, 3] += 1
    views = unit(torch.randn(12, 8, dtype=torch.float64, generator=generator))
    model.frequencies = torch.tensor([0.1, 0.3, 0.2, 0.3, 0.1], dtype=torch.float64)
    leaves = [value.clone().requires_grad_() for value in (cosines, views)]
    slow = [value.clone().requires_grad_() for value in (cosines, views)]
    losses = model.loss(batch_of(*leaves, epoch=epoch))
    labels = LABELS * 2
    contrastive, supervised = contrast(slow[1], 1.0), supervise(slow[1], labels, 0.07)
    local = slow_entropy(slow[0], labels, model.frequencies.tolist())
    base = simgcd_loss(slow[0], labels, contrastive, supervised, epoch)
    expected = base + 0.65 * slow_divergence(slow[0]) + 2 * local
    assert float(local.detach()) > 0
    torch.testing.assert_close(losses["loss"], expected)
    losses["loss"].backward()
    expected.backward()
    for found, right in zip(leaves, slow, strict=True):
        torch.testing.assert_close(found.grad, right.grad)


def test_frequencies_follow_the_mean_prediction_and_are_saved(model):
    cosines = torch.tensor([[1.0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0]])
    assert model.saved_tensors()["frequencies"].tolist() == pytest.approx([0.2] * 5)
    for _ in range(10_000):
        model.after_step(batch_of(cosines, labels=[-1]))
    below = math.e + 4
    assert model.frequencies.tolist() == pytest.approx([math.e / below, *[1 / below] * 4], rel=1e-2)


@pytest.mark.parametrize(
    ("benchmark", "entropy_weight", "threshold"),
    [("aircraft", 1.0, 0.8), ("cub", 2.0, 0.7), ("cifar100", 2.0, 0.9)],
)
def test_recipes_hold_published_values(benchmark, entropy_weight, threshold):
    settings = load_recipe(recipe_for(benchmark, "dino-vitb16", "legogcd"), "legogcd")
    assert (settings.entropy_weight, settings.threshold) == (entropy_weight, threshold)
    assert settings.training.lr == 0.1
