import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.matching import gcd_accuracy
from shoal.encoders.head import HeadSettings
from shoal.errors import UsageError
from shoal.methods import pim
from shoal.methods.clusters import Representation
from shoal.methods.pim import (
    PimSettings,
    choose_sureness_weight,
    cluster,
    fit,
    fit_directions,
    objective,
    search_by_pim,
)
from shoal.methods.registry import get_method
from shoal.training.model import TaskShape
from shoal.training.train_settings import TrainSettings
from slow_steps import contrast, gradients, make_batch, supervise, tiny_vit

CPU = torch.device("cpu")
METHOD = get_method("pim")
SETTINGS = PimSettings(
    head=HeadSettings(width=32, dim=12),
    training=TrainSettings(epochs=2, batch_size=16, lr=0.01),
    sureness_weights=(0.2, 1.0),
    fit_steps=60,
    fit_lr=0.01,
    n_init=2,
)
LABELS = torch.tensor([0, -1, 1, -1, -1, 0])


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def written_out(logits, labels, weight):
    """The objective, image by image."""
    n_rows = len(logits)
    n_clusters = len(logits[0])
    p = [[math.exp(logits[i][k]) for k in range(n_clusters)] for i in range(n_rows)]
    p = [[value / sum(row) for value in row] for row in p]
    mean = [sum(row[k] for row in p) / n_rows for k in range(n_clusters)]
    unsure = [
        -sum(value * math.log(value) for value in row)
        for row, y in zip(p, labels, strict=True)
        if y < 0
    ]
    wrong = [-math.log(row[y]) for row, y in zip(p, labels, strict=True) if y >= 0]
    spread = -sum(value * math.log(value) for value in mean)
    total = -spread + (weight * sum(unsure) / len(unsure) if unsure else 0)
    return total + (sum(wrong) / len(wrong) if wrong else 0)


@pytest.mark.parametrize("labels", [LABELS, torch.full((6,), -1), torch.tensor([0, 1, 2, 0, 1, 2])])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_objective_is_what_a_loop_computes(labels, weight):
    logits = draw(6, 3)
    expected = written_out(logits.tolist(), labels.tolist(), weight)
    assert float(objective(logits, labels, weight)) == pytest.approx(expected, rel=1e-5)


def test_the_fit_is_adam_written_out_on_numeric_gradients():
    points = F.normalize(draw(6, 4), dim=1).double()
    centers = draw(3, 4, seed=1).double()
    settings = replace(SETTINGS, fit_steps=3, fit_lr=0.1, sharpness=3.0)
    w = (centers / centers.norm(dim=1, keepdim=True)).numpy().copy()
    mean = np.zeros_like(w)
    square = np.zeros_like(w)

    def value(at):
        return written_out((3.0 * points.numpy() @ at.T).tolist(), LABELS.tolist(), 0.5)

    for step in (1, 2, 3):
        slope = np.zeros_like(w)
        for place in np.ndindex(*w.shape):
            nudge = np.zeros_like(w)
            nudge[place] = 1e-6
            slope[place] = (value(w + nudge) - value(w - nudge)) / 2e-6 + 0.01 * w[place]
        mean = 0.9 * mean + 0.1 * slope
        square = 0.999 * square + 0.001 * slope**2
        w -= 0.1 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    directions = fit_directions(points, centers, LABELS, 0.5, settings)
    np.testing.assert_allclose(directions.numpy(), w, atol=1e-4)
    found = fit(points, centers, LABELS, 0.5, settings)
    assert found.tolist() == (points.numpy() @ w.T).argmax(axis=1).tolist()
    unmoved = (points @ F.normalize(centers, dim=1).T).argmax(dim=1)
    assert found.tolist() != unmoved.tolist()


def three_groups(sizes):
    """Three directions with noise; the groups' sizes differ."""
    truth = np.repeat(np.arange(3), sizes)
    return F.normalize(torch.eye(8)[truth] + 0.35 * draw(len(truth), 8), dim=1), truth


