"""HypCD: geometry by closed formulas, and the loss against a slow loop in float64."""

import math
from dataclasses import replace

import pytest
import torch

from shoal.encoders.vision import HeadSettings
from shoal.methods.hypcd import (
    HypCd,
    HypCdSettings,
    HyperbolicClassifier,
    clip_rows,
    distances,
    exp_map,
)
from shoal.methods.registry import load_recipe, recipe_for
from shoal.training.model import Batch, TaskShape
from shoal.training.train_settings import TrainSettings
from slow_steps import simgcd_loss

LABELS = [0, -1, 1, 0, -1, 1]

SMALL = HypCdSettings(
    head=HeadSettings(kind="mlp", width=16, dim=8),
    training=TrainSettings(epochs=11),
    curvature=0.1,
    teacher_warmup=0,
    initial_teacher_temperature=0.04,
)
SHAPE = TaskShape(n_images=6, n_known=2, n_clusters=5)


@pytest.fixture
def model(tiny_encoder):
    return HypCd(tiny_encoder("tiny"), SMALL, SHAPE)


def slow_sum(a, b, c):
    """Equation 5, the Möbius sum of two points."""
    above = (1 + 2 * c * (a @ b) + c * (b @ b)) * a + (1 - c * (a @ a)) * b
    return above / (1 + 2 * c * (a @ b) + c**2 * (a @ a) * (b @ b))


def slow_distance(a, b, c):
    """Equation 6."""
    return 2 / math.sqrt(c) * torch.atanh(math.sqrt(c) * slow_sum(-a, b, c).norm())


def slow_map(row, c):
    """Equation 7 at the origin, without clipping."""
    return torch.tanh(math.sqrt(c) * row.norm()) * row / (math.sqrt(c) * row.norm())


def slow_layer(point, weight, bias, c):
    """The hyperbolic linear layer of a point, with a bias in the ball."""
    product = weight @ point
    factor = product.norm() / point.norm() * torch.atanh(math.sqrt(c) * point.norm())
    return slow_sum(torch.tanh(factor) * product / (math.sqrt(c) * product.norm()), bias, c)


