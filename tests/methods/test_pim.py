import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.encoders.vision import HeadSettings
from shoal.methods import pim
from shoal.methods.method import Representation
from shoal.methods.pim import (
    PimSettings,
    choose_weight,
    objective,
)
from shoal.methods.registry import get_method
from shoal.training.train_settings import TrainSettings

CPU = torch.device("cpu")
METHOD = get_method("pim")
SETTINGS = PimSettings(
    head=HeadSettings(width=32, dim=12),
    training=TrainSettings(epochs=2, batch_size=16, lr=0.01),
    conditional_entropy_weights=(0.2, 1.0),
    fit_steps=60,
    fit_lr=0.01,
    n_init=2,
)
LABELS = torch.tensor([0, -1, 1, -1, -1, 0])


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def written_out(logits, labels, weight):
    """Compute the objective image by image."""
    n_rows = len(logits)
    n_clusters = len(logits[0])
    p = [[math.exp(logits[i][k]) for k in range(n_clusters)] for i in range(n_rows)]
    p = [[value / sum(row) for value in row] for row in p]
    mean = [sum(row[k] for row in p) / n_rows for k in range(n_clusters)]
    entropies = [
        -sum(value * math.log(value) for value in row)
        for row, y in zip(p, labels, strict=True)
        if y < 0
    ]
    wrong = [-math.log(row[y]) for row, y in zip(p, labels, strict=True) if y >= 0]
    spread = -sum(value * math.log(value) for value in mean)
    total = -spread + (weight * sum(entropies) / len(entropies) if entropies else 0)
    return total + (sum(wrong) / len(wrong) if wrong else 0)


@pytest.mark.parametrize("labels", [LABELS, torch.full((6,), -1), torch.tensor([0, 1, 2, 0, 1, 2])])
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_objective_is_what_a_loop_computes(labels, weight):
    logits = draw(6, 3)
    expected = written_out(logits.tolist(), labels.tolist(), weight)
    assert float(objective(logits, labels, weight)) == pytest.approx(expected, rel=1e-5)


def three_groups(sizes):
    """Sample three noisy directions, in groups of the given sizes."""
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
    chosen = replace(SETTINGS, conditional_entropy_weights=(0.2, 0.6, 1.0))
    assert choose_weight(points, labels, 3, chosen) == 0.6
    assert seen == [None] * 3, "no fit that is judged by labels sees one"
    assert choose_weight(points, np.full(90, -1), 3, chosen) == 0.6, "the middle one without labels"
    assert len(seen) == 3


def test_the_number_of_clusters_is_searched_with_no_label_in_the_fit(monkeypatch):
    truth = np.repeat(np.arange(6), 20)
    points = F.normalize(torch.eye(12)[truth] + 0.1 * draw(120, 12), dim=1)
    labels = np.where((truth < 3) & (np.arange(120) % 2 == 0), truth, -1)
    learned = Representation(embeddings=points, embed=lambda pixels: points, n_clusters=3)
    quick = replace(
        SETTINGS,
        inference=replace(SETTINGS.inference, max_clusters=12),
        conditional_entropy_weights=(1.0,),
    )
    assert METHOD.cluster(learned, labels, quick, None).n_clusters in (5, 6, 7)
    by_rule = replace(quick, search_n_clusters=False)
    assert METHOD.cluster(learned, labels, by_rule, None).n_clusters == 3
