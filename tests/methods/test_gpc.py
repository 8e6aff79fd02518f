import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shoal.clustering.inference import InferenceSettings
from shoal.clustering.matching import gcd_accuracy
from shoal.encoders.vision import HeadSettings
from shoal.methods.gpc import Gpc, GpcSettings, relative_widths
from shoal.methods.method import Representation
from shoal.methods.registry import get_method, load_recipe, recipe_names
from shoal.training.model import Epoch, TaskShape
from shoal.training.train_settings import TrainSettings
from slow_steps import contrast, supervise
from small_points import groups

CPU = torch.device("cpu")
METHOD = get_method("gpc")
SETTINGS = GpcSettings(
    head=HeadSettings(width=16, dim=8),
    training=TrainSettings(epochs=2, batch_size=16, lr=0.01),
    n_init=3,
    initial_novel=1,
    mixture_columns=8,
    prototype_temperature=0.3,
)
LABELS = [0, -1, 1, -1, -1, 0]
CLUSTERS = torch.tensor([0, 2, 1, 2, 0, 0])


def make_model(tiny_vit, n_images=6, n_known=2, n_clusters=None, **changes):
    torch.manual_seed(0)
    return Gpc(
        tiny_vit.encoder,
        replace(SETTINGS, **changes),
        TaskShape(n_images=n_images, n_known=n_known, n_clusters=n_clusters),
    )


def test_a_step_is_that_of_a_slow_version_on_a_vit(tiny_vit):
    model = make_model(tiny_vit, prototype_weight=0.7)
    model.clusters = CLUSTERS
    model.prototypes = F.normalize(
        torch.randn(3, 32, generator=torch.Generator().manual_seed(2)), dim=1
    )
    model.temperatures = torch.tensor([0.2, 0.3, 0.5])
    found = model.loss(tiny_vit.batch(model, LABELS, epoch=1))
    features = tiny_vit.features()
    views = model.head(features)
    prototype = 0.0
    for row, own in zip(features, CLUSTERS.repeat(2).tolist(), strict=True):
        feature = row / row.norm()
        powers = [
            (torch.dot(feature, model.prototypes[k]) / model.temperatures[k]).exp()
            for k in range(3)
        ]
        prototype = prototype - (powers[own] / sum(powers)).log() / 12
    expected = 0.65 * contrast(views, 1.0) + 0.35 * supervise(views, LABELS * 2, 0.07)
    expected = expected + 0.7 * prototype
    assert found["loss_prototype"].item() == pytest.approx(prototype.item(), rel=1e-4)
    tiny_vit.check(found["loss"], expected)


def test_in_the_first_epoch_the_loss_is_gcds(tiny_vit):
    model = make_model(tiny_vit)
    assert model.loss(tiny_vit.batch(model, LABELS))["loss_prototype"].item() == 0


def begin(model, number, points, labels):
    arguments = {
        "labels": torch.from_numpy(labels),
        "embed_views": None,
        "generator": torch.Generator().manual_seed(number),
    }
    return model.begin_epoch(Epoch(number=number, embed=lambda: points, **arguments))


def test_the_number_begins_at_the_known_classes_and_a_constant_and_goes_on_from_epoch_to_epoch(
    tiny_vit,
):
    points, truth, labels = groups()
    model = make_model(tiny_vit, n_images=120, n_known=3)
    assert begin(model, 0, points, labels) == {"n_prototypes": 4.0}, (
        "the first epoch has no prototypes"
    )
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


def test_a_number_that_is_given_stays(tiny_vit):
    points, _, labels = groups()
    model = make_model(tiny_vit, n_images=120, n_known=3, n_clusters=9)
    assert [begin(model, number, points, labels)["n_prototypes"] for number in (1, 2)] == [9.0, 9.0]


def test_the_temperature_of_a_cluster_is_its_width_written_out():
    """Two of the seven clusters have a single image and therefore get the largest temperature."""
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
        relative_widths(points, clusters, prototypes), expected / expected.mean(), rtol=1e-5
    )


def test_the_released_concentration_is_that_of_every_recipe():
    for recipe in recipe_names("gpc"):
        assert load_recipe(recipe, "gpc").concentration == 1.0


def test_the_number_of_clusters_is_that_of_gaussians():
    points, _, labels = groups()
    learned = Representation(embeddings=points, embed=lambda pixels: points, n_clusters=17)
    near = replace(SETTINGS, initial_novel=2)
    found = METHOD.cluster(learned, labels, near, None)
    assert found.n_clusters == 6 == len(np.unique(found.clusters))
    assert METHOD.cluster(learned, labels, near, 9).n_clusters == 9
    ranged = replace(near, inference=InferenceSettings(max_clusters=4))
    assert METHOD.cluster(learned, labels, ranged, None).n_clusters == 4
    splitting = replace(near, concentration=1e300)  # every split that is proposed is accepted
    assert METHOD.cluster(learned, labels, splitting, None).n_clusters > 6
    by_rule = replace(near, search_n_clusters=False)
    assert METHOD.cluster(learned, labels, by_rule, None).n_clusters == 17