def test_the_weight_of_most_labeled_images_right_is_chosen(monkeypatch):
    points, truth = three_groups((30, 30, 30))
    labels = np.where(np.arange(90) % 2 == 0, truth, -1)
    right = {0.2: 10, 0.6: 40, 1.0: 40}
    seen = []

    def fit(points, centers, labels, weight, settings):
        seen.append(labels)
        n_right = right[weight]
        return torch.from_numpy(
            np.where(np.cumsum(labels_given) <= n_right, truth, (truth + 1) % 3)
        )

    labels_given = labels >= 0
    monkeypatch.setattr(pim, "fit", fit)
    chosen = replace(SETTINGS, sureness_weights=(0.2, 0.6, 1.0))
    assert choose_sureness_weight(points, labels, 3, chosen) == 0.6
    assert seen == [None] * 3, "no fit that is judged by labels sees one"
    assert choose_sureness_weight(points, np.full(90, -1), 3, chosen) == 0.6, (
        "the middle one without labels"
    )
    assert len(seen) == 3


def test_five_colors_are_found_and_labeled_images_keep_their_class(task, truth):
    found = METHOD.run(replace(task, n_clusters=5), SETTINGS, device=CPU)
    unlabeled = task.labels < 0
    accuracy = gcd_accuracy(truth[unlabeled], found.clusters[unlabeled], truth[unlabeled] < 3)
    assert accuracy.all > 0.9
    assert np.array_equal(found.clusters[task.labels >= 0], task.labels[task.labels >= 0])
    assert found.n_clusters == 5


def test_the_number_of_clusters_is_searched_with_no_label_in_the_fit(monkeypatch):
    truth = np.repeat(np.arange(6), 20)
    points = F.normalize(torch.eye(12)[truth] + 0.1 * draw(120, 12), dim=1)
    labels = np.where((truth < 3) & (np.arange(120) % 2 == 0), truth, -1)
    learned = Representation(embeddings=points, embed=lambda pixels: points, n_clusters=3)
    quick = replace(
        SETTINGS, inference=replace(SETTINGS.inference, max_clusters=12), sureness_weights=(1.0,)
    )
    assert cluster(learned, labels, quick, n_clusters=None, device=CPU).n_clusters in (5, 6, 7)
    by_rule = replace(quick, search_n_clusters=False)
    assert cluster(learned, labels, by_rule, n_clusters=None, device=CPU).n_clusters == 3


def test_the_search_for_the_number_of_clusters_is_by_mutual_information(monkeypatch):
    """The objective of its fits is the negative mutual information of images and clusters, written
    out."""
    points, truth = three_groups((20, 20, 20))
    seen = []

    def fit(points, centers, labels, weight, settings):
        seen.append((labels, weight))
        return torch.from_numpy(truth)

    monkeypatch.setattr(pim, "fit", fit)
    quick = replace(SETTINGS, inference=replace(SETTINGS.inference, max_clusters=6))
    search_by_pim(points, np.where(truth < 2, truth, -1), quick)
    assert seen
    assert {labels for labels, _ in seen} == {None}
    (weight,) = {weight for _, weight in seen}
    shares = draw(6, 3).double().softmax(dim=1)  # of an image, over clusters
    information = sum(
        float(
            share / 6 * (share / shares[:, cluster].mean()).log()
        )  # p(i, k) log p(i, k) / (p(i) p(k)), p(i) = 1 / 6
        for row in shares
        for cluster, share in enumerate(row)
    )
    assert float(objective(shares.log(), torch.full((6,), -1), weight)) == pytest.approx(
        -information, rel=1e-6
    )


def test_a_step_on_a_vision_transformer_is_that_of_a_slow_version():
    settings = PimSettings(head=HeadSettings(width=16, dim=8))
    torch.manual_seed(0)
    model = METHOD.model(tiny_vit(), settings, TaskShape(n_images=6, n_known=2, n_clusters=None))
    batch = make_batch(model, LABELS)
    found = model.loss(batch)["loss"]
    views = torch.stack([model.head(model.encoder.tail(row[None]))[0] for row in batch.inputs])
    expected = 0.65 * contrast(views, 1.0) + 0.35 * supervise(views, batch.labels.tolist(), 0.07)
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    torch.testing.assert_close(
        gradients(model, found), gradients(model, expected), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"sureness_weights": ()},
        {"fit_steps": 0},
        {"fit_lr": 0.0},
        {"sharpness": -1.0},
        {"fit_weight_decay": -0.1},
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        replace(SETTINGS, **wrong)