def slow_contrast(similarity, temperature):
    """InfoNCE (equation 8) for a similarity of two rows, over all other rows."""
    n_rows = len(LABELS) * 2
    total = 0.0
    for i in range(n_rows):
        partner = (i + n_rows // 2) % n_rows
        below = sum((similarity(i, j) / temperature).exp() for j in range(n_rows) if j != i)
        total = total - ((similarity(i, partner) / temperature).exp() / below).log()
    return total / n_rows


def slow_supervise(similarity, temperature):
    """The supervised contrastive loss (equation 9), over the labeled rows."""
    labels = LABELS * 2
    rows = [i for i in range(len(labels)) if labels[i] >= 0]
    total = 0.0
    for i in rows:
        others = [j for j in rows if j != i]
        below = sum((similarity(i, j) / temperature).exp() for j in others)
        terms = [
            ((similarity(i, j) / temperature).exp() / below).log()
            for j in others
            if labels[j] == labels[i]
        ]
        total = total - sum(terms) / len(terms)
    return total / len(rows)


@pytest.mark.parametrize(("epoch", "weight"), [(0, 0.0), (4, 0.4), (10, 1.0)])
def test_the_loss_and_its_gradient_are_those_of_a_slow_loop(model, epoch, weight):
    """α_d increases from 0 in the first of eleven epochs to 1 in the last."""
    generator = torch.Generator().manual_seed(0)
    outputs = 0.3 * torch.randn(12, 5, dtype=torch.float64, generator=generator)
    rows = 0.5 * torch.randn(12, 8, dtype=torch.float64, generator=generator)
    leaves = [value.clone().requires_grad_() for value in (outputs, rows)]
    slow = [value.clone().requires_grad_() for value in (outputs, rows)]
    batch = Batch(
        images=torch.arange(6).repeat(2),
        inputs=torch.arange(12),
        outputs={"scores": leaves[0], "projections": leaves[1]},
        labels=torch.tensor(LABELS * 2),
        epoch=epoch,
        generator=torch.Generator(),
    )
    points = [slow_map(row, 0.1) for row in slow[1]]

    def near(i, j):
        return -slow_distance(points[i], points[j], 0.1)

    def alike(i, j):
        return (points[i] @ points[j]) / (points[i].norm() * points[j].norm())

    contrastive, supervised = (
        weight * slow(near, temperature) + (1 - weight) * slow(alike, 0.3 * temperature)
        for slow, temperature in ((slow_contrast, 1.0), (slow_supervise, 0.07))
    )
    expected = simgcd_loss(slow[0], LABELS * 2, contrastive, supervised, epoch=29)  # τ_t 0.04
    loss = model.loss(batch)["loss"]
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for found, right in zip(leaves, slow, strict=True):
        torch.testing.assert_close(found.grad, right.grad)


def test_the_classifier_is_the_hyperbolic_linear_layer_of_the_paper():
    torch.manual_seed(0)
    layer = HyperbolicClassifier(6, 4, curvature=0.1)
    with torch.no_grad():
        layer.weight.mul_(10)
        layer.bias.normal_(std=0.2)
    weight, bias = (
        value.detach().double().requires_grad_() for value in (layer.weight, layer.bias)
    )
    rows = clip_rows(torch.randn(3, 6), 2.0)
    found = layer(rows)
    place = slow_map(bias, 0.1)
    expected = torch.stack(
        [slow_layer(slow_map(row, 0.1), weight, place, 0.1) for row in rows.double()]
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    found.square().sum().backward()
    expected.square().sum().backward()
    for value, right in ((layer.weight, weight), (layer.bias, bias)):
        torch.testing.assert_close(value.grad.double(), right.grad, rtol=1e-4, atol=1e-5)


def test_distances_are_those_of_the_closed_formula():
    """c = 1: a point at r is 2 artanh r from the origin; opposite points are twice that apart."""
    points = torch.tensor([[0.0, 0], [0.5, 0], [-0.5, 0], [0, 0.8]], dtype=torch.float64)
    found = distances(points, 1.0)
    assert found.diagonal().tolist() == [0.0] * 4
    assert float(found[0, 1]) == pytest.approx(math.log(3))
    assert float(found[1, 2]) == pytest.approx(2 * math.log(3))
    assert float(found[0, 3]) == pytest.approx(math.log(9))
    cosh = 1 + 2 * (0.25 + 0.64) / ((1 - 0.25) * (1 - 0.64))
    assert float(found[1, 3]) == pytest.approx(math.acosh(cosh))
    flat = distances(1e-3 * points, 1.0)
    torch.testing.assert_close(flat, 2 * torch.cdist(1e-3 * points, 1e-3 * points))


def test_the_origin_is_mapped_to_itself_and_norms_to_half_the_distance_from_it():
    rows = torch.tensor([[0.0, 0], [0.6, 0.8]], requires_grad=True)
    points = exp_map(rows, 0.05)
    assert points[0].tolist() == [0.0, 0.0]
    assert float(distances(points, 0.05)[0, 1].detach()) == pytest.approx(2.0, rel=1e-5)
    (gradient,) = torch.autograd.grad(points[0, 0], rows)
    torch.testing.assert_close(gradient, torch.tensor([[1.0, 0], [0, 0]]))


def test_at_the_boundary_and_the_origin_everything_is_finite_in_float32(model):
    model.settings = replace(SMALL, clip=1e6)
    rows = torch.zeros(12, 8)
    rows[:6] = 1e6 * torch.eye(8)[:6]
    rows[0] = rows[1]  # equal, at the boundary
    rows[8] = 1e-20
    layer = HyperbolicClassifier(8, 5, curvature=0.1)
    leaf = rows.requires_grad_()
    batch = Batch(
        images=torch.arange(6).repeat(2),
        inputs=torch.arange(12),
        outputs={"scores": layer(leaf), "projections": leaf},
        labels=torch.tensor(LABELS * 2),
        epoch=5,
        generator=torch.Generator(),
    )
    loss = model.loss(batch)["loss"]
    loss.backward()
    for value in (loss, leaf.grad, layer.weight.grad, layer.bias.grad):
        assert torch.isfinite(value).all()


def test_an_embedding_contains_the_norm_that_the_classifier_sees(model, tiny_encoder):
    """The bias decides between short features, the weight between long ones."""
    model.encoder.tail = torch.nn.Identity()
    features = torch.zeros(3, 16)
    features[:, 0] = torch.tensor([0.01, 1.0, 100.0])
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.weight[1, 0] = 0.2
        model.classifier.bias[0] = 0.1
    embeddings = model.represent(features)
    assert embeddings.norm(dim=1).tolist() == pytest.approx([2.3] * 3)
    assert model.predict(embeddings / 2.3).tolist() == [0, 1, 1]
    assert model(features)["scores"].argmax(dim=1).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("benchmark", "ball"), [("cars", (0.05, 2.3, 1.0)), ("cifar100", (0.01, 1.0, 0.5))]
)
def test_recipes_hold_published_values(benchmark, ball):
    settings = load_recipe(recipe_for(benchmark, "dino-vitb16", "hypcd"), "hypcd")
    assert (settings.curvature, settings.clip, settings.distance_weight) == ball
    assert (settings.entropy_weight, settings.training.lr) == (1.0, 0.1)
