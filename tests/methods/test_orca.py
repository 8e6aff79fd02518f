import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from method_runs import run_method
from shoal.methods.orca import Orca, OrcaSettings, choose_partners
from shoal.training.model import Epoch, TaskShape
from shoal.training.train_settings import TrainSettings

CPU = torch.device("cpu")
LABELS = [0, 1, 0, -1, -1, -1]
SHAPE = TaskShape(n_images=6, n_known=2, n_clusters=4)


@pytest.mark.slow
def test_colors_are_found_where_the_frozen_encoder_sees_their_light(
    dim_task, score, frozen_accuracy
):
    training = TrainSettings(epochs=15, batch_size=25, lr=0.1, max_gradient=1.0, snapshot="last")
    settings = OrcaSettings(training=training, entropy_weight=2.0)
    found = run_method("orca", dim_task[0], settings)
    accuracy = score(found.clusters)
    assert accuracy.all > frozen_accuracy.all + 0.1
    assert found.n_clusters == 5


def slow_step(features, weight, labels, partners, margin, scale=10.0):
    """Compute ORCA's loss from features (2B, C), row by row."""
    n_rows = len(features)
    known = []
    probabilities = []
    pairwise = 0.0
    supervised = 0.0
    for row in range(n_rows):
        feature = features[row] / features[row].norm()
        logits = torch.stack([scale * (feature @ center) / center.norm() for center in weight])
        probabilities.append(logits.exp() / logits.exp().sum())
        label = labels[row % (n_rows // 2)]
        if label >= 0:
            known.append(row)
            others = sum(logits[k].exp() for k in range(len(weight)) if k != label)
            raised = (logits[label] + scale * margin).exp()
            supervised = supervised - (raised / (raised + others)).log()
    for row in range(n_rows):
        pairwise = pairwise - (probabilities[row] @ probabilities[partners[row]]).log()
    mean = sum(probabilities) / n_rows
    entropy = -sum(share * share.log() for share in mean)
    return supervised / len(known) + pairwise / n_rows - entropy


def test_a_step_is_that_of_a_slow_version_on_a_vit(tiny_vit):
    torch.manual_seed(0)
    model = Orca(tiny_vit.encoder, OrcaSettings(), SHAPE)
    model.margin = torch.tensor(0.3)
    batch = tiny_vit.batch(model, LABELS)
    loss = model.loss(batch)["loss"]
    batch.generator.manual_seed(9)
    features = tiny_vit.features()
    weight = model.classifier.weight.detach().clone().requires_grad_()
    partners = model.partners(batch).tolist()
    tiny_vit.check(loss, slow_step(features, weight, LABELS, partners, 0.3))
    torch.testing.assert_close(model.classifier.weight.grad, weight.grad, rtol=1e-3, atol=1e-5)
    units = [F.normalize(row, dim=0).detach() for row in features]
    for row, partner in enumerate(partners):
        image = row % 6
        view = row // 6
        assert partner // 6 == 1 - view, "a partner is of the other view"
        if LABELS[image] >= 0:
            assert partner % 6 == {0: 2, 2: 0, 1: 1}[image]
        else:
            near = [
                float(units[row] @ units[6 * view + other]) if other != image else -2
                for other in range(6)
            ]
            assert partner % 6 == int(np.argmax(near))


def test_partners_of_a_class_are_drawn_evenly_and_never_the_image_itself():
    """Images 0, 1, 2 and 3 have the same class, and 3 is in the batch twice."""
    images = torch.tensor([0, 1, 2, 3, 3, 4])
    labels = torch.tensor([0, 0, 0, 0, 0, -1])
    features = F.normalize(
        torch.tensor([[1.0, 0], [0, 1], [1, 1], [-1, 0], [-1, 0], [-1, 0.1]]), dim=1
    )
    counts = np.zeros((6, 6), dtype=int)
    generator = torch.Generator().manual_seed(0)
    for _ in range(600):
        found = choose_partners(features, labels, images, torch.rand(6, generator=generator))
        counts[np.arange(6), found.numpy()] += 1
    assert (counts[[3, 3, 4, 4], [3, 4, 3, 4]] == 0).all()
    assert counts[5].tolist() == [0, 0, 0, 600, 0, 0], (
        "the nearest, the first of two that are equal"
    )
    assert (counts[0, 1:5] > 110).all()
    assert (counts[3, :3] > 150).all()


def test_the_margin_is_the_uncertainty_of_unlabeled_images_and_has_a_limit(tiny_encoder):
    model = Orca(tiny_encoder("tiny"), OrcaSettings(max_margin=0.5), SHAPE)
    embeddings = F.normalize(torch.randn(6, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    embeddings[0] = F.normalize(
        model.classifier.weight[2].detach(), dim=0
    )  # a labeled image, certain of cluster 2

    def begin(labels):
        model.begin_epoch(
            Epoch(
                number=0,
                labels=torch.tensor(labels),
                embed=lambda: embeddings,
                embed_views=lambda: embeddings,
                generator=torch.Generator(),
            )
        )
        return float(model.margin)

    largest = []
    for row in embeddings[1:]:
        cosines = [
            10 * float(row @ F.normalize(center, dim=0))
            for center in model.classifier.weight.detach()
        ]
        largest.append(
            max(math.exp(each) for each in cosines) / sum(math.exp(each) for each in cosines)
        )
    uncertainty = 1 - sum(largest) / 5
    assert begin([2, -1, -1, -1, -1, -1]) == pytest.approx(min(uncertainty, 0.5), rel=1e-4)
    model.settings = OrcaSettings(max_margin=0.01)
    assert begin([2, -1, -1, -1, -1, -1]) == pytest.approx(0.01)
