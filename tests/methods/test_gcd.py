from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage
from torch.nn import functional as F

from method_runs import run_method
from shoal.clustering.inference import InferenceSettings
from shoal.clustering.n_clusters import estimate_n_clusters
from shoal.clustering.sums import unit_points
from shoal.clustering.tree import Tree
from shoal.encoders.vision import HeadSettings, embed
from shoal.errors import UsageError
from shoal.methods.gcd import METHOD, Gcd, GcdSettings
from shoal.methods.method import Representation
from shoal.methods.registry import get_method
from shoal.settings import from_dict
from shoal.training.model import TaskShape
from shoal.training.train_settings import TrainSettings
from slow_steps import contrast, supervise

CPU = torch.device("cpu")
gcd = partial(run_method, "gcd")
represent = get_method("gcd").represent
SETTINGS = GcdSettings(
    head=HeadSettings(width=32, dim=12),
    training=TrainSettings(epochs=2, batch_size=16, lr=0.01),
    n_init=3,
)


def test_labeled_images_keep_their_class(task):
    found = gcd(replace(task, n_clusters=5), SETTINGS)
    assert np.array_equal(found.clusters[task.labels >= 0], task.labels[task.labels >= 0])


def test_a_class_without_labels_leaves_no_gap(task):
    """If only 0 and 2 occur as labels, there are two known classes; k-means starts from their two
    means, without the mean of an empty class."""
    labels = np.where(task.labels == 1, -1, task.labels)
    found = gcd(replace(task, labels=labels, n_clusters=5), SETTINGS)
    assert set(found.clusters[labels == 0]) == {0}
    assert set(found.clusters[labels == 2]) == {1}


def test_the_number_of_clusters_comes_from_the_validation_images_or_from_all_labels(task):
    learned = replace(represent(task, SETTINGS, device=CPU), n_clusters=9)
    tree = Tree(linkage(F.normalize(learned.embeddings.double(), dim=1).numpy(), "ward"))
    fewer = np.where(task.labels == 1, -1, task.labels)
    expected = [estimate_n_clusters(tree, labels).n_clusters for labels in (task.labels, fewer)]
    for labels, on_all in zip((task.labels, fewer), expected, strict=True):
        found = METHOD.cluster(learned, labels, SETTINGS, None)
        assert found.n_clusters == 9
        without_validation = replace(learned, n_clusters=None)
        assert METHOD.cluster(without_validation, labels, SETTINGS, None).n_clusters == on_all
    assert len({*expected, 9}) == 3


def test_a_step_is_that_of_a_slow_version_on_a_vit(tiny_vit):
    labels = [0, 1, 0, -1, -1, 1]
    settings = GcdSettings(head=HeadSettings(width=16, dim=8))
    torch.manual_seed(0)
    model = Gcd(tiny_vit.encoder, settings, TaskShape(n_images=6, n_known=2, n_clusters=None))
    loss = model.loss(tiny_vit.batch(model, labels))["loss"]
    views = model.head(tiny_vit.features())
    tiny_vit.check(loss, 0.65 * contrast(views, 1.0) + 0.35 * supervise(views, labels * 2, 0.07))


def test_fewer_clusters_than_known_classes_are_refused(task):
    learned = Representation(
        embeddings=torch.eye(100, 16) + 0.01, embed=lambda pixels: torch.empty(0)
    )
    with pytest.raises(UsageError, match="n_clusters"):
        METHOD.cluster(learned, task.labels, SETTINGS, 2)
    with pytest.raises(UsageError, match="n_init"):
        from_dict(GcdSettings, {"n_init": 0})


def test_the_number_of_clusters_is_searched_on_the_encoders_features_as_they_came(
    task, tiny_encoder, monkeypatch
):
    searching = replace(
        SETTINGS, search_n_clusters=True, inference=InferenceSettings(max_clusters=20)
    )
    learned = represent(task, searching, device=CPU)
    frozen = embed(task.pixels, tiny_encoder("tiny"))
    torch.testing.assert_close(learned.frozen(), frozen)
    expected = searching.find_n_clusters(learned, unit_points(frozen), task.labels)
    found = METHOD.cluster(replace(learned, n_clusters=17), task.labels, searching, None)
    assert found.n_clusters == expected != 17
    assert found.n_clusters_source
    given = METHOD.cluster(learned, task.labels, searching, 7)
    assert (given.n_clusters, given.n_clusters_source) == (7, "")
