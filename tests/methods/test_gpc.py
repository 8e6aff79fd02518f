import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.inference import InferenceSettings
from shoal.clustering.matching import gcd_accuracy
from shoal.encoders.head import HeadSettings
from shoal.methods.clusters import Representation
from shoal.methods.gpc import Gpc, GpcSettings, spread_of
from shoal.methods.registry import get_method
from shoal.training.model import Epoch, TaskShape
from shoal.training.train_settings import TrainSettings
from slow_steps import contrast, gradients, make_batch, supervise, tiny_vit

CPU = torch.device("cpu")
METHOD = get_method("gpc")
SETTINGS = GpcSettings(
    head=HeadSettings(width=16, dim=8),
    training=TrainSettings(epochs=2, batch_size=16, lr=0.01),
    n_init=3,
    first_novel=1,
    mixture_columns=8,
    prototype_temperature=0.3,
)
LABELS = torch.tensor([0, -1, 1, -1, -1, 0])
CLUSTERS = torch.tensor([0, 2, 1, 2, 0, 0])


def make_model(n_images=6, n_known=2, n_clusters=None, **changes):
    torch.manual_seed(0)
    return Gpc(
        tiny_vit(),
        replace(SETTINGS, **changes),
        TaskShape(n_images=n_images, n_known=n_known, n_clusters=n_clusters),
    )


def test_a_step_on_a_vision_transformer_is_that_of_a_slow_version():
    model = make_model(prototype_weight=0.7)
    model.clusters = CLUSTERS
    model.prototypes = F.normalize(
        torch.randn(3, 32, generator=torch.Generator().manual_seed(2)), dim=1
    )
    model.temperatures = torch.tensor([0.2, 0.3, 0.5])
    batch = make_batch(model, LABELS)
    found = model.loss(batch)
    views = torch.stack([model.head(model.encoder.tail(row[None]))[0] for row in batch.inputs])
    drawn = 0.0
    for tokens, own in zip(batch.inputs, CLUSTERS.repeat(2).tolist(), strict=True):
        feature = model.encoder.tail(tokens[None])[0]
        feature = feature / feature.norm()
        powers = [
            (torch.dot(feature, model.prototypes[k]) / model.temperatures[k]).exp()
            for k in range(3)
        ]
        drawn = drawn - (powers[own] / sum(powers)).log() / 12
    expected = (
        0.65 * contrast(views, 1.0)
        + 0.35 * supervise(views, batch.labels.tolist(), 0.07)
        + 0.7 * drawn
    )
    assert found["loss_prototype"].item() == pytest.approx(drawn.item(), rel=1e-4)
    assert found["loss"].item() == pytest.approx(expected.item(), rel=1e-4)
    torch.testing.assert_close(
        gradients(model, found["loss"]), gradients(model, expected), rtol=1e-3, atol=1e-4
    )


def test_without_prototypes_the_loss_is_gcds():
    model = make_model()
    assert model.loss(make_batch(model, LABELS))["loss_prototype"].item() == 0


def groups(n_groups=6, size=20, seed=1):
    """Groups of unit points; half of the images of the first three are labeled."""
    truth = np.repeat(np.arange(n_groups), size)
    noise = torch.randn(len(truth), 32, generator=torch.Generator().manual_seed(seed))
    points = F.normalize(torch.eye(32)[truth] + 0.1 * noise, dim=1)
    return points, truth, np.where((truth < 3) & (np.arange(len(truth)) % 2 == 0), truth, -1)


def begin(model, number, points, labels):
    how = {
        "labels": torch.from_numpy(labels),
        "embed_views": None,
        "generator": torch.Generator().manual_seed(number),
    }
    return model.begin_epoch(Epoch(number=number, embed=lambda: points, **how))


def test_the_number_begins_at_the_known_classes_and_a_constant_and_goes_on_from_epoch_to_epoch():
    points, truth, labels = groups()
    model = make_model(n_images=120, n_known=3)
    assert begin(model, 0, points, labels) == {"n_prototypes": 4.0}, (
        "the first epoch has no prototypes"
    )
    assert len(model.prototypes) == 0
    numbers = [begin(model, number, points, labels)["n_prototypes"] for number in range(1, 5)]
    n_found = int(model.n_clusters)
    assert numbers[-1] == n_found
    assert 5 <= n_found <= 7
    assert "n_clusters" in model.saved_tensors(), "a resumed run goes on with it"
    assert gcd_accuracy(truth, model.clusters.numpy(), truth < 3).all > 0.9
    assert np.array_equal(model.clusters.numpy()[labels >= 0], labels[labels >= 0])
    expected = [F.normalize(points[model.clusters == k].mean(dim=0), dim=0) for k in range(n_found)]
    torch.testing.assert_close(model.prototypes, torch.stack(expected))
    assert float(model.temperatures.mean()) == pytest.approx(0.3, rel=1e-5)


def test_a_number_that_is_given_stays():
    points, _, labels = groups()
    model = make_model(n_images=120, n_known=3, n_clusters=9)
    assert [begin(model, number, points, labels)["n_prototypes"] for number in (1, 2)] == [9.0, 9.0]


def test_the_temperature_of_a_cluster_is_its_width_written_out():
    """Two of the seven clusters have one image each: these have the largest temperature."""
    points, truth, _ = groups(n_groups=5, size=9)
    clusters = torch.from_numpy(np.where(np.arange(45) < 30, truth, 4))
    clusters[[0, 20]] = torch.tensor([5, 6])
    prototypes = torch.stack([points[clusters == k].mean(dim=0) for k in range(7)])
    widths = {}
    for k in range(5):
        own = points[clusters == k]
        total = sum(float((row - prototypes[k]).norm()) for row in own)
        widths[k] = total / len(own) / math.log(len(own) + 10)
    widest = max(widths.values())
    widths |= {5: widest, 6: widest}
    low, high = np.quantile(list(widths.values()), [0.1, 0.9])
    expected = np.clip(list(widths.values()), low, high)
    np.testing.assert_allclose(
        spread_of(points, clusters, prototypes), expected / expected.mean(), rtol=1e-5
    )


def test_the_number_of_clusters_is_that_of_gaussians():
    points, _, labels = groups()
    learned = Representation(embeddings=points, embed=lambda pixels: points, n_clusters=17)
    near = replace(SETTINGS, first_novel=2)
    found = METHOD.cluster(learned, labels, near, n_clusters=None, device=CPU)
    assert found.n_clusters == 6 == len(np.unique(found.clusters))
    assert METHOD.cluster(learned, labels, near, n_clusters=9, device=CPU).n_clusters == 9
    ranged = replace(near, inference=InferenceSettings(max_clusters=4))
    assert METHOD.cluster(learned, labels, ranged, n_clusters=None, device=CPU).n_clusters == 4
    by_rule = replace(near, search_n_clusters=False)
    assert METHOD.cluster(learned, labels, by_rule, n_clusters=None, device=CPU).n_clusters == 17
